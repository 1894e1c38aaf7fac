#include "format/pickle_values.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"
#include "format/key_escapes.h"
#include "format/pickle_text.h"
#include "format/torch_types.h"
#include "format/values.h"

namespace neve::format {
namespace {

bool IsPlainText(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\'' && c != '\\'; });
}

// Whether whole numbers of this magnitude are written in decimal, so that a number has one form whoever writes it: is_short_int of
// python/neve/_values.py.
bool IsShort(std::string_view hex) {
  constexpr size_t kBits = 2000;
  if (hex.starts_with('-')) hex.remove_prefix(1);
  if (hex.size() != kBits / 4) return hex.size() < kBits / 4;
  return hex[0] < '8';
}

void AppendLong(std::string_view twos, std::string* out) {
  std::string text = TwosComplementToHex(twos);
  const bool is_short = IsShort(text) && TwosComplementToDecimal(twos, &text);
  *out += (is_short ? "i" : "h") + text + ";";
}

bool IsUnchanged(const PickleCall& call) { return call.state == 0 && call.items.empty() && call.pairs.empty(); }

}  // namespace

std::string FloatHex(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  const uint64_t bits = std::bit_cast<uint64_t>(number);
  const uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
  const int exponent = static_cast<int>(bits >> 52 & 0x7FF);
  const char* const sign = bits >> 63 ? "-" : "";
  if (exponent == 0 && mantissa == 0) return absl::StrFormat("%s0x0.0p+0", sign);
  return absl::StrFormat("%s0x%d.%013xp%+d", sign, exponent == 0 ? 0 : 1, mantissa, exponent == 0 ? -1022 : exponent - 1023);
}

void AppendFloatValue(double number, std::string* out) {
  if (std::isnan(number)) {
    *out += absl::StrFormat("x%016x;", std::bit_cast<uint64_t>(number));
  } else {
    *out += "d" + FloatHex(number) + ";";
  }
}

void AppendTextValue(std::string_view text, std::string* out) {
  if (IsPlainText(text)) {
    out->append("'").append(text).append("'");
  } else {
    out->append("s").append(codec::Base64UrlEncode(text)).append(";");
  }
}

// ---- what is what ----

bool PickleValues::IsBuiltin(PickleNode node, std::string_view name) const {
  return graph_.IsCallOf(node, "builtins", name) || graph_.IsCallOf(node, "__builtin__", name);
}

std::span<const PickleNode> PickleValues::Args(PickleNode call) const {
  const PickleNode args = graph_.Call(call).args;
  if (graph_.kind(args) != PickleKind::kTuple) return {};
  return graph_.Items(args);
}

bool PickleValues::IsBytes(PickleNode node) const {
  const PickleKind kind = graph_.kind(node);
  if (kind == PickleKind::kBytes) return true;
  if (kind != PickleKind::kCall || !IsUnchanged(graph_.Call(node))) return false;
  const std::span<const PickleNode> args = Args(node);
  if (IsBuiltin(node, "bytes")) return args.empty();
  if (!graph_.IsCallOf(node, "_codecs", "encode") || args.size() != 2 || graph_.kind(args[0]) != PickleKind::kText) return false;
  return graph_.IsText(args[1], "latin1") || graph_.IsText(args[1], "latin-1");
}

bool PickleValues::BytesOf(PickleNode node, std::string* bytes) const {
  if (!IsBytes(node)) return false;
  bytes->clear();
  if (graph_.kind(node) == PickleKind::kBytes) {
    *bytes = graph_.Bytes(node);
    return true;
  }
  const std::span<const PickleNode> args = Args(node);
  return args.empty() || Latin1FromUtf8(graph_.Bytes(args[0]), bytes);
}

bool PickleValues::OrderedPairs(PickleNode node, std::vector<PickleNode>* pairs) const {
  const PickleCall& call = graph_.Call(node);
  if (!IsOrderedDict(node) || !call.items.empty()) return false;
  pairs->clear();
  const std::span<const PickleNode> args = Args(node);
  if (args.size() > 1) return false;
  if (args.size() == 1) {  // Python 2: a list of pairs
    if (graph_.kind(args[0]) != PickleKind::kList) return false;
    for (const PickleNode pair : graph_.Items(args[0])) {
      const PickleKind kind = graph_.kind(pair);
      if ((kind != PickleKind::kList && kind != PickleKind::kTuple) || graph_.Items(pair).size() != 2) return false;
      pairs->insert(pairs->end(), graph_.Items(pair).begin(), graph_.Items(pair).end());
    }
  }
  pairs->insert(pairs->end(), call.pairs.begin(), call.pairs.end());
  return true;
}

