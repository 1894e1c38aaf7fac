// One save from job folder to job folder.
//
//   1  every record is read; images and records that are at the target already are verified and left
//   2  each image: read chunk by chunk and verified, written as `.tmp-<nonce>` beside its name, fsync, read again from the disk and
//      verified, renamed; then fsync of the folder                          -> images without records: nothing, to all readers
//   3  each record, as it is; fsync of the folder                           -> the save
// Any failure leaves at most images without records, which the next life of the job or `neve gc` removes.
#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "base/sync/crew.h"
#include "engine/convert.h"
#include "engine/places_choose.h"
#include "format/names.h"
#include "neve/files.h"

namespace neve {
namespace {

using engine::FoundImage;
using engine::FoundStep;

struct Share {
  FoundImage from;
  std::string record_text;
  format::CommitRecord record;
  std::string image_path, record_path;   // at the target
};

absl::Status CheckShare(const Share& share) {
  const format::CommitRecord& record = share.record;
  if (share.from.image_bytes != record.image_bytes) {
    return Damaged(absl::StrFormat("%s has %d bytes, its record says %d", share.from.image_path, share.from.image_bytes,
                                   record.image_bytes));
  }
  if (record.digests.size() != record.chunk_count()) {
    return Damaged(absl::StrFormat("%s: %d digests for %d chunks", share.from.record_path, record.digests.size(),
                                   record.chunk_count()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Share>> ReadShares(const FoundStep& step) {
  std::vector<Share> shares;
  for (const FoundImage& image : step.images) {
    if (image.image_path.empty()) return Damaged(absl::StrFormat("%s is there, its image is not", image.record_path));
    if (image.record_path.empty()) {
      return Damaged(absl::StrFormat("%s has no commit record: it is not part of any save", image.image_path));
    }
    Share share;
    share.from = image;
    NEVE_ASSIGN_OR_RETURN(share.record_text, os::ReadFile(image.record_path, format::kRecordBytesMax));
    absl::StatusOr<format::CommitRecord> record = format::DecodeRecord(share.record_text);
    if (!record.ok()) return Damaged(absl::StrFormat("%s: %s", image.record_path, std::string(record.status().message())));
    share.record = *std::move(record);
    NEVE_RETURN_IF_ERROR(CheckShare(share));
    shares.push_back(std::move(share));
  }
  if (shares.empty()) return Damaged(absl::StrFormat("%s holds no image", step.path));
  const uint32_t world = shares[0].record.key.world;
  if (shares.size() != world) {
    return Damaged(absl::StrFormat("%s holds %d of %d ranks; only a complete save is copied", step.path, shares.size(), world));
  }
  return shares;
}

class Copier {
 public:
  Copier(const Progress& progress, uint64_t total)
      : progress_(progress), total_(total), crew_(sync::Crew::Create(std::min(sync::UsableCores() - 1, 7))) {}

  // Every chunk of an image against the record; written to `target` on the way, when there is one.
  absl::Status Run(const os::File& from, const format::CommitRecord& record, const os::File* target) {
    const uint64_t window_chunks = std::max<uint64_t>(1, kWindowBytes / record.chunk_bytes);
    const uint64_t window_bytes = window_chunks * record.chunk_bytes;
    std::vector<std::byte> window(std::min(window_bytes, record.image_bytes));
    for (uint64_t begin = 0; begin < record.image_bytes; begin += window_bytes) {
      const uint64_t end = std::min(begin + window_bytes, record.image_bytes), first = begin / record.chunk_bytes;
      const uint64_t chunks = (end - begin + record.chunk_bytes - 1) / record.chunk_bytes;
      std::vector<absl::Status> statuses(chunks);
      auto copy = [&](uint64_t part, int) {
        const uint64_t at = part * record.chunk_bytes;
        const std::span<std::byte> chunk = std::span(window).subspan(at, record.ChunkBytesAt(first + part));
        absl::Status status = os::ReadAt(from, begin + at, chunk);
        if (status.ok() && codec::DigestOf(chunk) != record.digests[first + part]) {
          status = DataLoss(absl::StrFormat("%s: chunk %d (offset %d) differs from its digest; not copied", from.path, first + part,
                                            begin + at));
        }
        if (status.ok() && target != nullptr) status = os::WriteAt(*target, begin + at, chunk);
        statuses[part] = std::move(status);
      };
      crew_->Run(chunks, copy);
      for (const absl::Status& status : statuses) NEVE_RETURN_IF_ERROR(status);
      if (target != nullptr) {   // goes out to the disk while the next window is read
        ::sync_file_range(target->fd.get(), static_cast<off64_t>(begin), static_cast<off64_t>(end - begin), SYNC_FILE_RANGE_WRITE);
      }
      done_ += end - begin;
      if (progress_) progress_(done_, total_);
    }
    return absl::OkStatus();
  }

 private:
  static constexpr uint64_t kWindowBytes = 64u << 20;
  const Progress& progress_;
  uint64_t total_, done_ = 0;
  std::unique_ptr<sync::Crew> crew_;
};

absl::Status CopyImage(const Share& share, Copier* copier) {
  NEVE_ASSIGN_OR_RETURN(const os::File from, os::Open(share.from.image_path, O_RDONLY));
  const std::string temporary = os::JoinPath(os::DirName(share.image_path), std::string(format::kTemporaryPrefix) + os::RandomHex(16));
  const auto write = [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const os::File to, os::Open(temporary, O_CREAT | O_EXCL | O_RDWR));
    NEVE_RETURN_IF_ERROR(os::Fallocate(to, share.record.image_bytes));
    NEVE_RETURN_IF_ERROR(copier->Run(from, share.record, &to));
    NEVE_RETURN_IF_ERROR(os::Fsync(to));
    // What is clean in the page cache can be dropped, so that the disk is asked for what it holds.
    ::posix_fadvise(to.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    NEVE_RETURN_IF_ERROR(copier->Run(to, share.record, nullptr));
    return os::Rename(temporary, share.image_path);
  };
  absl::Status status = write();
  if (!status.ok()) os::Unlink(temporary).IgnoreError();   // the first error is the one that counts
  return status;
}

// The step folder at the target, and the job's identity there.
absl::StatusOr<std::string> TargetStep(const std::string& to, const Share& share, const std::string& step_name) {
  const std::string path = to.starts_with("file:") ? to.substr(5) : to;
  if (to.starts_with("ram:") || to.find("://") != std::string::npos || to.starts_with("peer:") || to.starts_with("agent:")) {
    return Unsupported(absl::StrFormat("%s: saves are copied between folders in this version", to));
  }
  std::string job = path;
  while (job.size() > 1 && job.back() == '/') job.pop_back();
  if (os::BaseName(job) == step_name) {
    job = os::DirName(job);
  } else if (os::Exists(job)) {
    NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(path));
    switch (info.kind) {
      case PlaceKind::kRoot: job = os::JoinPath(job, share.record.job); break;
      case PlaceKind::kJobFolder:
      case PlaceKind::kEmptyFolder: break;
      case PlaceKind::kStepFolder: return Invalid(absl::StrFormat("%s is another save; give its job folder", to));
      default: return Invalid(absl::StrFormat("%s is no job folder: %s", to, info.what.empty() ? "a file" : info.what));
    }
  }
  return os::JoinPath(job, step_name);
}

absl::Status EnsureJob(const std::string& job, const Share& share) {
  NEVE_RETURN_IF_ERROR(os::MakeDirs(job));
  const std::string path = os::JoinPath(job, std::string(format::kJobFile));
  if (!os::Exists(path)) {
    return os::WriteFileExclusive(path, format::EncodeJobIdentity({share.record.job, share.record.uid}));
  }
  NEVE_ASSIGN_OR_RETURN(const engine::FoundJob there, engine::ReadJob(job));
  NEVE_RETURN_IF_ERROR(there.damage);
  if (there.uid == share.record.uid) return absl::OkStatus();
  return Invalid(absl::StrFormat("%s is job %s of uid %s, the save is of job %s of uid %s; give another folder", job, there.name,
                                 there.uid.ToHex(), share.record.job, share.record.uid.ToHex()));
}

}  // namespace

absl::StatusOr<CopyReport> CopySave(const std::string& from, const std::string& to, int64_t step, const Progress& progress) {
  NEVE_ASSIGN_OR_RETURN(const PlaceInfo info, ResolvePlace(from));
  if (info.kind != PlaceKind::kStepFolder && info.kind != PlaceKind::kJobFolder) {
    return Unsupported(absl::StrFormat("%s is no save of neve%s; `neve convert` writes files of other kinds, `neve recover` brings "
                                       "RAM to files", from, info.what.empty() ? "" : " but " + info.what));
  }
  CopyReport report;
  NEVE_ASSIGN_OR_RETURN(const FoundStep source, engine::ChooseStep(info, from, step, &report.notes));
  NEVE_ASSIGN_OR_RETURN(std::vector<Share> shares, ReadShares(source));
  const format::CommitRecord& record = shares[0].record;
  const std::string step_name = format::FormatSaveName({record.key.step, record.key.save});
  report.from = source.path;
  NEVE_ASSIGN_OR_RETURN(report.to, TargetStep(to, shares[0], step_name));
  if (const auto a = os::Stat(report.from), b = os::Stat(report.to); a.ok() && b.ok() && a->st_dev == b->st_dev && a->st_ino == b->st_ino) {
    return Invalid(absl::StrFormat("%s is what is read", report.to));
  }
  // What is there already decides before anything is made.
  uint64_t total = 0;
  report.already_there = true;
  for (Share& share : shares) {
    share.image_path = os::JoinPath(report.to, format::FormatImageName(share.record.key.rank, share.record.key.world));
    share.record_path = os::JoinPath(report.to, format::FormatRecordName(share.record.key.rank, share.record.key.world));
    total += share.record.image_bytes;
    if (!os::Exists(share.record_path)) {
      report.already_there = false;
      total += share.record.image_bytes;   // read, and read again
      continue;
    }
    NEVE_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(share.record_path, format::kRecordBytesMax));
    if (text != share.record_text) {
      return Invalid(absl::StrFormat("%s is there and differs: it is another save of that name; nothing was written",
                                     share.record_path));
    }
  }
  Copier copier(progress, total);
  const std::string job = os::DirName(report.to);
  if (!report.already_there) {
    NEVE_RETURN_IF_ERROR(EnsureJob(job, shares[0]));
    NEVE_RETURN_IF_ERROR(os::MakeDirs(report.to));
  }
  for (const Share& share : shares) {
    ++report.images;
    report.bytes += share.record.image_bytes;
    if (!os::Exists(share.record_path)) {
      NEVE_RETURN_IF_ERROR(CopyImage(share, &copier));
      continue;
    }
    NEVE_ASSIGN_OR_RETURN(const os::File there, os::Open(share.image_path, O_RDONLY));
    NEVE_RETURN_IF_ERROR(copier.Run(there, share.record, nullptr));
  }
  if (report.already_there) return report;
  NEVE_RETURN_IF_ERROR(os::FsyncDirectory(report.to));
  NEVE_RETURN_IF_ERROR(os::FsyncDirectory(job));
  for (const Share& share : shares) {
    if (!os::Exists(share.record_path)) NEVE_RETURN_IF_ERROR(os::WriteFileExclusive(share.record_path, share.record_text));
  }
  return report;
}

}  // namespace neve
