#include "format/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "base/codec/crc32.h"

namespace neve::format {
namespace {

constexpr uint64_t kBufferBytes = 64u << 10;

}  // namespace

struct Inflater::Stream {
  z_stream zlib{};
  bool open = false;
  bool ended = false;
  std::array<std::byte, kBufferBytes> in, skipped;

  ~Stream() {
    if (open) inflateEnd(&zlib);
  }
};

Inflater::Inflater(const ByteSource& source, uint64_t offset, uint64_t stored_bytes, uint64_t bytes)
    : source_(source), offset_(offset), stored_bytes_(stored_bytes), bytes_(bytes) {}

Inflater::~Inflater() = default;

absl::Status Inflater::Bad(const char* what) const {
  return Damaged(absl::StrFormat("%s: the deflated bytes [%d, %d) are malformed: %s at %d of the %d bytes that they should hold",
                                 source_.name(), offset_, offset_ + stored_bytes_, what, position_, bytes_));
}

absl::Status Inflater::Restart() {
  stream_ = std::make_unique<Stream>();
  position_ = consumed_ = 0;
  crc_ = 0;
  if (inflateInit2(&stream_->zlib, -MAX_WBITS) != Z_OK) return Exhausted("no memory to inflate");
  stream_->open = true;
  return absl::OkStatus();
}

absl::Status Inflater::Read(uint64_t position, std::span<std::byte> target) {
  if (position > bytes_ || target.size() > bytes_ - position) return Internal("inflating past the end");
  if (stream_ == nullptr || position < position_) NEVE_RETURN_IF_ERROR(Restart());
  while (position_ < position) {
    NEVE_RETURN_IF_ERROR(Next(std::span(stream_->skipped).first(std::min(kBufferBytes, position - position_))));
  }
  while (!target.empty()) {
    const size_t step = std::min<size_t>(target.size(), 1u << 30);
    NEVE_RETURN_IF_ERROR(Next(target.first(step)));
    target = target.subspan(step);
  }
  return position_ == bytes_ ? CheckEnd() : absl::OkStatus();
}

absl::Status Inflater::Next(std::span<std::byte> target) {
  z_stream& zlib = stream_->zlib;
  zlib.next_out = reinterpret_cast<Bytef*>(target.data());
  zlib.avail_out = static_cast<uInt>(target.size());
  while (zlib.avail_out > 0) {
    if (stream_->ended) return Bad("the stream ends early");
    NEVE_RETURN_IF_ERROR(Step());
  }
  crc_ = codec::Crc32(crc_, target);
  return absl::OkStatus();
}

// All that was promised is there: nothing more may come.
absl::Status Inflater::CheckEnd() {
  z_stream& zlib = stream_->zlib;
  std::byte more;
  zlib.next_out = reinterpret_cast<Bytef*>(&more);
  zlib.avail_out = 1;
  while (!stream_->ended) {
    NEVE_RETURN_IF_ERROR(Step());
    if (zlib.avail_out == 0) return Bad("more follows");
  }
  return absl::OkStatus();
}

// Inflates into next_out what the bytes at hand give, after fetching more where there are none.
absl::Status Inflater::Step() {
  z_stream& zlib = stream_->zlib;
  if (zlib.avail_in == 0) {
    const uint64_t bytes = std::min(kBufferBytes, stored_bytes_ - consumed_);
    if (bytes == 0) return Bad("it is cut short");
    NEVE_RETURN_IF_ERROR(source_.Read(offset_ + consumed_, std::span(stream_->in).first(bytes)));
    consumed_ += bytes;
    zlib.next_in = reinterpret_cast<Bytef*>(stream_->in.data());
    zlib.avail_in = static_cast<uInt>(bytes);
  }
  const uInt before = zlib.avail_out;
  const int result = inflate(&zlib, Z_NO_FLUSH);
  position_ += before - zlib.avail_out;
  if (result == Z_STREAM_END) {
    stream_->ended = true;
  } else if (result != Z_OK && result != Z_BUF_ERROR) {
    return Bad(zlib.msg != nullptr ? zlib.msg : "no deflate stream");
  }
  return absl::OkStatus();
}

}  // namespace neve::format