std::optional<PickleValues::NumpyDType> PickleValues::DTypeOf(PickleNode node) const {
  if (!graph_.IsCallOf(node, "numpy", "dtype")) return std::nullopt;
  const std::span<const PickleNode> args = Args(node);
  if (args.empty() || graph_.kind(args[0]) != PickleKind::kText) return std::nullopt;
  const std::string_view code = graph_.Bytes(args[0]);  // "f8"
  uint64_t size = 0;
  if (code.size() < 2 || std::string_view("biufcSUMm").find(code[0]) == std::string_view::npos) return std::nullopt;
  const auto [stop, error] = std::from_chars(code.data() + 1, code.data() + code.size(), size);
  if (error != std::errc() || stop != code.data() + code.size() || size == 0 || size > (1u << 30)) return std::nullopt;
  char order = '<';
  std::string unit;
  const PickleNode state = graph_.Call(node).state;
  if (state != 0) {
    // (version, order, subarray, names, fields, itemsize, alignment, flags[, (metadata, (unit, count, 1, 1))])
    if (graph_.kind(state) != PickleKind::kTuple) return std::nullopt;
    const std::span<const PickleNode> parts = graph_.Items(state);
    if (parts.size() < 5 || graph_.kind(parts[1]) != PickleKind::kText || graph_.Bytes(parts[1]).size() != 1) return std::nullopt;
    if (graph_.kind(parts[2]) != PickleKind::kNone || graph_.kind(parts[3]) != PickleKind::kNone) return std::nullopt;
    order = graph_.Bytes(parts[1])[0];
    if (order == '=') order = '<';
    if (order != '<' && order != '>' && order != '|') return std::nullopt;
    if (code[0] == 'S' || code[0] == 'U') {  // their code has no size of its own in the state of old versions
      if (parts.size() > 5 && graph_.kind(parts[5]) == PickleKind::kInteger && graph_.Integer(parts[5]) > 0) {
        size = static_cast<uint64_t>(graph_.Integer(parts[5])) / (code[0] == 'U' ? 4 : 1);
      }
    }
    if ((code[0] == 'M' || code[0] == 'm') && parts.size() > 8 && graph_.kind(parts[8]) == PickleKind::kTuple) {
      const std::span<const PickleNode> meta = graph_.Items(parts[8]);
      if (meta.size() != 2 || graph_.kind(meta[1]) != PickleKind::kTuple) return std::nullopt;
      const std::span<const PickleNode> what = graph_.Items(meta[1]);
      std::string name;
      if (what.size() != 4 || graph_.kind(what[1]) != PickleKind::kInteger) return std::nullopt;
      if (graph_.kind(what[0]) == PickleKind::kText)
        name = graph_.Bytes(what[0]);
      else if (!BytesOf(what[0], &name))
        return std::nullopt;
      if (name.empty() || name.size() > 7 ||
          !std::all_of(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'z'; })) {
        return std::nullopt;
      }
      const int64_t count = graph_.Integer(what[1]);
      if (name != "generic") unit = count == 1 ? "[" + name + "]" : absl::StrFormat("[%d%s]", count, name);
    }
  }
  if (size == 1 || code[0] == 'S') order = '|';
  return NumpyDType{absl::StrFormat("%c%c%d%s", order, code[0], size, unit), size * (code[0] == 'U' ? 4 : 1)};
}

bool PickleValues::Classify(PickleNode node, int depth) {
  Class& known = classes_[node];
  if (known == Class::kValue) return true;
  if (known != Class::kUnknown || depth > kValuesDepthMax) return false;  // kVisiting: a circle
  known = Class::kVisiting;
  const bool value = ClassifyUncached(node, depth);
  classes_[node] = value ? Class::kValue : Class::kOther;
  return value;
}

bool PickleValues::ClassifyUncached(PickleNode node, int depth) {
  switch (graph_.kind(node)) {
    case PickleKind::kNone:
    case PickleKind::kFalse:
    case PickleKind::kTrue:
    case PickleKind::kInteger:
    case PickleKind::kFloat:
    case PickleKind::kText:
    case PickleKind::kBytes:
    case PickleKind::kByteArray:
      return true;
    case PickleKind::kLong:
      return graph_.Bytes(node).size() <= kLongBytesMax;
    case PickleKind::kTuple:
    case PickleKind::kList:
    case PickleKind::kSet:
    case PickleKind::kFrozenSet:
    case PickleKind::kDict: {
      bool all = true;  // every member is looked at, so that each has its class when it is asked for
      for (const PickleNode item : graph_.Items(node)) all = Classify(item, depth + 1) && all;
      return all;
    }
    case PickleKind::kGlobal: {
      const PickleGlobal global = graph_.Global(node);
      return global.module == "torch" && TorchDTypeNamed(global.name) != std::nullopt;
    }
    case PickleKind::kPersistent:
      return false;
    case PickleKind::kCall:
      return ClassifyCall(node, depth);
  }
  return false;
}

