#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/crc32.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "base/sync/executor.h"
#include "base/sync/mutex.h"
#include "engine/convert.h"
#include "engine/replacement.h"
#include "format/names.h"

namespace neve::engine {
namespace {

constexpr uint64_t kWindowBytes = 8 * kDefaultChunkBytes, kPartBytes = kDefaultChunkBytes;
constexpr size_t kWindows = 3;

struct FreeDeleter {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Window = std::unique_ptr<std::byte[], FreeDeleter>;

}  // namespace

void OutputStream::Add(uint64_t bytes, Fill fill, int64_t record) {
  if (record >= static_cast<int64_t>(crcs_.size())) crcs_.resize(static_cast<size_t>(record) + 1);
  if (bytes == 0) return;
  pieces_.push_back({bytes_, bytes, std::move(fill), {}, "", record});
  bytes_ += bytes;
}

void OutputStream::AddText(std::string text, int64_t record) {
  const uint64_t bytes = text.size();
  Add(bytes, [text = std::move(text)](uint64_t begin, std::span<std::byte> target) {
    std::copy_n(reinterpret_cast<const std::byte*>(text.data()) + begin, target.size(), target.begin());
    return absl::OkStatus();
  }, record);
}

void OutputStream::AddLate(uint64_t bytes, std::function<std::string()> text) {
  if (bytes == 0) return;
  pieces_.push_back({bytes_, bytes, {}, std::move(text), "", kNoRecord});
  bytes_ += bytes;
}

absl::Status OutputStream::FillWindow(sync::Crew& crew, uint64_t begin, std::span<std::byte> window) {
  const uint64_t end = begin + window.size();
  while (first_piece_ < pieces_.size() && pieces_[first_piece_].begin + pieces_[first_piece_].bytes <= begin) ++first_piece_;
  std::vector<Part> parts;
  for (size_t i = first_piece_; i < pieces_.size() && pieces_[i].begin < end; ++i) {
    const Piece& piece = pieces_[i];
    uint64_t at = std::max(begin, piece.begin);
    const uint64_t piece_end = std::min(end, piece.begin + piece.bytes);
    while (at < piece_end) {
      const uint64_t bytes = std::min(piece_end - at, kPartBytes);
      parts.push_back({i, at - piece.begin, window.subspan(at - begin, bytes)});
      at += bytes;
    }
  }
  auto fill = [&](uint64_t index, int) {
    Part& part = parts[index];
    const Piece& piece = pieces_[part.piece];
    if (!piece.fill) return;
    part.status = piece.fill(part.begin, part.target);
    if (piece.record != kNoRecord) part.crc = codec::Crc32(0, part.target);
  };
  crew.Run(parts.size(), fill);
  for (const Part& part : parts) {
    NEVE_RETURN_IF_ERROR(part.status);
    Piece& piece = pieces_[part.piece];
    if (piece.late) {
      if (piece.text.empty()) piece.text = piece.late();
      if (piece.text.size() != piece.bytes) return Internal(absl::StrFormat("%d bytes made of %d", piece.text.size(), piece.bytes));
      std::copy_n(reinterpret_cast<const std::byte*>(piece.text.data()) + part.begin, part.target.size(), part.target.begin());
    } else if (piece.record != kNoRecord) {
      uint32_t& crc = crcs_[static_cast<size_t>(piece.record)];
      crc = codec::Crc32Combine(crc, part.crc, part.target.size());
    }
  }
  return absl::OkStatus();
}

absl::Status OutputStream::Write(sync::Crew& crew, const Sink& sink, const std::function<void(uint64_t)>& advance,
                                 std::vector<codec::Digest>* digests) {
  struct Shared {
    sync::Mutex mutex;
    sync::Condition condition;
    size_t queued = 0;
    absl::Status status;
  } shared;
  Window windows[kWindows];
  for (Window& window : windows) {
    const uint64_t bytes = std::min((bytes_ + kPageBytes - 1) / kPageBytes * kPageBytes, kWindowBytes);
    window.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, std::max(bytes, kPageBytes))));
    if (window == nullptr) return Exhausted(absl::StrFormat("no memory for a window of %d bytes", bytes), ENOMEM);
  }
  const std::unique_ptr<sync::ThreadExecutor> writer = sync::ThreadExecutor::Create({.name = "neve-output", .background = false});
  if (writer == nullptr) return Exhausted("the system allows no thread for the output", EAGAIN);
  if (digests != nullptr) digests->assign((bytes_ + kDefaultChunkBytes - 1) / kDefaultChunkBytes, {});
  absl::Status status;
  for (uint64_t begin = 0, turn = 0; begin < bytes_ && status.ok(); begin += kWindowBytes, turn = (turn + 1) % kWindows) {
    {
      sync::MutexLock lock(shared.mutex);
      shared.condition.Wait(shared.mutex, [&] { return shared.queued < kWindows - 1 || !shared.status.ok(); });
      status = shared.status;
    }
    if (!status.ok()) break;
    const std::span<std::byte> window(windows[turn].get(), std::min(kWindowBytes, bytes_ - begin));
    status = FillWindow(crew, begin, window);
    if (!status.ok()) break;
    if (digests != nullptr) {
      auto digest = [&](uint64_t chunk, int) {
        const uint64_t at = chunk * kDefaultChunkBytes;
        (*digests)[begin / kDefaultChunkBytes + chunk] =
            codec::DigestOf(window.subspan(at, std::min<uint64_t>(kDefaultChunkBytes, window.size() - at)));
      };
      crew.Run((window.size() + kDefaultChunkBytes - 1) / kDefaultChunkBytes, digest);
    }
    sync::MutexLock lock(shared.mutex);
    ++shared.queued;
    writer->Post([&shared, &sink, &advance, begin, window] {
      bool go_on = false;
      {
        sync::MutexLock inner(shared.mutex);
        go_on = shared.status.ok();
      }
      absl::Status wrote = go_on ? sink(begin, window) : absl::OkStatus();
      if (wrote.ok() && advance) advance(window.size());
      sync::MutexLock inner(shared.mutex);
      if (shared.status.ok()) shared.status = std::move(wrote);
      --shared.queued;
      shared.condition.NotifyAll();
    });
  }
  writer->Stop();   // runs what was posted
  return status.ok() ? shared.status : status;
}

