#include "storage/file/transfer.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/file/kernel_file.h"

namespace neve::storage {
namespace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeMemory>;

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kBlockBytes == 0; }

class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(std::shared_ptr<TierCore> core, std::shared_ptr<ImageFile> file, uint64_t offset, const std::byte* source,
           std::byte* target, uint64_t bytes, Done done)
      : core_(std::move(core)),
        file_(std::move(file)),
        offset_(offset),
        source_(source),
        target_(target),
        bytes_(bytes),
        done_(std::move(done)) {}

  void Start() {
    if (file_->direct && offset_ % kBlockBytes != 0) {
      return done_(Invalid(absl::StrFormat("%s: offset %u is not a multiple of %u", file_->file.path, offset_, kBlockBytes)));
    }
    if (bytes_ == 0) return done_(absl::OkStatus());
    if (file_->direct && !IsAligned(source_ != nullptr ? source_ : target_)) {
      bounce_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kPieceBytes)));
      if (bounce_ == nullptr) {
        return done_(
            Exhausted(absl::StrFormat("%s: no memory for a bounce buffer of %u bytes", file_->file.path, kPieceBytes), ENOMEM));
      }
    }
    SubmitMore();
  }

 private:
  // The ring queues what exceeds its depth, so all pieces go at once; bounced ones share a buffer and go one by one.
  void SubmitMore() {
    while (status_.ok() && next_ < bytes_ && (bounce_ == nullptr || in_flight_ == 0)) {
      const uint64_t begin = next_;
      next_ = std::min(bytes_, begin + kPieceBytes);
      Submit(begin, next_ - begin);
    }
  }

  void Submit(uint64_t begin, uint64_t bytes) {
    ++in_flight_;
    const bool direct = file_->direct;
    const uint64_t moved = direct ? RoundUpToBlock(bytes) : bytes;
    auto done = [self = shared_from_this(), begin, bytes, direct](absl::StatusOr<uint64_t> result) {
      self->Completed(begin, bytes, direct, std::move(result));
    };
    if (source_ != nullptr) {
      const std::byte* from = source_ + begin;
      if (bounce_ != nullptr) {
        std::memcpy(bounce_.get(), from, bytes);
        std::memset(bounce_.get() + bytes, 0, moved - bytes);
        from = bounce_.get();
      }
      core_->loop->ring().Write(file_->file, offset_ + begin, {from, moved}, std::move(done));
    } else {
      std::byte* to = bounce_ != nullptr ? bounce_.get() : target_ + begin;
      core_->loop->ring().Read(file_->file, offset_ + begin, {to, moved}, std::move(done));
    }
  }

  void Completed(uint64_t begin, uint64_t bytes, bool direct, absl::StatusOr<uint64_t> result) {
    --in_flight_;
    if (!result.ok() && direct && ErrnoOf(result.status()) == EINVAL && status_.ok()) {
      if (file_->direct) {
        file_->direct = false;
        core_->SayBuffered(file_->file.path, std::string(result.status().message()));
        if (absl::Status stopped = StopDirectTransfers(file_->file); !stopped.ok()) status_.Update(stopped);
      }
      if (status_.ok()) return Submit(begin, bytes);
    }
    if (!result.ok()) {
      status_.Update(result.status());
    } else if (*result < bytes) {
      status_.Update(Damaged(absl::StrFormat("%s: %u bytes wanted at offset %u, the file ends after %u", file_->file.path, bytes,
                                             offset_ + begin, *result)));
    } else {
      Arrived(begin, bytes, direct);
    }
    SubmitMore();
    if (in_flight_ == 0) std::exchange(done_, nullptr)(status_);
  }

  void Arrived(uint64_t begin, uint64_t bytes, bool direct) {
    if (source_ == nullptr && bounce_ != nullptr) std::memcpy(target_ + begin, bounce_.get(), bytes);
    if (direct) return;
    if (source_ != nullptr) {
      core_->write_behind.Wrote(file_, offset_ + begin, bytes);
      status_.Update(file_->writeback);
    } else if (!file_->shared) {
      DropCachedPages(file_->file, offset_ + begin, bytes);
    }
  }

  const std::shared_ptr<TierCore> core_;
  const std::shared_ptr<ImageFile> file_;
  const uint64_t offset_;
  const std::byte* const source_;  // a write, or
  std::byte* const target_;        // a read
  const uint64_t bytes_;
  Done done_;
  AlignedBuffer bounce_;
  uint64_t next_ = 0;  // where the first piece not yet submitted begins
  int in_flight_ = 0;
  absl::Status status_;
};

}  // namespace

void WriteRange(const std::shared_ptr<TierCore>& core, std::shared_ptr<ImageFile> file, uint64_t offset,
                std::span<const std::byte> source, Done done) {
  std::make_shared<Transfer>(core, std::move(file), offset, source.data(), nullptr, source.size(), std::move(done))->Start();
}

void ReadRange(const std::shared_ptr<TierCore>& core, std::shared_ptr<ImageFile> file, uint64_t offset,
               std::span<std::byte> target, Done done) {
  std::make_shared<Transfer>(core, std::move(file), offset, nullptr, target.data(), target.size(), std::move(done))->Start();
}

}  // namespace neve::storage
