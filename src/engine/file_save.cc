// Single files: one .safetensors file, atomic and durable.
//
//   1  a file is made in the target's folder, its room reserved: without a name where the file system can (a kill leaves
//      nothing), else as `.tmp-<nonce>`                                            -> the old file, and a temporary perhaps
//   2  the image is written window by window                                       -> the same
//   3  fsync of the file                                                            -> the same
//   4  named `.tmp-<nonce>`, and renamed over the target                            -> the old file or the new one, whole
//   5  fsync of the folder                                                          -> the new one
// Any failure removes the temporary and leaves the old file as it was.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "base/sync/crew.h"
#include "base/sync/executor.h"
#include "engine/state.h"
#include "engine/ticket.h"
#include "format/names.h"

namespace neve {
namespace {

constexpr uint64_t kWindowBytes = 16 * kDefaultChunkBytes;   // 64 MiB staged at most

struct FreeDeleter {
  void operator()(void* pointer) const { std::free(pointer); }
};
using Window = std::unique_ptr<std::byte[], FreeDeleter>;

Window AllocateWindow(uint64_t bytes) {
  return Window(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes)));
}

std::string Absolute(const std::string& path) {
  if (path.starts_with('/')) return path;
  const std::unique_ptr<char[], FreeDeleter> folder(::getcwd(nullptr, 0));
  return folder == nullptr ? path : os::JoinPath(folder.get(), path);   // gone: the call that uses the path says so
}

// The new file, until it takes the target's name.
class Replacement {
 public:
  static absl::StatusOr<std::unique_ptr<Replacement>> Begin(const std::string& path, uint64_t bytes) {
    auto replacement = std::make_unique<Replacement>();
    // A link stays a link: the file it points at is replaced, or made. The program may change its folder while the save goes on.
    NEVE_ASSIGN_OR_RETURN(replacement->target_, os::FollowLinks(Absolute(path)));
    const std::string folder = os::DirName(replacement->target_);
    if (auto there = os::Stat(folder); !there.ok()) {
      return Annotate(there.status(), absl::StrFormat("cannot save %s: its folder", path));
    }
    mode_t mode = 0666;
    bool keep_mode = false;
    if (auto old = os::Stat(replacement->target_); old.ok()) {
      if (S_ISDIR(old->st_mode)) return Unavailable(absl::StrFormat("cannot save %s: a folder has that name", path), EISDIR);
      if (!S_ISREG(old->st_mode)) return Invalid(absl::StrFormat("cannot save %s: it is not a regular file", path));
      mode = old->st_mode & 07777;
      keep_mode = true;
    }
    replacement->temporary_ = os::JoinPath(folder, std::string(format::kTemporaryPrefix) + os::RandomHex(16));
    absl::StatusOr<os::File> file = os::OpenUnnamed(replacement->temporary_);
    if (ErrnoOf(file.status()) == EOPNOTSUPP) {
      file = os::Open(replacement->temporary_, O_CREAT | O_EXCL | O_RDWR, 0666);
      replacement->named_ = file.ok();
    }
    NEVE_RETURN_IF_ERROR(file.status());
    replacement->file_ = *std::move(file);
    if (keep_mode && ::fchmod(replacement->file_.fd.get(), mode) != 0) {
      return ErrnoStatus(errno, absl::StrFormat("cannot give %s the mode of %s", replacement->temporary_, path));
    }
    NEVE_RETURN_IF_ERROR(os::Fallocate(replacement->file_, bytes));
    return replacement;
  }
  ~Replacement() {
    if (named_) os::Unlink(temporary_).IgnoreError();   // already failing: the first error is the one that counts
  }
  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) {
    NEVE_RETURN_IF_ERROR(os::WriteAt(file_, offset, bytes));
    // Dirty pages go out as the save goes on, so that a container's page cache does not grow with the file.
    ::sync_file_range(file_.fd.get(), static_cast<off64_t>(offset), static_cast<off64_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
    if (offset >= 2 * kWindowBytes) {
      const auto old = static_cast<off64_t>(offset - 2 * kWindowBytes);
      ::sync_file_range(file_.fd.get(), old, static_cast<off64_t>(kWindowBytes),
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      ::posix_fadvise(file_.fd.get(), old, static_cast<off64_t>(kWindowBytes), POSIX_FADV_DONTNEED);
    }
    return absl::OkStatus();
  }
  absl::Status Finish(uint64_t bytes) {
    NEVE_RETURN_IF_ERROR(os::Ftruncate(file_, bytes));
    NEVE_RETURN_IF_ERROR(os::Fsync(file_));
    if (!named_) NEVE_RETURN_IF_ERROR(os::Name(file_));
    named_ = true;
    NEVE_RETURN_IF_ERROR(os::Rename(temporary_, target_));
    named_ = false;
    return os::FsyncDirectory(os::DirName(target_));
  }

 private:
  std::string target_, temporary_;
  os::File file_;
  bool named_ = false;   // the temporary has its name, and is to be removed after a failure
};

absl::StatusOr<std::shared_ptr<const capture::CapturePlan>> PlanOf(const std::shared_ptr<State>& state,
                                                                   std::span<const void* const> addresses,
                                                                   std::string_view values,
                                                                   std::span<const std::string_view> blobs) {
  if (state == nullptr) return Invalid("a save needs a state");
  NEVE_RETURN_IF_ERROR(state->Check(addresses, values, blobs));
  std::vector<uint64_t> blob_bytes;
  for (std::string_view blob : blobs) blob_bytes.push_back(blob.size());
  return state->PlanFor(addresses, values.size(), blob_bytes);
}

}  // namespace

