#include "engine/watermark.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "base/sync/sockets.h"

namespace neve::engine {

absl::StatusOr<std::string> ControlAddress(bool one_host, const std::string& other) {
  const char* const given = std::getenv("NEVE_CONTROL");
  const std::string wish = given == nullptr ? "" : given;
  if (wish == "off") return Unsupported("control connections are switched off (NEVE_CONTROL=off)");
  if (!wish.empty()) return wish;
  if (one_host) return std::string("127.0.0.1");
  const std::string own = sync::AddressTowards(other);
  return own.empty() ? sync::PrimaryAddress() : own;
}

absl::Status Watermark::Listen(const std::string& place) {
  NEVE_ASSIGN_OR_RETURN(node_, group::ControlNode::Listen(place));
  return absl::OkStatus();
}

void Watermark::Join(Terms terms, std::function<void()> told) {
  for (group::ControlPlace& place : terms.places) {
    if (place.status.ok() && place.tiers != terms.places[0].tiers) place.status = Invalid("the ranks have different tiers");
  }
  const auto absent = std::find_if(terms.places.begin(), terms.places.end(), [](const auto& place) { return !place.status.ok(); });
  if (absent != terms.places.end()) {
    off_ = std::string(absent->status.message());
    if (terms.rank == 0) {
      obs::Log(obs::Level::kWarning, absl::StrFormat("event=control_off error=\"%s\" reason=\"what all ranks have is found by listings "
                                                     "alone\"", off_));
    }
    node_.reset();
    return;
  }
  on_ = true;
  incarnation_ = terms.incarnation;
  columns_ = {""};
  columns_.insert(columns_.end(), terms.tiers.begin(), terms.tiers.end());
  group::Control::Options options;
  options.rank = terms.rank;
  options.world = terms.world;
  options.key = terms.key;
  options.context = absl::StrFormat("uid %s, life %d, world %d, tiers", terms.uid.ToHex(), terms.incarnation, terms.world);
  for (const std::string& tier : terms.tiers) options.context += " " + tier;
  options.columns = columns_.size();
  const uint32_t parent = terms.rank == 0 ? 0 : (terms.rank - 1) / options.fan_out;
  node_->Join(std::move(options), terms.places[parent].place, std::move(told));
}

void Watermark::Leave(double linger_s) {
  if (node_ != nullptr) node_->Leave(linger_s);
}

std::optional<size_t> Watermark::ColumnOf(std::string_view tier, const SaveId& save) const {
  if (!on_ || save.incarnation != incarnation_) return std::nullopt;
  const auto found = std::find(columns_.begin(), columns_.end(), tier);
  return found == columns_.end() ? std::nullopt : std::optional(static_cast<size_t>(found - columns_.begin()));
}

void Watermark::Committed(std::string_view tier, const SaveId& save) {
  if (const std::optional<size_t> column = ColumnOf(tier, save)) node_->Commit(*column, save.sequence);
}

void Watermark::Abandoned(std::string_view tier, const SaveId& save) {
  if (const std::optional<size_t> column = ColumnOf(tier, save)) node_->Abandon(*column, save.sequence);
}

void Watermark::AbandonedEverywhere(const SaveId& save) {
  for (const std::string& tier : columns_) Abandoned(tier, save);
}

bool Watermark::Complete(std::string_view tier, const SaveId& save) const {
  const std::optional<size_t> column = ColumnOf(tier, save);
  return column.has_value() && node_->Complete(*column, save.sequence);
}

bool Watermark::Lost(std::string_view tier, const SaveId& save) const {
  const std::optional<size_t> column = ColumnOf(tier, save);
  return column.has_value() && node_->Lost(*column, save.sequence);
}

std::set<SaveId> Watermark::Complete(std::string_view tier) const {
  std::set<SaveId> saves;
  if (const std::optional<size_t> column = ColumnOf(tier, {incarnation_, 0})) {
    for (const uint64_t sequence : node_->Complete(*column)) saves.insert({incarnation_, sequence});
  }
  return saves;
}

std::optional<SaveId> Watermark::Newest(std::string_view tier) const {
  const std::optional<size_t> column = ColumnOf(tier, {incarnation_, 0});
  const std::optional<uint64_t> newest = column.has_value() ? node_->Newest(*column) : std::nullopt;
  return newest.has_value() ? std::optional(SaveId{incarnation_, *newest}) : std::nullopt;
}

std::string Watermark::WaitsFor(std::string_view tier) const {
  const std::optional<size_t> column = ColumnOf(tier, {incarnation_, 0});
  return column.has_value() ? node_->WaitsFor(*column) : "";
}

nlohmann::ordered_json Watermark::Health() const {
  nlohmann::ordered_json health = {{"on", on_}};
  if (!on_) {
    health["error"] = off_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(off_);
    return health;
  }
  const group::ControlNode::Health node = node_->health();
  health["place"] = node_->place();
  health["joined"] = node.joined;
  health["children"] = node.children;
  health["children_joined"] = node.children_joined;
  health["error"] = node.error.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(node.error);
  health["refused"] = node.counts.refused + node.counts.too_slow + node.counts.displaced;
  health["sent_bytes"] = node.counts.sent_bytes;
  auto& watermark = health["watermark"] = nlohmann::ordered_json::object();
  for (const std::string& tier : columns_) {
    const std::optional<SaveId> newest = Newest(tier);
    watermark[tier.empty() ? "any" : tier] = newest.has_value() ? nlohmann::ordered_json(newest->ToString()) : nlohmann::ordered_json();
  }
  return health;
}

}  // namespace neve::engine
