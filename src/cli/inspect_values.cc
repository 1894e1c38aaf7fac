#include "cli/inspect_values.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/codec/text.h"
#include "cli/text.h"

namespace neve::cli {
namespace {

using format::Value;
using Kind = Value::Kind;

Json FloatJson(double number) {
  if (std::isfinite(number)) return number;
  return Json{{"$float", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};   // JSON has no such numbers
}

// Python's integers have no limit; JSON's readers have.
Json IntegerJson(const std::string& digits) {
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  return error == std::errc() && stop == end ? Json(number) : Json{{"$int", digits}};
}

Json ItemsJson(const Value& value) {
  Json items = Json::array();
  for (const Value& item : value.items) items.push_back(JsonOf(item));
  return items;
}

Json PairsJson(const Value& value) {
  std::vector<std::pair<Value, Json>> pairs;
  for (size_t i = 0; i + 1 < value.items.size(); i += 2) pairs.emplace_back(value.items[i], JsonOf(value.items[i + 1]));
  return DictJson(std::move(pairs), nullptr);
}

Json CallJson(const std::string& name, const Value& of) {
  Json json;
  json["$call"] = name;
  json["of"] = JsonOf(of);
  return json;
}

bool CanBeAName(const Value& key) {
  return key.kind == Kind::kText && codec::IsValidUtf8(key.text) && !key.text.starts_with('$');
}

}  // namespace

Json JsonOf(const Value& value) {
  switch (value.kind) {
    case Kind::kNone: return nullptr;
    case Kind::kBool: return value.flag;
    case Kind::kInteger: return IntegerJson(value.text);
    case Kind::kFloat: return FloatJson(value.number);
    case Kind::kComplex: return Json{{"$complex", Json::array({FloatJson(value.number), FloatJson(value.imaginary)})}};
    case Kind::kText: return value.text;
    case Kind::kBytes: return Json{{"$bytes", codec::Base64UrlEncode(value.text)}};
    case Kind::kByteArray: return Json{{"$bytearray", codec::Base64UrlEncode(value.text)}};
    case Kind::kList: return ItemsJson(value);
    case Kind::kTuple: return Json{{"$tuple", ItemsJson(value)}};
    case Kind::kDict:
    case Kind::kOrderedDict:
    case Kind::kCounter: return PairsJson(value);
    case Kind::kSet: return Json{{"$set", ItemsJson(value)}};
    case Kind::kFrozenSet: return Json{{"$frozenset", ItemsJson(value)}};
    case Kind::kTorchSize: return Json{{"$size", ItemsJson(value)}};
    case Kind::kTorchDType: return Json{{"$dtype", value.text}};
    case Kind::kTorchDevice: return Json{{"$device", value.text}};
    case Kind::kNumpyScalar: return CallJson("numpy." + value.text, value.items[0]);
    case Kind::kTyped: return CallJson(value.text, value.items[0]);
  }
  return nullptr;
}

Json DictJson(std::vector<std::pair<Value, Json>> pairs, Json attributes) {
  constexpr size_t kObjectMax = 4096;   // an ordered object is searched for each name that is added
  bool plain = pairs.size() <= kObjectMax && attributes.is_null();
  for (const auto& [key, value] : pairs) plain = plain && CanBeAName(key);
  if (plain) {
    Json object = Json::object();
    for (auto& [key, value] : pairs) object[key.text] = std::move(value);
    return object;
  }
  Json list = Json::array();
  for (auto& [key, value] : pairs) list.push_back(Json::array({JsonOf(key), std::move(value)}));
  Json dict{{"$dict", std::move(list)}};
  if (!attributes.is_null()) dict["attributes"] = std::move(attributes);
  return dict;
}

std::string TextOf(const Value& value) {
  constexpr size_t kBytesMax = 64u << 10;
  return EscapedMessage(format::DescribeValue(value, kBytesMax));   // which escapes control characters, but not all that mislead
}

}  // namespace neve::cli
