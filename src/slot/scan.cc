#include <unistd.h>

#include "base/os/syscalls.h"
#include "slot/folder.h"
#include "slot/slot.h"
#include "slot/slot_header.h"

namespace neve::slot {
namespace {

// Fills `info` from the file. False when the file is none of ours to speak of: gone meanwhile, a link, a fifo, another
// user's.
bool Inspect(const Uid& folder_uid, SlotInfo* info) {
  absl::StatusOr<os::File> file = OpenSlotFile(info->path, /*write=*/false, &info->file_bytes);
  if (!file.ok()) {
    const bool resources = absl::IsResourceExhausted(file.status());  // out of descriptors: say so, do not hide the slot
    if (resources) info->status = file.status();
    return resources;
  }
  absl::StatusOr<HeaderFacts> header = ReadHeader(*file, info->file_bytes);
  if (!header.ok()) {
    info->status = header.status();
    return true;
  }
  info->job.assign(header->geometry.job.data(), header->geometry.job_bytes);
  info->rank = header->geometry.rank;
  info->state = header->state;
  info->owner = header->owner;
  info->owner_alive = header->owner.pid != 0 && os::IsAlive(header->owner);
  info->generation = header->generation;
  info->image_capacity = header->geometry.image_capacity;
  if (header->state == State::kCaptured || header->state == State::kSealed) {
    const IdentityBlock& identity = header->identity;
    info->key = {{identity.incarnation, identity.sequence}, identity.step, identity.rank, identity.world};
    info->image_bytes = identity.image_bytes;
    info->time = identity.time;
  }
  if (header->geometry.uid != folder_uid.bytes) {
    info->status = Damaged(info->path + ": belongs to another job than its folder");
  }
  return true;
}

absl::Status ScanJob(const std::string& ram_folder, const Uid& uid, std::vector<SlotInfo>* slots) {
  const std::string folder = os::JoinPath(ram_folder, uid.ToHex());
  if (absl::Status status = PrivateFolder(folder, /*create=*/false); !status.ok()) {
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }
  absl::StatusOr<std::vector<os::DirectoryEntry>> entries = os::ListDirectory(folder);
  if (absl::IsNotFound(entries.status())) return absl::OkStatus();
  NEVE_RETURN_IF_ERROR(entries.status());
  for (const os::DirectoryEntry& entry : *entries) {
    if (entry.is_directory || !IsSlotName(entry.name)) continue;
    SlotInfo info;
    info.path = os::JoinPath(folder, entry.name);
    info.uid = uid;
    if (Inspect(uid, &info)) slots->push_back(std::move(info));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<SlotInfo>> Scan(const std::string& ram_folder, const Uid& uid) {
  std::vector<SlotInfo> slots;
  if (absl::Status status = PrivateFolder(ram_folder, /*create=*/false); !status.ok()) {
    if (absl::IsNotFound(status)) return slots;
    return status;
  }
  if (uid.known()) {
    NEVE_RETURN_IF_ERROR(ScanJob(ram_folder, uid, &slots));
    return slots;
  }
  NEVE_ASSIGN_OR_RETURN(const std::vector<os::DirectoryEntry> entries, os::ListDirectory(ram_folder));
  for (const os::DirectoryEntry& entry : entries) {
    Uid job;
    if (!entry.is_directory || !Uid::FromHex(entry.name, &job) || job.ToHex() != entry.name) continue;
    NEVE_RETURN_IF_ERROR(ScanJob(ram_folder, job, &slots));
  }
  return slots;
}

}  // namespace neve::slot