absl::Status SaveFile(const std::string& path, const std::shared_ptr<State>& state, std::span<const void* const> addresses,
                      std::string_view values, std::span<const std::string_view> blobs) {
  NEVE_ASSIGN_OR_RETURN(const auto plan, PlanOf(state, addresses, values, blobs));
  const uint64_t bytes = plan->layout().image_bytes();
  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<Replacement> file, Replacement::Begin(path, bytes));
  const uint64_t window_bytes = std::min(bytes, kWindowBytes);
  const Window window = AllocateWindow(window_bytes);
  if (window == nullptr) return Exhausted(absl::StrFormat("no memory for a window of %d bytes", window_bytes), ENOMEM);
  const auto crew = sync::Crew::Create(bytes < kDefaultChunkBytes ? 0 : std::min(sync::UsableCores() - 1, 8));
  std::vector<codec::Digest> digests(kWindowBytes / kDefaultChunkBytes);
  const capture::CaptureInput input{addresses, values, blobs};
  for (uint64_t begin = 0; begin < bytes; begin += kWindowBytes) {
    const uint64_t end = std::min(begin + kWindowBytes, bytes);
    const uint64_t chunks = (end - begin + kDefaultChunkBytes - 1) / kDefaultChunkBytes;
    NEVE_RETURN_IF_ERROR(plan->RunRange(input, begin, end, {window.get(), end - begin}, std::span(digests).first(chunks), *crew));
    NEVE_RETURN_IF_ERROR(file->Write(begin, {window.get(), end - begin}));
  }
  return file->Finish(bytes);
}

absl::StatusOr<std::shared_ptr<Ticket>> SaveFileAsync(const std::string& path, const std::shared_ptr<State>& state,
                                                      std::span<const void* const> addresses, std::string_view values,
                                                      std::span<const std::string_view> blobs) {
  NEVE_ASSIGN_OR_RETURN(const auto plan, PlanOf(state, addresses, values, blobs));
  const uint64_t bytes = plan->layout().image_bytes();
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Replacement> file, Replacement::Begin(path, bytes));
  auto image = std::make_shared<Window>(AllocateWindow(bytes));
  if (*image == nullptr) return Exhausted(absl::StrFormat("no memory to stage an image of %d bytes", bytes), ENOMEM);
  const auto crew = sync::Crew::Create(bytes < kDefaultChunkBytes ? 0 : std::min(sync::UsableCores() - 1, 8));
  std::vector<codec::Digest> digests(plan->chunk_count());
  NEVE_RETURN_IF_ERROR(plan->Run({addresses, values, blobs}, {image->get(), bytes}, digests, *crew));
  auto ticket = std::make_shared<TicketImpl>(0, SaveId{}, std::vector<std::string>{"file"});
  ticket->Reached("captured");
  // One executor for all asynchronous file saves of the process, never destroyed: its tasks hold what they need.
  static sync::ThreadExecutor* const writer = sync::ThreadExecutor::Create({.name = "neve-files"}).release();
  auto shared_file = std::shared_ptr<Replacement>(std::move(file));
  writer->Post([shared_file, image, bytes, ticket, path]() mutable {
    absl::Status status;
    for (uint64_t begin = 0; begin < bytes && status.ok(); begin += kWindowBytes) {
      const uint64_t end = std::min(begin + kWindowBytes, bytes);
      status = shared_file->Write(begin, {image->get() + begin, end - begin});
    }
    if (status.ok()) status = shared_file->Finish(bytes);
    shared_file.reset();
    image.reset();
    if (status.ok()) {
      ticket->Reached("file", path);
    } else {
      ticket->Failed("file", std::move(status));
    }
  });
  return std::static_pointer_cast<Ticket>(ticket);
}

}  // namespace neve
