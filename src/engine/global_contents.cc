#include "engine/global_contents.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/sync/crew.h"
#include "engine/global_compare.h"
#include "engine/global_image.h"
#include "engine/opened_image.h"

namespace neve::engine {
namespace {

constexpr uint64_t kPieceBytes = 4u << 20;   // read at once where elements of a box do not lie side by side
constexpr int kReadersMax = 7;

// Whether plain tensors and blobs of the ranks are equal.
absl::StatusOr<std::vector<bool>> Compare(std::span<const GlobalContents::Rank> ranks, std::span<const format::Comparison> comparisons) {
  if (comparisons.empty()) return std::vector<bool>();
  const std::shared_ptr<sync::Crew> crew = sync::Crew::Create(std::min(sync::UsableCores() - 1, kReadersMax));
  std::vector<std::unique_ptr<RankFile>> images;
  for (const GlobalContents::Rank& rank : ranks) {
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<RankFile> image, OpenRankFile(rank.contents->files().front(), crew));
    images.push_back(std::move(image));
  }
  return CompareBytes(images, comparisons);
}

}  // namespace

GlobalContents::GlobalContents(std::vector<Rank> ranks, format::GlobalImage global)
    : ranks_(std::move(ranks)), global_(std::move(global)), distances_(ranks_.size(), 0) {
  for (const Rank& rank : ranks_) files_.push_back(rank.contents->files().front());
}

absl::StatusOr<std::unique_ptr<GlobalContents>> GlobalContents::Open(std::vector<Rank> ranks) {
  std::vector<format::RankImage> images;
  for (const Rank& rank : ranks) images.push_back({rank.rank, &rank.contents->header(), rank.contents->tensors()});
  const auto read = [&ranks](uint32_t image, uint64_t offset, std::span<std::byte> target) {
    return ranks[image].contents->Read(offset, target);
  };
  NEVE_ASSIGN_OR_RETURN(const auto merge,
                        format::GlobalMerge::Begin(std::move(images), {.differing = format::Differing::kByRank}, read));
  NEVE_ASSIGN_OR_RETURN(const std::vector<bool> equal, Compare(ranks, merge->comparisons()));
  NEVE_ASSIGN_OR_RETURN(format::GlobalImage global, merge->Finish(equal));
  return std::unique_ptr<GlobalContents>(new GlobalContents(std::move(ranks), std::move(global)));
}

std::vector<uint32_t> GlobalContents::RanksOf(size_t entry) const {
  std::vector<uint32_t> ranks;
  for (const format::GlobalCopy& copy : global_.entries[entry].copies) ranks.push_back(ranks_[copy.image].rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// What one rank holds as it is.
std::vector<format::Extent> GlobalContents::Locate(uint64_t offset, uint64_t bytes) const {
  if (offset < global_.header_text.size() || offset >= image_bytes() || bytes > image_bytes() - offset) return {};
  const size_t index = linear_.EntryAt(offset);
  const format::GlobalEntry& entry = global_.entries[index];
  const uint64_t begin = offset - global_.header.tensors[index].offset;
  if (entry.boxes.size() != 1 || bytes > global_.header.tensors[index].bytes - begin) return {};
  const format::GlobalCopy& copy = entry.copies.front();
  if (entry.cut && copy.expanded != 0) return {};
  return {{offset, bytes, copy.image, copy.offset + begin}};
}

absl::Status GlobalContents::Read(uint64_t offset, std::span<std::byte> target) const {
  if (offset > image_bytes() || target.size() > image_bytes() - offset) {
    return Internal(absl::StrFormat("bytes [%d, %d) of a global image of %d", offset, offset + target.size(), image_bytes()));
  }
  const auto read = [this](std::span<const restore::BoxWant> wants) { return ReadWants(wants); };
  std::vector<restore::BoxWant> wants;
  NEVE_RETURN_IF_ERROR(linear_.Add(offset, target, read, &wants));
  return ReadWants(wants);
}

absl::Status GlobalContents::ReadWants(std::span<const restore::BoxWant> wants) const {
  return ReadBoxes(global_.entries, wants, distances_, [this](uint32_t image, std::span<const restore::Range> ranges) {
    for (const restore::Range& range : ranges) NEVE_RETURN_IF_ERROR(ReadRange(*ranks_[image].contents, range));
    return absl::OkStatus();
  }, {});
}

absl::Status GlobalContents::ReadRange(const format::Contents& contents, const restore::Range& range) const {
  if (range.box == nullptr) return contents.Read(range.offset, {range.target, range.bytes});
  std::vector<std::byte> piece;
  for (uint64_t begin = 0; begin < range.bytes; begin += kPieceBytes) {
    const uint64_t end = std::min(begin + kPieceBytes, range.bytes);
    if (range.box->BytesIn(begin, end) == 0) continue;
    piece.resize(end - begin);
    NEVE_RETURN_IF_ERROR(contents.Read(range.offset + begin, piece));
    range.box->Scatter(range.target, begin, end, piece.data());
  }
  return absl::OkStatus();
}

absl::Status GlobalContents::Check(const std::function<void(uint64_t)>& progress, std::vector<format::ContentsProblem>* problems) const {
  uint64_t before = 0;
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    std::vector<format::ContentsProblem> found;
    const auto told = [&](uint64_t done) {
      if (progress) progress(before + done);
    };
    NEVE_RETURN_IF_ERROR(ranks_[i].contents->Check(told, &found));
    for (format::ContentsProblem& problem : found) {
      problem.file = i;
      problems->push_back(std::move(problem));
    }
    before += ranks_[i].contents->image_bytes();
  }
  return absl::OkStatus();
}

absl::Status GlobalContents::CheckRead() const {
  for (const Rank& rank : ranks_) NEVE_RETURN_IF_ERROR(rank.contents->CheckRead());
  return absl::OkStatus();
}

}  // namespace neve::engine
