#include "restore/common_save.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "group/agreement.h"
#include "group/fields.h"

namespace neve::restore {
namespace {

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

constexpr size_t kRanksNamed = 8;
constexpr uint64_t kSavesMax = 1u << 20;   // in a message that another process made

absl::Status Unreadable(size_t rank) {
  return Invalid(absl::StrFormat("what rank %d sent cannot be read: it may run another version of neve", rank));
}

void PutNumber(std::string* text, uint64_t number) { group::PutField(text, std::to_string(number)); }

std::optional<View> DecodeView(std::string_view text, uint32_t rank) {
  group::FieldReader fields(text);
  View view;
  const std::optional<std::string> status = fields.Next(), wish = fields.Next();
  const std::optional<uint64_t> sequence = fields.NextNumber(), more = fields.NextNumber(), count = fields.NextNumber();
  if (!status || !wish || !sequence || !more || !count || *count > kSavesMax) return std::nullopt;
  view.status = group::DecodeStatus(*status, rank);
  view.wish = *wish;
  view.sequence = *sequence;
  view.more = *more != 0;
  for (uint64_t i = 0; i < *count; ++i) {
    const auto incarnation = fields.NextNumber(), number = fields.NextNumber(), step = fields.NextNumber(), world = fields.NextNumber(),
               flags = fields.NextNumber(), ranges = fields.NextNumber();
    if (!incarnation || !number || !step || !world || !flags || !ranges || *ranges > kSavesMax) return std::nullopt;
    SeenSave seen{.save = {static_cast<uint32_t>(*incarnation), *number}, .step = *step, .world = static_cast<uint32_t>(*world),
                  .any_record = (*flags & 1) != 0, .contradicts = (*flags & 2) != 0, .ranks = {}};
    for (uint64_t r = 0; r < *ranges; ++r) {
      const auto first = fields.NextNumber(), last = fields.NextNumber();
      if (!first || !last) return std::nullopt;
      seen.ranks.emplace_back(static_cast<uint32_t>(*first), static_cast<uint32_t>(*last));
    }
    view.saves.push_back(std::move(seen));
  }
  return view;
}

// Whether ranges of any order cover [0, world).
bool CoverAll(Ranges ranges, uint32_t world) {
  std::sort(ranges.begin(), ranges.end());
  uint64_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (first > next) return false;
    next = std::max<uint64_t>(next, uint64_t{last} + 1);
  }
  return next >= world;
}

std::string Named(const std::vector<uint32_t>& ranks, uint32_t world) {
  std::string text = "rank ";
  for (size_t i = 0; i < ranks.size() && i < kRanksNamed; ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kRanksNamed) text += ", ...";
  return text + absl::StrFormat(" of %d", world);
}

// A save of another number of ranks: each rank now needs all of its images.
void DecideOtherWorld(const std::vector<const SeenSave*>& seen, const Ranges& ranges, uint32_t world, CommonSave* common) {
  if (!CoverAll(ranges, common->world)) {
    common->reason = absl::StrFormat("it is of %d ranks and not complete", common->world);
    return;
  }
  std::vector<uint32_t> short_sighted;
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (seen[rank] == nullptr || !CoverAll(seen[rank]->ranks, common->world)) short_sighted.push_back(rank);
  }
  common->offered = short_sighted.empty();
  if (common->offered) return;
  common->reason = absl::StrFormat("it is of %d ranks, and this job has %d: %s cannot reach all of its images, which another rank sees: "
                                   "they lie in the memory or on the disk of another host",
                                   common->world, world, Named(short_sighted, world));
}

// Decides on one save. `seen`: by rank, null where that rank sees nothing of it.
CommonSave Decide(const std::vector<const SeenSave*>& seen, uint32_t world) {
  CommonSave common;
  bool contradicts = false;
  Ranges ranges;
  const SeenSave* first = nullptr;
  for (const SeenSave* here : seen) {
    if (here == nullptr) continue;
    if (first == nullptr) first = here;
    contradicts |= here->contradicts || here->step != first->step || here->world != first->world;
    common.any_record |= here->any_record;
    ranges.insert(ranges.end(), here->ranks.begin(), here->ranks.end());
  }
  common.save = first->save;
  common.step = first->step;
  common.world = first->world;
  if (contradicts) {
    common.reason = "its images disagree on step or world";
    return common;
  }
  if (common.world != world) {
    DecideOtherWorld(seen, ranges, world, &common);
    return common;
  }
  std::vector<uint32_t> missing, unreachable;
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (seen[rank] != nullptr && seen[rank]->Sees(rank)) continue;
    const bool elsewhere =
        std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) { return range.first <= rank && rank <= range.second; });
    (elsewhere ? unreachable : missing).push_back(rank);
  }
  common.offered = missing.empty() && unreachable.empty();
  if (!missing.empty()) common.reason = Named(missing, world) + " missing";
  if (!unreachable.empty()) {
    common.reason += (common.reason.empty() ? "" : "; ") + Named(unreachable, world) +
                     " cannot reach its image, which another rank sees: it lies in the memory or on the disk of another host";
  }
  return common;
}

}  // namespace

