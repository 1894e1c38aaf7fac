#include "engine/global_image.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/global_compare.h"
#include "engine/linear_bytes.h"
#include "format/layout.h"
#include "tensor/view.h"

namespace neve::engine {
namespace {

constexpr int kOpenersMax = 8;                     // headers are read by so many at a time
constexpr uint64_t kStagingBytes = 8 << 20;

class GlobalImageImpl final : public OpenedImage {
 public:
  GlobalImageImpl(std::vector<std::unique_ptr<RankFile>> images, SaveInfo info, format::GlobalImage global, uint32_t own_rank)
      : images_(std::move(images)), info_(std::move(info)), global_(std::move(global)) {
    for (const auto& image : images_) {
      const bool own = image->record() != nullptr && image->record()->key.rank == own_rank;
      distances_.push_back((image->in_memory() ? 0u : 2u) + (own ? 0u : 1u));
    }
  }

  const SaveInfo& info() const override { return info_; }
  std::string_view header() const override { return global_.header_text; }
  uint64_t image_bytes() const override { return global_.header.file_bytes; }
  bool has_digests() const override {
    return std::all_of(images_.begin(), images_.end(), [](const auto& image) { return image->has_digests(); });
  }
  bool is_global() const override { return true; }
  absl::StatusOr<std::unique_ptr<Image>> Global(const GlobalOptions&) override {
    return Invalid("this is the global image of its save already");
  }

  absl::Status Read(std::span<const ReadRange> ranges, std::span<uint8_t> written) override {
    if (!written.empty() && written.size() != ranges.size()) return Invalid("`written` needs one byte per range");
    std::vector<restore::BoxWant> wants;
    std::vector<size_t> of_range;                  // of each want
    for (size_t i = 0; i < ranges.size(); ++i) {
      const ReadRange& range = ranges[i];
      if (range.offset > image_bytes() || image_bytes() - range.offset < range.bytes) {
        return Damaged(absl::StrFormat("bytes [%d, %d) of an image of %d bytes", range.offset, range.offset + range.bytes,
                                       image_bytes()));
      }
      if (range.bytes == 0) continue;
      if (range.target == nullptr) return Invalid(absl::StrFormat("range %d has no target", i));
      const bool strided = range.rank >= 0;
      if (strided) {
        NEVE_ASSIGN_OR_RETURN(const bool direct, AddStrided(range, i, &wants));
        if (!direct && !written.empty()) written[i] = 1;
        if (!direct) NEVE_RETURN_IF_ERROR(ReadStaged(range));
      } else {
        const absl::Status added = AddLinear(range.offset, {static_cast<std::byte*>(range.target), range.bytes}, &wants);
        // The header, and elements that a border of the range cuts, are there already.
        if (!written.empty() && (range.offset < global_.header_text.size() || !added.ok())) written[i] = 1;
        NEVE_RETURN_IF_ERROR(added);
      }
      of_range.resize(wants.size(), i);
    }
    std::vector<uint8_t> touched(wants.size());
    const absl::Status status = ReadWants(wants, touched);
    for (size_t i = 0; i < wants.size() && !written.empty(); ++i) written[of_range[i]] |= touched[i];
    return status;
  }

  absl::Status VerifyAll() override {
    for (const auto& image : images_) NEVE_RETURN_IF_ERROR(image->VerifyAll());
    return absl::OkStatus();
  }

  std::map<std::string, uint64_t> Sources() const override {
    std::map<std::string, uint64_t> sources;
    for (const auto& image : images_) {
      for (const auto& [name, bytes] : image->Sources()) sources[name] += bytes;
    }
    return sources;
  }

  std::span<const format::GlobalEntry> entries() override { return global_.entries; }

  absl::Status ReadWants(std::span<const restore::BoxWant> wants, std::span<uint8_t> written) override {
    return ReadBoxes(global_.entries, wants, distances_, [this](uint32_t image, std::span<const restore::Range> ranges) {
      return images_[image]->ReadRanges(ranges);
    }, written);
  }

 private:
  absl::Status AddLinear(uint64_t offset, std::span<std::byte> target, std::vector<restore::BoxWant>* wants) {
    return linear_.Add(offset, target, [this](std::span<const restore::BoxWant> cut) { return ReadWants(cut, {}); }, wants);
  }

  // Whether a strided range is all of an entry, element by element: then it is wanted as it is.
  absl::StatusOr<bool> AddStrided(const ReadRange& range, size_t number, std::vector<restore::BoxWant>* wants) const {
    const std::span extents(range.extents, static_cast<size_t>(range.rank)), strides(range.strides, extents.size());
    NEVE_ASSIGN_OR_RETURN(const tensor::Density density, tensor::Classify(extents, strides));
    if (density == tensor::Density::kExpanded || density == tensor::Density::kOverlapping) {
      return Invalid(absl::StrFormat("range %d: elements of its target share memory", number));
    }
    NEVE_ASSIGN_OR_RETURN(const uint64_t elements, tensor::ElementCount(extents));
    if (elements * range.item_bytes != range.bytes) {
      return Invalid(absl::StrFormat("a strided target of %d elements of %d bytes was given for %d bytes of the image", elements,
                                     range.item_bytes, range.bytes));
    }
    if (range.offset < global_.header_text.size()) return false;
    const size_t index = linear_.EntryAt(range.offset);
    const format::GlobalEntry& entry = global_.entries[index];
    if (global_.header.tensors[index].offset != range.offset || ItemBytes(entry.dtype) != range.item_bytes ||
        !std::ranges::equal(LinearBytes::StoredShape(entry), extents)) {
      return false;
    }
    tensor::Dims bytes(strides.begin(), strides.end());
    for (int64_t& stride : bytes) stride *= static_cast<int64_t>(range.item_bytes);
    wants->push_back({index, tensor::Dims(extents.size(), 0), tensor::Dims(extents.begin(), extents.end()),
                      static_cast<std::byte*>(range.target), std::move(bytes)});
    return true;
  }

