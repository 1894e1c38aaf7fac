#include "base/obs/metrics.h"

namespace neve::obs {

std::string_view Name(Metric metric) {
  switch (metric) {
    case Metric::kSavesStarted: return "saves_started_count";
    case Metric::kSavesSkipped: return "saves_skipped_count";
    case Metric::kSavesFailed: return "saves_failed_count";
    case Metric::kCaptureBytes: return "capture_bytes_total";
    case Metric::kCaptureNanos: return "capture_ns_total";
    case Metric::kSlotWaitNanos: return "slot_wait_ns_total";
    case Metric::kFileWriteBytes: return "file_write_bytes_total";
    case Metric::kFileReadBytes: return "file_read_bytes_total";
    case Metric::kFileCommits: return "file_commits_count";
    case Metric::kFileRetries: return "file_retries_count";
    case Metric::kRamReadBytes: return "ram_read_bytes_total";
    case Metric::kChunksFailed: return "chunks_failed_count";
    case Metric::kChunksHealed: return "chunks_healed_count";
    case Metric::kImagesRetired: return "images_retired_count";
    case Metric::kCount: break;
  }
  return "";
}

}  // namespace neve::obs
