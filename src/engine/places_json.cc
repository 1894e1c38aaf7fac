// What is said of places, as JSON: by the command's --json and by the C API.
#include "neve/places.h"
#include "nlohmann/json.hpp"

namespace neve {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string ToJson(const Problem& problem) {
  const auto number = [](int64_t value) { return value < 0 ? Json(nullptr) : Json(value); };
  Json json;
  json["code"] = problem.code;
  json["place"] = problem.place;
  json["file"] = problem.file;
  json["tensor"] = problem.tensor.empty() ? Json(nullptr) : Json(problem.tensor);
  json["chunk"] = number(problem.chunk);
  json["offset"] = number(problem.offset);
  json["message"] = problem.message;
  return Dump(json);
}

std::string ToJson(const RecoverReport::Item& item) {
  Json json;
  json["job"] = item.job;
  json["uid"] = item.uid.known() ? Json(item.uid.ToHex()) : Json(nullptr);
  json["step"] = item.key.step;
  json["save_id"] = item.key.save.ToString();
  json["rank"] = item.key.rank;
  json["world"] = item.key.world;
  json["bytes"] = item.bytes;
  json["state"] = item.state;
  json["outcome"] = item.outcome;
  return Dump(json);
}

std::string ToJson(const GcReport::Item& item) {
  Json json;
  json["path"] = item.path;
  json["what"] = item.what;
  json["bytes"] = item.bytes;
  json["outcome"] = item.outcome;
  return Dump(json);
}

}  // namespace neve