bool PickleValues::ClassifyCall(PickleNode node, int depth) {
  const PickleCall& call = graph_.Call(node);
  const std::span<const PickleNode> args = Args(node);
  if (IsOrderedDict(node)) {
    std::vector<PickleNode> pairs;
    if (call.state != 0 || !OrderedPairs(node, &pairs)) return false;
    bool all = true;
    for (const PickleNode item : pairs) all = Classify(item, depth + 1) && all;
    return all;
  }
  if (!IsUnchanged(call)) return false;
  if (IsBytes(node)) {
    std::string bytes;
    return BytesOf(node, &bytes);
  }
  if (IsBuiltin(node, "set") || IsBuiltin(node, "frozenset")) {
    return args.empty() || (args.size() == 1 && graph_.kind(args[0]) == PickleKind::kList && Classify(args[0], depth + 1));
  }
  if (IsCounter(node)) {
    return args.empty() || (args.size() == 1 && graph_.kind(args[0]) == PickleKind::kDict && Classify(args[0], depth + 1));
  }
  if (IsBuiltin(node, "complex")) {
    return args.size() == 2 && graph_.kind(args[0]) == PickleKind::kFloat && graph_.kind(args[1]) == PickleKind::kFloat;
  }
  if (IsBuiltin(node, "bytearray")) {
    std::string bytes;
    if (args.empty()) return true;
    if (args.size() == 1) return BytesOf(args[0], &bytes);
    return args.size() == 2 && graph_.kind(args[0]) == PickleKind::kText && graph_.IsText(args[1], "latin-1") &&
           Latin1FromUtf8(graph_.Bytes(args[0]), &bytes);
  }
  if (graph_.IsCallOf(node, "torch", "Size")) {
    if (args.size() != 1 || graph_.kind(args[0]) != PickleKind::kTuple) return false;
    const auto items = graph_.Items(args[0]);
    return std::all_of(items.begin(), items.end(), [&](PickleNode item) { return graph_.kind(item) == PickleKind::kInteger; });
  }
  if (graph_.IsCallOf(node, "torch", "device")) {
    if (args.empty() || args.size() > 2 || graph_.kind(args[0]) != PickleKind::kText) return false;
    return IsPlainText(graph_.Bytes(args[0])) && (args.size() == 1 || graph_.kind(args[1]) == PickleKind::kInteger);
  }
  if (graph_.IsCallOf(node, "numpy.core.multiarray", "scalar") || graph_.IsCallOf(node, "numpy._core.multiarray", "scalar")) {
    std::string bytes;
    if (args.size() != 2) return false;
    const auto dtype = DTypeOf(args[0]);
    return dtype && BytesOf(args[1], &bytes) && bytes.size() == dtype->item_bytes;
  }
  return false;
}

// ---- values text ----

absl::Status PickleValues::EncodeItems(std::string_view open, std::span<const PickleNode> items, char close, uint64_t bytes_max,
                                       std::string* out) const {
  out->append(open);
  for (const PickleNode item : items) NEVE_RETURN_IF_ERROR(Encode(item, bytes_max, out));
  out->push_back(close);
  return absl::OkStatus();
}