bool SeenSave::Sees(uint32_t rank) const {
  const auto after = std::upper_bound(ranks.begin(), ranks.end(), std::pair<uint32_t, uint32_t>(rank, ~uint32_t{0}));
  return after != ranks.begin() && std::prev(after)->second >= rank;
}

View ViewOf(std::span<const catalog::Save> saves, std::optional<SaveId> before, size_t saves_max) {
  View view;
  for (const catalog::Save& save : saves) {
    if (before.has_value() && !(save.save < *before)) continue;
    if (view.saves.size() == saves_max) {
      view.more = true;
      break;
    }
    SeenSave seen{.save = save.save, .step = save.step, .world = save.world, .any_record = save.any_record,
                  .contradicts = save.contradicts, .ranks = {}};
    for (uint32_t rank = 0; rank < save.ranks.size(); ++rank) {
      const bool here = std::any_of(save.ranks[rank].begin(), save.ranks[rank].end(), [](const catalog::Copy& copy) {
        return copy.entry.has_record && copy.entry.has_image;
      });
      if (!here) continue;
      if (!seen.ranks.empty() && seen.ranks.back().second + 1 == rank) {
        seen.ranks.back().second = rank;
      } else {
        seen.ranks.emplace_back(rank, rank);
      }
    }
    view.saves.push_back(std::move(seen));
  }
  return view;
}

std::string Encode(const View& view) {
  std::string text;
  group::PutField(&text, group::EncodeStatus(view.status));
  group::PutField(&text, view.wish);
  PutNumber(&text, view.sequence);
  PutNumber(&text, view.more ? 1 : 0);
  PutNumber(&text, view.saves.size());
  for (const SeenSave& seen : view.saves) {
    PutNumber(&text, seen.save.incarnation);
    PutNumber(&text, seen.save.sequence);
    PutNumber(&text, seen.step);
    PutNumber(&text, seen.world);
    PutNumber(&text, (seen.any_record ? 1u : 0u) | (seen.contradicts ? 2u : 0u));
    PutNumber(&text, seen.ranks.size());
    for (const auto& [first, last] : seen.ranks) {
      PutNumber(&text, first);
      PutNumber(&text, last);
    }
  }
  return text;
}

absl::StatusOr<Common> FindCommon(std::span<const std::string> texts) {
  const auto world = static_cast<uint32_t>(texts.size());
  std::vector<View> views;
  Common common;
  for (uint32_t rank = 0; rank < world; ++rank) {
    std::optional<View> view = DecodeView(texts[rank], rank);
    if (!view.has_value()) return Unreadable(rank);
    views.push_back(*std::move(view));
    NEVE_RETURN_IF_ERROR(views[rank].status);
    if (views[rank].wish != views[0].wish) {
      return Invalid(absl::StrFormat("rank 0 asks for %s, rank %d for %s: every rank restores with the same arguments", views[0].wish,
                                     rank, views[rank].wish));
    }
    common.sequence = std::max(common.sequence, views[rank].sequence);
    if (views[rank].more && !views[rank].saves.empty()) {
      common.rest = std::max(common.rest.value_or(SaveId{}), views[rank].saves.back().save);
    }
  }
  std::map<SaveId, std::vector<const SeenSave*>> by_id;
  for (uint32_t rank = 0; rank < world; ++rank) {
    for (const SeenSave& seen : views[rank].saves) {
      if (common.rest.has_value() && seen.save < *common.rest) continue;
      auto [it, fresh] = by_id.try_emplace(seen.save);
      if (fresh) it->second.resize(world, nullptr);
      it->second[rank] = &seen;
    }
  }
  for (auto it = by_id.rbegin(); it != by_id.rend(); ++it) common.saves.push_back(Decide(it->second, world));
  return common;
}

}  // namespace neve::restore
