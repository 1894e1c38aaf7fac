// Raw deflate streams (RFC 1951) that lie in a source, read from any position: a position behind the last one read starts the
// stream anew. What is inflated is summed. Bounded: two buffers of 64 KiB and zlib's window.
#ifndef NEVE_FORMAT_INFLATE_H_
#define NEVE_FORMAT_INFLATE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "base/error/status.h"
#include "format/byte_source.h"

namespace neve::format {

class Inflater {
 public:
  // The stream lies in [offset, offset + stored_bytes) and holds `bytes`. `source` outlives this.
  Inflater(const ByteSource& source, uint64_t offset, uint64_t stored_bytes, uint64_t bytes);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  uint64_t position() const { return position_; }
  uint32_t crc() const { return crc_; }   // CRC-32 of all before position()
  // Damaged: the stream is malformed, or ends before or after `bytes`.
  absl::Status Read(uint64_t position, std::span<std::byte> target);

 private:
  struct Stream;
  absl::Status Restart();
  absl::Status Next(std::span<std::byte> target);
  absl::Status CheckEnd();
  absl::Status Step();
  absl::Status Bad(const char* what) const;

  const ByteSource& source_;
  uint64_t offset_, stored_bytes_, bytes_;
  uint64_t position_ = 0, consumed_ = 0;
  uint32_t crc_ = 0;
  std::unique_ptr<Stream> stream_;
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_INFLATE_H_
