#include "device/registrations.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"

namespace neve::device {

Registrations::~Registrations() {
  sync::MutexLock lock(mutex_);
  for (auto& [begin, region] : regions_) UnregisterLocked(region);
}

absl::Status Registrations::TryLocked(std::byte* begin, Region& region, uint64_t piece_bytes) {
  for (uint64_t at = 0; at < region.bytes; at += piece_bytes) {
    const std::span<std::byte> piece(begin + at, std::min(piece_bytes, region.bytes - at));
    absl::Status status = device_->RegisterHost(piece);
    if (absl::IsAlreadyExists(status) && device_->UnregisterHost(piece.data()).ok()) status = device_->RegisterHost(piece);
    if (!status.ok()) {
      UnregisterLocked(region);
      return status;
    }
    region.pieces.push_back(piece.data());
  }
  return absl::OkStatus();
}

void Registrations::RegisterLocked(std::byte* begin, Region& region) {
  constexpr uint64_t kPieces[] = {uint64_t{1} << 30, uint64_t{256} << 20, uint64_t{64} << 20};
  absl::Status status;
  for (size_t i = 0; i < std::size(kPieces); ++i) {
    if (i > 0 && kPieces[i] >= region.bytes && kPieces[i - 1] >= region.bytes) continue;  // the same call again
    status = TryLocked(begin, region, kPieces[i]);
    if (status.ok()) return;
  }
  if (!told_) {
    obs::Log(obs::Level::kWarning,
             absl::StrFormat("event=unpinned bytes=%d error=\"%s\" advice=\"copies from the device are slower; "
                             "raise the memlock limit\"",
                             region.bytes, std::string(status.message())));
    told_ = true;
  }
}

void Registrations::UnregisterLocked(Region& region) {
  for (std::byte* piece : region.pieces) {
    if (const absl::Status status = device_->UnregisterHost(piece); !status.ok()) {
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=unregister_failed error=\"%s\"", std::string(status.message())));
    }
  }
  region.pieces.clear();
}

void Registrations::Attach(std::span<std::byte> region) {
  sync::MutexLock lock(mutex_);
  Region& added = regions_[region.data()];
  added.bytes = region.size();
  if (device_ != nullptr) RegisterLocked(region.data(), added);
}

void Registrations::Detach(std::span<std::byte> region) {
  sync::MutexLock lock(mutex_);
  const auto found = regions_.find(region.data());
  if (found == regions_.end()) return;
  UnregisterLocked(found->second);
  regions_.erase(found);
}

void Registrations::UseDevice(const std::shared_ptr<Device>& device) {
  sync::MutexLock lock(mutex_);
  if (device_ != nullptr) return;
  device_ = device;
  for (auto& [begin, region] : regions_) RegisterLocked(begin, region);
}

bool Registrations::Covers(std::span<const std::byte> memory) const {
  sync::MutexLock lock(mutex_);
  auto found = regions_.upper_bound(const_cast<std::byte*>(memory.data()));
  if (found == regions_.begin()) return false;
  --found;
  return !found->second.pieces.empty() && memory.data() + memory.size() <= found->first + found->second.bytes;
}

}  // namespace neve::device