absl::Status PickleValues::Encode(PickleNode node, uint64_t bytes_max, std::string* out) const {
  if (out->size() > bytes_max) {
    return Exhausted(absl::StrFormat("it holds numbers and texts of more than %d bytes", bytes_max));
  }
  switch (graph_.kind(node)) {
    case PickleKind::kNone:
      out->push_back('n');
      break;
    case PickleKind::kFalse:
      out->push_back('f');
      break;
    case PickleKind::kTrue:
      out->push_back('t');
      break;
    case PickleKind::kInteger:
      *out += absl::StrFormat("i%d;", graph_.Integer(node));
      break;
    case PickleKind::kLong:
      AppendLong(graph_.Bytes(node), out);
      break;
    case PickleKind::kFloat:
      AppendFloatValue(graph_.Float(node), out);
      break;
    case PickleKind::kText:
      AppendTextValue(graph_.Bytes(node), out);
      break;
    case PickleKind::kBytes:
      *out += "y" + codec::Base64UrlEncode(graph_.Bytes(node)) + ";";
      break;
    case PickleKind::kByteArray:
      *out += "Y" + codec::Base64UrlEncode(graph_.Bytes(node)) + ";";
      break;
    case PickleKind::kTuple:
      return EncodeItems("(", graph_.Items(node), ')', bytes_max, out);
    case PickleKind::kList:
      return EncodeItems("[", graph_.Items(node), ']', bytes_max, out);
    case PickleKind::kSet:
      return EncodeItems("S(", graph_.Items(node), ')', bytes_max, out);
    case PickleKind::kFrozenSet:
      return EncodeItems("F(", graph_.Items(node), ')', bytes_max, out);
    case PickleKind::kDict:
      return EncodeItems("{", graph_.Items(node), '}', bytes_max, out);
    case PickleKind::kGlobal:
      out->append("T'").append(*TorchDTypeNamed(graph_.Global(node).name)).append("'");
      break;
    case PickleKind::kPersistent:
      return Internal("a storage is no value");
    case PickleKind::kCall:
      return EncodeCall(node, bytes_max, out);
  }
  return absl::OkStatus();
}

absl::Status PickleValues::EncodeCall(PickleNode node, uint64_t bytes_max, std::string* out) const {
  const std::span<const PickleNode> args = Args(node);
  std::string bytes;
  if (IsOrderedDict(node)) {
    std::vector<PickleNode> pairs;
    OrderedPairs(node, &pairs);
    return EncodeItems("E{", pairs, '}', bytes_max, out);
  }
  if (BytesOf(node, &bytes)) {
    *out += "y" + codec::Base64UrlEncode(bytes) + ";";
  } else if (IsBuiltin(node, "set") || IsBuiltin(node, "frozenset")) {
    const std::span<const PickleNode> items = args.empty() ? args : graph_.Items(args[0]);
    return EncodeItems(IsBuiltin(node, "set") ? "S(" : "F(", items, ')', bytes_max, out);
  } else if (IsCounter(node)) {
    return EncodeItems("C{", args.empty() ? args : graph_.Items(args[0]), '}', bytes_max, out);
  } else if (IsBuiltin(node, "complex")) {
    out->push_back('c');
    AppendFloatValue(graph_.Float(args[0]), out);
    AppendFloatValue(graph_.Float(args[1]), out);
  } else if (IsBuiltin(node, "bytearray")) {
    if (args.size() == 1) BytesOf(args[0], &bytes);
    if (args.size() == 2) Latin1FromUtf8(graph_.Bytes(args[0]), &bytes);
    *out += "Y" + codec::Base64UrlEncode(bytes) + ";";
  } else if (graph_.IsCallOf(node, "torch", "Size")) {
    return EncodeItems("Z(", graph_.Items(args[0]), ')', bytes_max, out);
  } else if (graph_.IsCallOf(node, "torch", "device")) {
    out->append("D'").append(graph_.Bytes(args[0]));
    if (args.size() == 2) *out += absl::StrFormat(":%d", graph_.Integer(args[1]));
    out->push_back('\'');
  } else {
    BytesOf(args[1], &bytes);
    *out += "N'" + DTypeOf(args[0])->text + "'y" + codec::Base64UrlEncode(bytes) + ";";
  }
  return absl::OkStatus();
}

std::optional<std::string> PickleValues::EscapeKey(PickleNode key) {
  constexpr uint64_t kKeyBytesMax = 16u << 20;
  std::string text;
  switch (graph_.kind(key)) {
    case PickleKind::kText:
      return EscapeTextKey(graph_.Bytes(key));
    case PickleKind::kInteger:
      return absl::StrFormat("~i%d", graph_.Integer(key));
    case PickleKind::kTrue:
      return "~t";
    case PickleKind::kFalse:
      return "~f";
    case PickleKind::kNone:
      return "~n";
    case PickleKind::kFloat:
      if (!std::isnan(graph_.Float(key))) return "~d" + FloatHex(graph_.Float(key));
      break;
    case PickleKind::kLong:
      if (!IsShort(TwosComplementToHex(graph_.Bytes(key)))) break;
      if (!TwosComplementToDecimal(graph_.Bytes(key), &text)) return std::nullopt;
      return "~i" + text;
    default:
      if (BytesOf(key, &text)) return "~y" + codec::Base64UrlEncode(text);
  }
  if (!IsValue(key) || !Encode(key, kKeyBytesMax, &text).ok()) return std::nullopt;
  return "~p" + codec::Base64UrlEncode(text);
}

}  // namespace neve::format
