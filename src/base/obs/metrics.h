// Counters, relaxed atomics, fixed at compile time. Each has a unit in its name. Listed in docs/operations.md.
#ifndef NEVE_BASE_OBS_METRICS_H_
#define NEVE_BASE_OBS_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace neve::obs {

enum class Metric : int {
  kSavesStarted, kSavesSkipped, kSavesFailed, kCaptureBytes, kCaptureNanos, kSlotWaitNanos,
  kFileWriteBytes, kFileReadBytes, kFileCommits, kFileRetries, kRamReadBytes, kChunksFailed, kChunksHealed, kImagesRetired,
  kCount,
};
std::string_view Name(Metric metric);  // "saves_started_count", "capture_bytes_total", ...

class Metrics {
 public:
  void Add(Metric metric, uint64_t value = 1) { values_[static_cast<int>(metric)].fetch_add(value, std::memory_order_relaxed); }
  uint64_t Get(Metric metric) const { return values_[static_cast<int>(metric)].load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, static_cast<int>(Metric::kCount)> values_{};
};

}  // namespace neve::obs

#endif  // NEVE_BASE_OBS_METRICS_H_