  // Any other strided range, by way of a copy of bounded size.
  absl::Status ReadStaged(const ReadRange& range) {
    const std::span extents(range.extents, static_cast<size_t>(range.rank)), strides(range.strides, extents.size());
    const tensor::StridedCopy copy(extents, strides, range.item_bytes);
    const uint64_t step = std::max<uint64_t>(1, kStagingBytes / range.item_bytes) * range.item_bytes;
    std::vector<std::byte> staged(std::min(step, range.bytes));
    for (uint64_t begin = 0; begin < range.bytes; begin += step) {
      const uint64_t bytes = std::min(step, range.bytes - begin);
      std::vector<restore::BoxWant> wants;
      NEVE_RETURN_IF_ERROR(AddLinear(range.offset + begin, std::span(staged).first(bytes), &wants));
      NEVE_RETURN_IF_ERROR(ReadWants(wants, {}));
      copy.Scatter(static_cast<std::byte*>(range.target), begin, begin + bytes, staged.data());
    }
    return absl::OkStatus();
  }

  const std::vector<std::unique_ptr<RankFile>> images_;
  const SaveInfo info_;
  const format::GlobalImage global_;
  std::vector<uint32_t> distances_;                // of each image
  const LinearBytes linear_{&global_};
};

}  // namespace

absl::StatusOr<std::unique_ptr<OpenedImage>> MergeImages(std::vector<std::unique_ptr<RankFile>> images, SaveInfo info,
                                                         const GlobalOptions& options, uint32_t own_rank) {
  std::vector<format::RankImage> ranks;
  for (size_t i = 0; i < images.size(); ++i) {
    const format::CommitRecord* record = images[i]->record();
    ranks.push_back({record == nullptr ? static_cast<uint32_t>(i) : record->key.rank, &images[i]->parsed(), images[i]->tensors()});
  }
  NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<format::GlobalMerge> merge, format::GlobalMerge::Begin(
      std::move(ranks), {options.take_rank0, options.include},
      [&images](uint32_t image, uint64_t offset, std::span<std::byte> target) {
        const restore::Range range{.offset = offset, .bytes = target.size(), .target = target.data()};
        return images[image]->ReadRanges({&range, 1});
      }));
  NEVE_ASSIGN_OR_RETURN(const std::vector<bool> equal, CompareBytes(images, merge->comparisons()));
  NEVE_ASSIGN_OR_RETURN(format::GlobalImage global, merge->Finish(equal));
  return std::make_unique<GlobalImageImpl>(std::move(images), std::move(info), std::move(global), own_rank);
}

absl::StatusOr<std::unique_ptr<Image>> OpenGlobalImage(const std::shared_ptr<const SaveOpener>& opener,
                                                       const GlobalOptions& options, uint32_t own_rank,
                                                       const std::function<void(const absl::Status&)>& failed, std::string* reason,
                                                       bool* unreadable) {
  const uint32_t world = opener->save.world;
  struct Opened {
    absl::StatusOr<std::unique_ptr<RankFile>> image = Internal("not opened");
    std::vector<absl::Status> failed;
    std::string reason;
    bool header_lost = false;
  };
  std::vector<Opened> opened(world);
  auto open = [&](uint64_t rank, int) {
    Opened& here = opened[rank];
    here.image = opener->OpenFile(
        static_cast<uint32_t>(rank), [&here](const absl::Status& status) { here.failed.push_back(status); }, &here.reason,
        &here.header_lost, [](ImageParts& parts) { parts.crew = sync::Crew::Create(0); });   // this thread reads its header by itself
  };
  const std::unique_ptr<sync::Crew> openers = sync::Crew::Create(static_cast<int>(std::min<uint32_t>(world, kOpenersMax)) - 1);
  openers->Run(world, sync::PartFn(open));
  *unreadable = false;
  std::vector<std::unique_ptr<RankFile>> images;
  for (uint32_t rank = 0; rank < world; ++rank) {
    Opened& here = opened[rank];
    if (!here.image.ok()) {
      for (const absl::Status& status : here.failed) failed(status);
      if (here.failed.empty()) failed(here.image.status());
      *reason += absl::StrFormat("%srank %d of %d: %s", reason->empty() ? "" : "; ", rank, world,
                                 std::string(here.image.status().message()));
      *unreadable = here.header_lost;
      return Annotate(here.image.status(), absl::StrFormat("rank %d of %d", rank, world));
    }
    (*here.image)->UseCrew(opener->crew);
    images.push_back(*std::move(here.image));
  }
  *unreadable = true;                              // unless it is merged now
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Image> global, MergeImages(std::move(images), opener->info, options, own_rank));
  *unreadable = false;
  return global;
}

}  // namespace neve::engine
