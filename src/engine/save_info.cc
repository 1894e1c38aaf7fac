#include "engine/save_info.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "nlohmann/json.hpp"

namespace neve {
namespace engine {

SaveInfo ToSaveInfo(const catalog::Save& save, std::span<const catalog::TierListing> listings,
                    std::span<const std::string> names) {
  SaveInfo info;
  info.step = save.step;
  info.save = save.save;
  info.world = save.world;
  info.complete = save.complete;
  info.missing_ranks = save.missing_ranks;
  info.pinned = save.pinned;
  info.reason = save.reason;
  for (const auto& copies : save.ranks) {
    uint64_t bytes = 0;
    for (const catalog::Copy& copy : copies) {
      auto& where = info.tiers[names[static_cast<size_t>(copy.tier)]];
      where.place = listings[static_cast<size_t>(copy.tier)].place;
      where.bytes += copy.entry.image_bytes;
      where.complete = save.CompleteIn(copy.tier);
      bytes = std::max(bytes, copy.entry.image_bytes);
    }
    info.bytes += bytes;
  }
  return info;
}

}  // namespace engine

std::string ToJson(const SaveInfo& info) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["job"] = info.job;
  json["uid"] = info.uid.known() ? Json(info.uid.ToHex()) : Json(nullptr);
  json["step"] = info.step;
  json["save_id"] = info.save.ToString();
  json["incarnation"] = info.save.incarnation;
  json["sequence"] = info.save.sequence;
  json["world"] = info.world;
  json["complete"] = info.complete;
  json["missing_ranks"] = info.missing_ranks;
  Json& tiers = json["tiers"] = Json::object();
  for (const auto& [name, where] : info.tiers) {
    tiers[name] = {{"place", where.place}, {"bytes", where.bytes}, {"complete", where.complete}};
  }
  json["bytes"] = info.bytes;
  json["time"] = info.time == 0 ? Json(nullptr) : Json(info.time);
  Json& tags = json["tags"] = Json::object();
  for (const auto& [name, value] : info.tags) std::visit([&, &key = name](const auto& v) { tags[key] = v; }, value);
  json["pinned"] = info.pinned;
  json["reason"] = info.reason;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);   // names of files need not be UTF-8
}

}  // namespace neve
