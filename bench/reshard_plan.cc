// How long planning takes when 12 ranks restore what 8 saved: headers parsed and merged, and the boxes of each new rank planned.
// No data is read. Usage: neve_reshard_plan TENSORS; prints one line of JSON with milliseconds.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "format/global_image.h"
#include "format/image_header.h"
#include "format/layout.h"
#include "restore/box_plan.h"

namespace {

using neve::format::GlobalMerge;
using neve::tensor::Dims;
using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }

constexpr int64_t kOld = 8, kNew = 12, kRows = 2048, kColumns = 512;

// Rows [first, first + count) of one of `parts` equal cuts, as torch.chunk makes them.
std::pair<int64_t, int64_t> RowsOf(int64_t part, int64_t parts) {
  const int64_t chunk = (kRows + parts - 1) / parts, begin = std::min(kRows, part * chunk);
  return {begin, std::min(chunk, kRows - begin)};
}

std::string HeaderOf(int64_t rank, int64_t tensors, uint64_t* image_bytes) {
  neve::format::Structure structure;
  std::vector<const void*> addresses;
  const auto [first, count] = RowsOf(rank, kOld);
  std::string tree = R"({"d":[["model",{"d":[)" + std::to_string(tensors) + "]}]]}";
  for (int64_t i = 0; i < tensors; ++i) {
    neve::format::TensorSpec spec{"model.layers." + std::to_string(i) + ".weight", neve::DType::kF32, {count, kColumns}, {kColumns, 1}};
    spec.piece = std::make_shared<neve::format::Piece>(neve::format::Piece{{kRows, kColumns}, {first, 0}, ""});
    structure.tensors.push_back(std::move(spec));
    addresses.push_back(reinterpret_cast<const void*>(uint64_t{1} << 32 | static_cast<uint64_t>(i) << 20));
  }
  structure.tree = std::move(tree);
  const auto layout = neve::format::Layout::Build(std::make_shared<neve::format::Structure>(std::move(structure)), addresses,
                                                  {.values_bytes = 4096, .blob_bytes = {}});
  if (!layout.ok()) std::abort();
  std::string header((*layout)->header_bytes(), ' ');
  if (!(*layout)->WriteHeader("", std::as_writable_bytes(std::span(header))).ok()) std::abort();
  *image_bytes = (*layout)->image_bytes();
  return header;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tensors = argc > 1 ? std::atoll(argv[1]) : 10'000;
  std::vector<std::string> texts;
  std::vector<uint64_t> bytes(kOld);
  for (int64_t rank = 0; rank < kOld; ++rank) texts.push_back(HeaderOf(rank, tensors, &bytes[static_cast<size_t>(rank)]));

  auto begin = Clock::now();
  std::vector<neve::format::ImageHeader> headers;
  std::vector<std::vector<neve::format::LogicalTensor>> logical;
  for (size_t rank = 0; rank < texts.size(); ++rank) headers.push_back(neve::format::ParseImageHeader(texts[rank], bytes[rank]).value());
  for (const auto& header : headers) logical.push_back(neve::format::LogicalTensors(header).value());
  const double parse_ms = Since(begin);

  begin = Clock::now();
  std::vector<neve::format::RankImage> images;
  for (uint32_t rank = 0; rank < headers.size(); ++rank) images.push_back({rank, &headers[rank], logical[rank]});
  const auto nothing_to_read = [](uint32_t, uint64_t, std::span<std::byte>) { return neve::Internal("no blob is here"); };
  const auto merge = GlobalMerge::Begin(std::move(images), {}, nothing_to_read).value();
  const auto global = merge->Finish(std::vector<bool>(merge->comparisons().size(), true));
  if (!global.ok()) std::abort();
  const double merge_ms = Since(begin);

  begin = Clock::now();
  uint64_t parts = 0;
  static std::byte target;
  for (int64_t rank = 0; rank < kNew; ++rank) {
    const auto [first, count] = RowsOf(rank, kNew);
    std::vector<neve::restore::BoxWant> wants;
    for (size_t i = 0; i < global->entries.size(); ++i) wants.push_back({i, {first, 0}, {count, kColumns}, &target, {kColumns * 4, 4}});
    const auto plan = neve::restore::PlanBoxes(global->entries, wants, std::vector<uint32_t>(kOld, 0));
    if (!plan.ok()) std::abort();
    parts += plan->size();
  }
  const double plan_ms = Since(begin);
  std::printf("{\"tensors\":%lld,\"parse_ms\":%.2f,\"merge_ms\":%.2f,\"plan_ms\":%.2f,\"parts\":%llu}\n",
              static_cast<long long>(tensors), parse_ms, merge_ms, plan_ms, static_cast<unsigned long long>(parts));
}
