// Tensors are measured in groups: many small ones at once, each by one worker; a large one alone, window by window, where the
// crew reads and measures a window while one of it digests the window before.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/codec/stream_digest.h"
#include "base/sync/crew.h"
#include "base/sync/mutex.h"
#include "engine/files_source.h"
#include "format/read_box.h"
#include "neve/files.h"
#include "tensor/numbers.h"

namespace neve {
namespace {

using engine::Source;
using engine::SourceTensor;

constexpr uint64_t kPieceBytes = 4u << 20;
constexpr uint64_t kWindowPieces = 12;
constexpr int kHelpersMax = 15;   // a worker holds a piece, its read twice that at most

class Measurer {
 public:
  Measurer(const Source& source, const Progress& progress, StatsReport* report)
      : source_(source), progress_(progress), report_(report),
        crew_(sync::Crew::Create(source.bytes < kPieceBytes ? 0 : std::min(sync::UsableCores() - 1, kHelpersMax))) {}

  absl::Status Run() {
    report_->tensors.resize(source_.tensors.size());
    size_t i = 0;
    while (i < source_.tensors.size()) {
      if (source_.tensors[i].bytes > kPieceBytes) {
        NEVE_RETURN_IF_ERROR(MeasureLarge(i++));
        continue;
      }
      constexpr size_t kGroup = 256;   // progress is told, and failures are seen, between groups
      size_t end = i;
      while (end < source_.tensors.size() && end - i < kGroup && source_.tensors[end].bytes <= kPieceBytes) ++end;
      NEVE_RETURN_IF_ERROR(MeasureSmall(i, end));
      i = end;
    }
    return absl::OkStatus();
  }

 private:
  void Fill(size_t index, const tensor::NumberSummary& summary, const codec::Digest& digest) {
    const SourceTensor& tensor = source_.tensors[index];
    TensorStats& stats = report_->tensors[index];
    stats = {tensor.name, tensor.tensor->dtype, tensor.tensor->shape, tensor.bytes, summary.zeros(), summary.nan(), summary.inf(),
             summary.finite(), summary.min(), summary.max(), summary.mean(), summary.Deviation(), digest.ToHex()};
  }

  void Advance(uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, source_.bytes);
  }

  absl::Status MeasureSmall(size_t begin, size_t end) {
    std::vector<std::vector<std::byte>> memory(static_cast<size_t>(crew_->threads()));
    std::vector<absl::Status> statuses(end - begin);
    uint64_t bytes = 0;
    for (size_t i = begin; i < end; ++i) bytes += source_.tensors[i].bytes;
    auto measure = [&](uint64_t part, int worker) {
      const SourceTensor& tensor = source_.tensors[begin + part];
      std::vector<std::byte>& items = memory[static_cast<size_t>(worker)];
      items.resize(tensor.bytes);
      statuses[part] = format::ReadElements(*source_.contents, *tensor.tensor, 0, tensor.elements, items);
      if (!statuses[part].ok()) return;
      tensor::NumberSummary summary;
      summary.Add(tensor.tensor->dtype, items);
      Fill(begin + part, summary, codec::DigestOf(items));
    };
    crew_->Run(end - begin, measure);
    for (const absl::Status& status : statuses) NEVE_RETURN_IF_ERROR(status);
    Advance(bytes);
    return absl::OkStatus();
  }

  absl::Status MeasureLarge(size_t index) {
    const SourceTensor& tensor = source_.tensors[index];
    const uint64_t item_bytes = ItemBytes(tensor.tensor->dtype), piece_items = kPieceBytes / item_bytes;
    const uint64_t piece_bytes = piece_items * item_bytes, window_bytes = piece_bytes * kWindowPieces;
    for (std::vector<std::byte>& window : windows_) window.resize(window_bytes);
    tensor::NumberSummary summary;
    codec::StreamDigest digest;
    uint64_t digested = 0;   // bytes of the window before this one
    for (uint64_t begin = 0, turn = 0; begin < tensor.bytes || digested > 0; begin += window_bytes, turn ^= 1) {
      const uint64_t bytes = begin < tensor.bytes ? std::min(window_bytes, tensor.bytes - begin) : 0;
      const uint64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
      std::vector<absl::Status> statuses(pieces);
      std::vector<tensor::NumberSummary> summaries(pieces);
      // The first part takes longest and is handed out first.
      auto work = [&](uint64_t part, int) {
        if (part == 0) return digest.Add(std::span(windows_[turn ^ 1]).first(digested));
        const uint64_t at = (part - 1) * piece_bytes;
        const std::span<std::byte> piece = std::span(windows_[turn]).subspan(at, std::min(piece_bytes, bytes - at));
        statuses[part - 1] = format::ReadElements(*source_.contents, *tensor.tensor, (begin + at) / item_bytes,
                                                  piece.size() / item_bytes, piece);
        if (statuses[part - 1].ok()) summaries[part - 1].Add(tensor.tensor->dtype, piece);
      };
      crew_->Run(pieces + 1, work);
      for (const absl::Status& status : statuses) NEVE_RETURN_IF_ERROR(status);
      for (const tensor::NumberSummary& part : summaries) summary.Merge(part);
      digested = bytes;
      Advance(bytes);
    }
    Fill(index, summary, digest.Finish());
    return absl::OkStatus();
  }

  const Source& source_;
  const Progress& progress_;
  StatsReport* report_;
  std::unique_ptr<sync::Crew> crew_;
  std::vector<std::byte> windows_[2];
  uint64_t done_ = 0;
};

}  // namespace

absl::StatusOr<StatsReport> MeasurePlace(const std::string& place, const SourceOptions& options, const Progress& progress) {
  NEVE_ASSIGN_OR_RETURN(const Source source, engine::OpenSource(place, options));
  NEVE_RETURN_IF_ERROR(engine::CheckLogicalSize(source));
  StatsReport report;
  report.kind = source.kind;
  report.notes = source.notes;
  NEVE_RETURN_IF_ERROR(Measurer(source, progress, &report).Run());
  NEVE_RETURN_IF_ERROR(source.contents->CheckRead());
  return report;
}

}  // namespace neve