absl::Status WriteFileFrom(const Target& target, OutputStream* stream, std::vector<codec::Digest>* digests,
                           const std::function<LateBytes(std::span<const codec::Digest>)>& late) {
  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<Replacement> file, Replacement::Begin(target.out, stream->bytes()));
  const auto sink = [&](uint64_t offset, std::span<const std::byte> bytes) { return file->Write(offset, bytes); };
  NEVE_RETURN_IF_ERROR(stream->Write(*target.crew, sink, target.advance, digests));
  if (target.check) NEVE_RETURN_IF_ERROR(target.check());
  if (late) {
    const LateBytes bytes = late(*digests);
    NEVE_RETURN_IF_ERROR(file->Write(bytes.offset, std::as_bytes(std::span(bytes.text))));
  }
  return file->Finish(stream->bytes());
}

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Begin(const std::string& path) {
  auto folder = std::make_unique<OutputFolder>();
  folder->target_ = path;
  while (folder->target_.size() > 1 && folder->target_.back() == '/') folder->target_.pop_back();
  if (os::Exists(folder->target_)) {
    const absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder->target_);
    if (!entries.ok() || !entries->empty()) {
      return Invalid(absl::StrFormat("%s is there already; a folder is written under a new name only", path));
    }
  }
  const std::string parent = os::DirName(folder->target_);
  if (const auto there = os::Stat(parent); !there.ok()) {
    return Annotate(there.status(), absl::StrFormat("cannot make %s: its folder", path));
  }
  folder->temporary_ = os::JoinPath(parent, std::string(format::kTemporaryPrefix) + os::RandomHex(16));
  NEVE_RETURN_IF_ERROR(os::Mkdir(folder->temporary_));
  return folder;
}

std::string OutputFolder::Add(const std::string& name) {
  made_.push_back(os::JoinPath(temporary_, name));
  return made_.back();
}

absl::Status OutputFolder::Finish() {
  NEVE_RETURN_IF_ERROR(os::FsyncDirectory(temporary_));
  NEVE_RETURN_IF_ERROR(os::Rename(temporary_, target_));   // over an empty folder at most
  done_ = true;
  return os::FsyncDirectory(os::DirName(target_));
}

OutputFolder::~OutputFolder() {
  if (done_ || temporary_.empty()) return;
  // Already failing: the first error is the one that counts.
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    if (!os::Unlink(*path).ok()) os::Rmdir(*path).IgnoreError();
  }
  os::Rmdir(temporary_).IgnoreError();
}

}  // namespace neve::engine
