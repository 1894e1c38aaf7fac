#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/values.h"

namespace neve::format {
namespace {

using Kind = Value::Kind;

template <typename Float>
std::string FloatText(Float number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char digits[40];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, number);
  std::string text(digits, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// The number in a numpy scalar of a plain little-endian dtype ("<f4", "|u1"); "" for any other.
std::string NumpyNumber(std::string_view dtype, std::string_view bytes) {
  if (dtype.size() != 3 || dtype[0] == '>' || bytes.empty() || bytes.size() > 8 ||
      bytes.size() != static_cast<size_t>(dtype[2] - '0'))
    return "";
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data(), bytes.size());
  const int spare = 64 - 8 * static_cast<int>(bytes.size());
  switch (dtype[1]) {
    case 'b': return bits != 0 ? "True" : "False";
    case 'u': return std::to_string(bits);
    case 'i': return std::to_string(static_cast<int64_t>(bits << spare) >> spare);
    case 'f':
      if (bytes.size() == 4) return FloatText(std::bit_cast<float>(static_cast<uint32_t>(bits)));
      return bytes.size() == 8 ? FloatText(std::bit_cast<double>(bits)) : "";
    default: return "";
  }
}

// Writes until the room is used up; then one "..." and nothing more, however large the value is.
class Describer {
 public:
  explicit Describer(size_t bytes_max) : bytes_max_(bytes_max) {}

  void Add(const Value& value) {
    if (full_) return;
    switch (value.kind) {
      case Kind::kNone: return Put("None");
      case Kind::kBool: return Put(value.flag ? "True" : "False");
      case Kind::kInteger: return Put(value.text);
      case Kind::kFloat: return Put(FloatText(value.number));
      case Kind::kComplex: return Put(absl::StrFormat("complex(%s, %s)", FloatText(value.number), FloatText(value.imaginary)));
      case Kind::kText: return Put(Quoted(value.text));
      case Kind::kBytes: return Put(absl::StrFormat("bytes(%d)", value.text.size()));
      case Kind::kByteArray: return Put(absl::StrFormat("bytearray(%d)", value.text.size()));
      case Kind::kList: return AddItems("[", value, "]");
      case Kind::kTuple: return AddItems("(", value, value.items.size() == 1 ? ",)" : ")");
      case Kind::kDict: return AddPairs("{", value, "}");
      case Kind::kOrderedDict: return AddPairs("OrderedDict({", value, "})");
      case Kind::kCounter: return AddPairs("Counter({", value, "})");
      case Kind::kSet: return AddItems("set(", value, ")");
      case Kind::kFrozenSet: return AddItems("frozenset(", value, ")");
      case Kind::kTorchSize: return AddItems("torch.Size([", value, "])");
      case Kind::kTorchDType:
        return Put(absl::StrFormat("torch.%s", value.text.substr(value.text.starts_with("torch.") ? 6 : 0)));
      case Kind::kTorchDevice: return Put(absl::StrFormat("device(%s)", Quoted(value.text)));
      case Kind::kNumpyScalar: {
        const std::string number = NumpyNumber(value.text, value.items[0].text);
        return Put(absl::StrFormat("numpy(%s, %s)", Quoted(value.text),
                                   number.empty() ? absl::StrFormat("%d bytes", value.items[0].text.size()) : number));
      }
      case Kind::kTyped:
        Put(value.text);
        return AddItems("(", value, ")");
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  void Put(std::string_view text) {
    if (full_) return;
    out_.append(text);
    if (out_.size() <= bytes_max_) return;
    full_ = true;
    size_t cut = bytes_max_;
    while (cut > 0 && (static_cast<unsigned char>(out_[cut]) & 0xC0) == 0x80) --cut;   // not within a character
    out_.resize(cut);
    out_.append("...");
  }

  void AddItems(std::string_view open, const Value& value, std::string_view close) {
    Put(open);
    for (size_t i = 0; i < value.items.size() && !full_; ++i) {
      if (i > 0) Put(", ");
      Add(value.items[i]);
    }
    Put(close);
  }

  void AddPairs(std::string_view open, const Value& value, std::string_view close) {
    Put(open);
    for (size_t i = 0; i + 1 < value.items.size() && !full_; i += 2) {
      if (i > 0) Put(", ");
      Add(value.items[i]);
      Put(": ");
      Add(value.items[i + 1]);
    }
    Put(close);
  }

  size_t bytes_max_;
  bool full_ = false;
  std::string out_;
};

}  // namespace

std::string DescribeValue(const Value& value, size_t bytes_max) {
  Describer describer(bytes_max);
  describer.Add(value);
  return describer.Take();
}

std::string DescribeBlob(std::string_view payload, size_t bytes_max) {
  if (payload.empty()) return "an empty blob";
  const std::string_view rest = payload.substr(1);
  switch (payload.front()) {
    case 'y': return absl::StrFormat("bytes(%d)", rest.size());
    case 'p': return absl::StrFormat("a pickle of %d bytes (not run)", rest.size());
    case 's': {
      Value text;
      text.kind = Kind::kText;
      text.text = rest.substr(0, 2 * bytes_max + 4);   // Quoted cuts; the rest is not looked at
      return DescribeValue(text, bytes_max);
    }
    case 'v': {
      ValuesReader reader(rest);
      const absl::StatusOr<Value> value = reader.Next();
      if (!value.ok()) return absl::StrFormat("%d bytes of values (%s)", rest.size(), std::string(value.status().message()));
      return DescribeValue(*value, bytes_max);
    }
    default: return absl::StrFormat("a blob of %d bytes of an unknown kind", payload.size());
  }
}

}  // namespace neve::format
