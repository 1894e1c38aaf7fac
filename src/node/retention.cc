#include "node/retention.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"

namespace neve::node {

Retention::Retention(storage::Tier& tier, sync::Executor& executor, obs::Metrics& metrics, catalog::RetentionRule rule, uint32_t rank,
                     std::function<std::set<SaveId>()> held, uint32_t world, std::function<std::set<SaveId>()> told)
    : tier_(tier), metrics_(metrics), rule_(std::move(rule)), rank_(rank), world_(world), held_(std::move(held)), told_(std::move(told)),
      inbox_(std::make_shared<flush::Inbox>(executor)) {}

Retention::~Retention() { inbox_->Close(); }

void Retention::NoteTags(const SaveId& save, const Tags& tags) {
  // Of several ranks all go by the tags of the first one's record: their own may differ, and the best must be the same save.
  if (rule_.best_count == 0 || !rule_.keep.has_value() || world_ > 1) return;
  sync::MutexLock lock(mutex_);
  tags_[save] = tags;
}

void Retention::MadeDurable(const SaveId& save, std::function<void()> idle) {
  newest_durable_ = std::max(newest_durable_.value_or(save), save);
  if (!rule_.keep.has_value()) return idle();
  idle_.push_back(std::move(idle));
  if (busy_) {
    again_ = true;
    return;
  }
  busy_ = true;
  Begin();
}

void Retention::Begin() {
  tier_.List([this, inbox = inbox_](absl::StatusOr<storage::Listing> listing) {
    inbox->Post([this, listing = std::move(listing)] { Listed(listing); });
  });
}

void Retention::Listed(absl::StatusOr<storage::Listing> listing, bool settled) {
  if (!listing.ok()) {
    obs::Log(obs::Level::kWarning, absl::StrFormat("event=retention_failed place=\"%s\" error=\"%s\"", tier_.info().place,
                                                   std::string(listing.status().message())));
    return Retire({});
  }
  const std::vector<catalog::TierListing> one = {{tier_.info().kind, tier_.info().place, absl::OkStatus(), *listing}};
  const std::vector<catalog::Save> saves = catalog::GroupSaves(one);
  catalog::Told told{.saves = {}, .rank = rank_, .world = world_};
  if (world_ > 1 && told_ && rule_.best_count == 0) told.saves = told_();
  if (world_ > 1 && !settled) {
    const auto newest = std::find_if(saves.begin(), saves.end(), [](const catalog::Save& save) { return save.CompleteIn(0); });
    if (newest == saves.end() && !told.saves.empty()) return Listed(listing, true);   // each rank has made its own durable
    if (newest == saves.end()) {
      constexpr uint64_t kSoon = 2;   // may be told any moment
      if (rule_.keep.has_value() && saves.size() > *rule_.keep + (told_ ? kSoon : 0) && !std::exchange(warned_, true)) {
        obs::Log(obs::Level::kWarning,
                 absl::StrFormat("event=retention_waits place=\"%s\" reason=\"no save shows the images of all ranks here, and none is told "
                                 "to be whole: nothing is retired; keep= needs a folder that all ranks share, or control connections (and "
                                 "then no best=)\"",
                                 tier_.info().place));
      }
      return Retire({});
    }
    // Other ranks wrote the rest of it, and what is seen may not be durable yet. What is older was followed by a commit of each rank.
    return tier_.Settle(newest->KeyOf(std::min(rank_, newest->world - 1)), [this, inbox = inbox_, listing](absl::Status status) {
      inbox->Post([this, listing, status] {
        if (status.ok()) return Listed(listing, true);
        Listed(status);
      });
    });
  }
  std::map<SaveId, double> best_values;
  if (rule_.best_count > 0) {
    sync::MutexLock lock(mutex_);
    for (const catalog::Save& save : saves) {
      if (!save.CompleteIn(0)) continue;
      const auto known = tags_.find(save.save);
      if (known == tags_.end()) {
        // Of an earlier life: its tags stand in its record. One is read a turn.
        tier_.OpenImage(save.KeyOf(0), [this, inbox = inbox_, id = save.save, listing, settled](auto reader) {
          inbox->Post([this, id, listing, settled, tags = reader.ok() ? (*reader)->record().tags : Tags{}] {
            {
              sync::MutexLock again(mutex_);
              tags_.emplace(id, tags);
            }
            Listed(listing, settled);
          });
        });
        return;
      }
      const auto tag = known->second.find(rule_.best_tag);
      if (tag == known->second.end()) continue;
      if (const auto* number = std::get_if<double>(&tag->second)) best_values[save.save] = *number;
      if (const auto* number = std::get_if<int64_t>(&tag->second)) best_values[save.save] = static_cast<double>(*number);
    }
  }
  std::vector<ImageKey> victims;
  std::set<SaveId> kept;
  for (const catalog::Save& save : saves) kept.insert(save.save);
  for (const catalog::Save* save :
       catalog::ToRetire(saves, 0, rule_, held_(), best_values, newest_durable_.value_or(SaveId{}), world_ > 1, told)) {
    for (uint32_t rank = rank_; rank < save->ranks.size(); rank += world_) {
      if (!save->ranks[rank].empty()) victims.push_back(save->KeyOf(rank));
    }
    kept.erase(save->save);
  }
  {
    // Of saves that are no more, or never came to be, no tags are needed.
    sync::MutexLock lock(mutex_);
    std::erase_if(tags_, [&](const auto& known) { return known.first < newest_durable_ && !kept.contains(known.first); });
  }
  Retire(victims);
}

void Retention::Retire(const std::vector<ImageKey>& victims) {
  left_ = victims.size() + 1;
  for (const ImageKey& key : victims) {
    tier_.Retire(key, [this, inbox = inbox_, key](absl::Status status) {
      inbox->Post([this, key, status] {
        if (status.ok()) {
          metrics_.Add(obs::Metric::kImagesRetired);
        } else {
          obs::Log(obs::Level::kWarning, absl::StrFormat("event=retire_failed step=%d place=\"%s\" error=\"%s\"", key.step,
                                                         tier_.info().place, std::string(status.message())));
        }
        OneDone();
      });
    });
  }
  OneDone();
}

void Retention::OneDone() {
  if (--left_ > 0) return;
  if (std::exchange(again_, false)) return Begin();
  busy_ = false;
  for (const std::function<void()>& idle : std::exchange(idle_, {})) idle();
}

}  // namespace neve::node
