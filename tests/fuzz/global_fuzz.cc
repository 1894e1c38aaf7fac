// Headers of two ranks: any two are joined or refused; what was joined lies in the ranks' bytes and is an image that can be read.
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error/check.h"
#include "format/global_check.h"
#include "format/global_image.h"
#include "format/image_header.h"
#include "format/tree_walk.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {
namespace {

constexpr std::string_view kBetween = "\n--\n";

std::string WithLength(std::string_view json) {
  const uint64_t length = json.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(json);
}

// The data behind a header may have any of these lengths.
absl::StatusOr<format::ImageHeader> Parse(const std::string& head) {
  absl::Status status;
  for (const uint64_t data_bytes : {0, 4, 8, 16, 24, 48}) {
    auto header = format::ParseImageHeader(head, head.size() + data_bytes);
    if (header.ok()) return header;
    status = header.status();
  }
  return status;
}

}  // namespace

enum class Way : uint8_t { kRefused, kRankZero, kByRank };   // what becomes of what differs

std::vector<std::string> FuzzSeeds() {
  const auto rank = [](std::string_view tensors, std::string_view tree, std::string_view values) {
    std::string text = R"({"__metadata__":{"neve.format":"1","neve.values":")";
    text.append(values).append(R"(","neve.tree":")").append(tree).append("\"}");
    if (!tensors.empty()) text.append(",").append(tensors);
    return text.append("}");
  };
  const auto both = [](const std::string& first, const std::string& second) { return first + std::string(kBetween) + second; };
  constexpr std::string_view kRows = R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
  constexpr std::string_view kPlain = R"("w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  constexpr std::string_view kTop =
      R"({\"v\":1,\"root\":{\"d\":[1,[\"n\",\"v\"]]},\"tensors\":{\"piece\":{\"w\":[[4,3],[0,0]]}}})";
  constexpr std::string_view kBottom =
      R"({\"v\":1,\"root\":{\"d\":[1,[\"n\",\"v\"]]},\"tensors\":{\"piece\":{\"w\":[[4,3],[2,0]]}}})";
  constexpr std::string_view kWhole = R"({\"v\":1,\"root\":{\"d\":[1,[\"n\",\"v\"]]}})";
  constexpr std::string_view kNested = R"({\"v\":1,\"root\":{\"d\":[[\"a\",{\"l\":[\"v\",\"v\"]}],[\"n\",{\"d\":[]}]]}})";
  constexpr std::string_view kShared = R"({\"v\":1,\"root\":{\"d\":[1,[\"again\",{\"r\":\"w\"}],[\"n\",\"v\"]]}})";
  return {both(rank(kRows, kTop, "i7;"), rank(kRows, kBottom, "i7;")), both(rank(kRows, kTop, "i7;"), rank(kRows, kTop, "i8;")),
          both(rank(kPlain, kWhole, "{'k't}"), rank(kPlain, kWhole, "{'k'f}")), both(rank(kPlain, kShared, "n"), rank(kPlain, kWhole, "n")),
          both(rank("", kNested, "i1;i2;"), rank(kPlain, kWhole, "i1;"))};
}

}  // namespace neve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t between = text.find(fuzz::kBetween);
  if (between == std::string_view::npos) return 0;
  const std::string heads[] = {fuzz::WithLength(text.substr(0, between)), fuzz::WithLength(text.substr(between + fuzz::kBetween.size()))};
  std::vector<format::ImageHeader> headers;
  std::vector<std::vector<format::LogicalTensor>> tensors;
  for (const std::string& head : heads) {
    auto header = fuzz::Parse(head);
    if (!header.ok()) return 0;
    auto logical = format::LogicalTensors(*header);
    if (!logical.ok() || !format::WalkTree(*header, *logical, nullptr).ok()) return 0;
    headers.push_back(*std::move(header));
    tensors.push_back(*std::move(logical));
  }
  const std::vector<format::RankImage> ranks = {{0, &headers[0], tensors[0]}, {1, &headers[1], tensors[1]}};
  for (const format::Comparison& replica : format::CheckPieces(ranks).replicas) {
    for (const auto& copy : replica.copies) {
      NEVE_CHECK(copy.offset <= headers[copy.image].file_bytes && copy.bytes <= headers[copy.image].file_bytes - copy.offset);
    }
  }
  for (const bool equal : {true, false}) {
    for (const fuzz::Way way : {fuzz::Way::kRefused, fuzz::Way::kRankZero, fuzz::Way::kByRank}) {
      format::GlobalOptions options;
      if (way == fuzz::Way::kRankZero) options.take_rank0.push_back("*");
      if (way == fuzz::Way::kByRank) options.differing = format::Differing::kByRank;
      auto merge = format::GlobalMerge::Begin(ranks, options, [](uint32_t, uint64_t, std::span<std::byte> target) {
        // A length of 3, then "v{}"; nothing larger is asked for.
        if (target.size() == 8) std::memcpy(target.data(), "\3\0\0\0\0\0\0\0", 8);
        if (target.size() == 3) std::memcpy(target.data(), "v{}", 3);
        return absl::OkStatus();
      });
      if (!merge.ok()) continue;
      for (const format::Comparison& comparison : (*merge)->comparisons()) {
        NEVE_CHECK(comparison.copies.size() > 1);
        for (const auto& copy : comparison.copies) {
          NEVE_CHECK(copy.offset <= headers[copy.image].file_bytes && copy.bytes <= headers[copy.image].file_bytes - copy.offset);
        }
      }
      const auto global = (*merge)->Finish(std::vector<bool>((*merge)->comparisons().size(), equal));
      if (!global.ok()) continue;
      const auto again = format::ParseImageHeader(global->header_text, global->header.file_bytes);
      NEVE_CHECK(again.ok() && again->tensors.size() == global->entries.size());
      const auto logical = format::LogicalTensors(*again);
      NEVE_CHECK(logical.ok() && logical->size() == global->tensors.size());
      NEVE_CHECK(format::WalkTree(*again, *logical, nullptr).ok());
      for (size_t i = 0; i < global->entries.size(); ++i) {
        const format::GlobalEntry& entry = global->entries[i];
        uint64_t covered = 0;
        for (size_t box = 0; box < entry.boxes.size(); ++box) {
          const uint64_t elements = *tensor::ElementCount(tensor::Dims(entry.boxes.extent(box).begin(), entry.boxes.extent(box).end()));
          covered += elements;
          NEVE_CHECK(!entry.CopiesOf(box).empty());
          for (const format::GlobalCopy& copy : entry.CopiesOf(box)) {
            NEVE_CHECK(copy.offset <= headers[copy.image].file_bytes);
            if (copy.expanded == 0) NEVE_CHECK(elements * ItemBytes(entry.dtype) <= headers[copy.image].file_bytes - copy.offset);
          }
        }
        NEVE_CHECK(covered == *tensor::ElementCount(entry.shape));
      }
    }
  }
  return 0;
}
