#include "engine/places_verify_pieces.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "engine/global_compare.h"
#include "engine/opened_image.h"
#include "engine/places_verify_image.h"
#include "format/global_check.h"

namespace neve::engine {
namespace {

void Wrong(const SaveToVerify& save, std::string code, std::string tensor, std::string message, VerifyReport* report) {
  AddProblem(report, Problem{std::move(code), save.place, save.path, std::move(tensor), -1, -1, std::move(message)}, /*structural=*/true);
}

}  // namespace

absl::Status VerifyPieces(const SaveToVerify& save, const std::shared_ptr<sync::Crew>& crew, VerifyReport* report) {
  std::vector<std::unique_ptr<RankFile>> images;
  std::vector<format::RankImage> ranks;
  for (uint32_t rank = 0; rank < save.ranks.size(); ++rank) {
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<RankFile> image, save.ranks[rank].open());
    ranks.push_back({rank, &image->parsed(), image->tensors()});
    images.push_back(std::move(image));
  }
  format::PiecesCheck check = format::CheckPieces(ranks);
  for (format::PiecesCheck::Problem& problem : check.problems) {
    Wrong(save, "pieces", std::move(problem.name), std::move(problem.message), report);
  }
  for (const std::string& name : check.unlike) {
    report->notes.push_back(
        absl::StrFormat("%s: replicas of %s repeat elements on some ranks only; they are not compared", save.path, name));
  }
  std::vector<format::Comparison> comparisons;
  for (format::Comparison& replica : check.replicas) {
    std::erase_if(replica.copies, [&](const format::Comparison::Bytes& copy) { return !save.ranks[copy.image].good; });
    if (replica.copies.size() > 1) comparisons.push_back(std::move(replica));
  }
  NEVE_ASSIGN_OR_RETURN(const std::vector<bool> equal, CompareBytes(images, comparisons));
  for (size_t i = 0; i < comparisons.size(); ++i) {
    if (equal[i]) continue;
    std::vector<uint32_t> holders;
    for (const format::Comparison::Bytes& copy : comparisons[i].copies) holders.push_back(copy.image);
    const auto& [image, offset, bytes, expanded] = comparisons[i].copies.front();
    const format::LogicalTensor* box = nullptr;
    for (const format::LogicalTensor& tensor : images[image]->tensors()) {
      if (tensor.piece != nullptr && tensor.logical_name() == comparisons[i].name &&
          images[image]->parsed().tensors[tensor.stored_index].offset == offset) {
        box = &tensor;
      }
    }
    Wrong(save, "replica", comparisons[i].name,
          absl::StrFormat("its piece %s has different bytes on %s, which should hold the same",
                          box == nullptr ? "" : format::BoxText(box->piece->offset, box->shape), format::RanksText(holders)), report);
  }
  return absl::OkStatus();
}

}  // namespace neve::engine
