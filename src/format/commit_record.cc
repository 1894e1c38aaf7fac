#include "format/commit_record.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_reader.h"
#include "format/json_text.h"
#include "format/names.h"

namespace neve::format {
namespace {

constexpr uint64_t kFormat = 1;
constexpr std::string_view kDigestField = ",\"digest\":\"";
constexpr size_t kDigestDigits = 32;
constexpr size_t kSealBytes = kDigestField.size() + kDigestDigits + 2;   // with the closing quote and brace

void AppendField(std::string_view name, std::string* out) {
  out->push_back(',');
  AppendJsonString(name, out);
  out->push_back(':');
}

void AppendField(std::string_view name, uint64_t value, std::string* out) {
  AppendField(name, out);
  AppendNumber(value, out);
}

// A double always has a point or an exponent, so that it comes back as a double. JSON has no words for what is not finite:
// those are {"f":"nan"}, {"f":"inf"}, {"f":"-inf"}.
void AppendDouble(double value, std::string* out) {
  if (!std::isfinite(value)) {
    out->append(std::isnan(value) ? "{\"f\":\"nan\"}" : value > 0 ? "{\"f\":\"inf\"}" : "{\"f\":\"-inf\"}");
    return;
  }
  char digits[40];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  out->append(text);
  if (text.find_first_of(".e") == std::string_view::npos) out->append(".0");
}

void AppendTag(const TagValue& value, std::string* out) {
  if (const bool* flag = std::get_if<bool>(&value)) {
    out->append(*flag ? "true" : "false");
  } else if (const int64_t* number = std::get_if<int64_t>(&value)) {
    AppendNumber(*number, out);
  } else if (const double* real = std::get_if<double>(&value)) {
    AppendDouble(*real, out);
  } else {
    AppendJsonText(std::get<std::string>(value), out);
  }
}

bool ReadNotFinite(JsonReader& in, double* value) {
  std::string_view key, word;
  bool known = false;
  if (!in.EnterObject()) return false;
  while (in.NextKey(&key)) {
    if (key != "f" || !in.StringView(&word)) return in.Fail("a tag that is an object other than {\"f\":..}");
    known = true;
    if (word == "nan") {
      *value = std::numeric_limits<double>::quiet_NaN();
    } else if (word == "inf" || word == "-inf") {
      *value = word == "inf" ? HUGE_VAL : -HUGE_VAL;
    } else {
      return in.Fail("a tag that is neither nan, inf nor -inf");
    }
  }
  return in.ok() && (known || in.Fail("a tag that is an empty object"));
}

bool ReadTag(JsonReader& in, TagValue* value) {
  switch (in.Peek()) {
    case JsonReader::Kind::kBool: {
      bool flag = false;
      if (!in.Bool(&flag)) return false;
      *value = flag;
      return true;
    }
    case JsonReader::Kind::kString: {
      std::string text;
      if (!in.String(&text)) return false;
      *value = std::move(text);
      return true;
    }
    case JsonReader::Kind::kNumber: {
      std::string_view text;
      if (!in.Number(&text)) return false;
      const auto parse = [&](auto number) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        *value = number;
        return error == std::errc() || in.Fail("a tag out of the range of its kind of number");
      };
      return text.find_first_of(".eE") == std::string_view::npos ? parse(int64_t{0}) : parse(double{0});
    }
    case JsonReader::Kind::kObject: {
      double real = 0;
      if (!ReadNotFinite(in, &real)) return false;
      *value = real;
      return true;
    }
    default: return in.Fail("a tag that is not a flag, number or string");
  }
}

enum FieldBit : uint32_t {
  kFormatBit = 1u << 0, kJobBit = 1u << 1, kUidBit = 1u << 2, kStepBit = 1u << 3, kIncarnationBit = 1u << 4,
  kSequenceBit = 1u << 5, kRankBit = 1u << 6, kWorldBit = 1u << 7, kTimeBit = 1u << 8, kTagsBit = 1u << 9,
  kLayoutBit = 1u << 10, kImageBit = 1u << 11, kDigestsBit = 1u << 12, kProvenanceBit = 1u << 13,
};
constexpr std::string_view kFieldNames[] = {"format", "job",  "uid",  "step",   "incarnation", "sequence", "rank",
                                            "world",  "time", "tags", "layout", "image",       "digests",  "provenance"};
static_assert(kProvenanceBit == 1u << (std::size(kFieldNames) - 1));

class RecordReader {
 public:
  explicit RecordReader(std::string_view text) : in_(text) {}

  absl::StatusOr<CommitRecord> Read() {
    std::string_view key;
    if (in_.EnterObject()) {
      while (in_.NextKey(&key)) {
        if (!ReadField(key)) break;
        if (format_ != kFormat && (seen_ & kFormatBit) != 0) return OtherFormat(format_);
      }
    }
    NEVE_RETURN_IF_ERROR(in_.Finish());
    for (size_t i = 0; i < std::size(kFieldNames); ++i) {
      if ((seen_ >> i & 1) == 0) return Damaged(absl::StrFormat("the field %s is missing", kFieldNames[i]));
    }
    NEVE_RETURN_IF_ERROR(Check());
    return std::move(record_);
  }

  static absl::Status OtherFormat(uint64_t format) {
    return Unsupported(absl::StrFormat("its format is %d, this build reads %d; use a newer neve", format, kFormat));
  }

 private:
  bool ReadField(std::string_view key) {
    for (size_t i = 0; i < std::size(kFieldNames); ++i) {
      if (key != kFieldNames[i]) continue;
      seen_ |= 1u << i;
      return ReadKnown(1u << i);
    }
    return in_.Skip();   // of a later minor version, or the record's own digest, checked before
  }

  bool ReadKnown(uint32_t field) {
    ImageKey& key = record_.key;
    std::string_view text;
    switch (field) {
      case kFormatBit: return in_.Unsigned(&format_);
      case kJobBit: return in_.String(&record_.job);
      case kUidBit:
        return in_.StringView(&text) && (Uid::FromHex(text, &record_.uid) || in_.Fail("uid is not 32 hexadecimal digits"));
      case kStepBit: return in_.Unsigned(&key.step);
      case kIncarnationBit: return ReadSmall("incarnation", &key.save.incarnation);
      case kSequenceBit: return in_.Unsigned(&key.save.sequence);
      case kRankBit: return ReadSmall("rank", &key.rank);
      case kWorldBit: return ReadSmall("world", &key.world);
      case kTimeBit: return in_.Integer(&record_.time);
      case kTagsBit: return ReadTags();
      case kLayoutBit: return ReadLayout();
      case kImageBit: return ReadImage();
      case kDigestsBit: return ReadDigests();
      default: return ReadProvenance();
    }
  }

  bool ReadSmall(std::string_view name, uint32_t* value) {
    uint64_t wide = 0;
    if (!in_.Unsigned(&wide)) return false;
    if (wide > UINT32_MAX) return in_.Fail(absl::StrFormat("%s is %d, over 32 bits", name, wide));
    *value = static_cast<uint32_t>(wide);
    return true;
  }

  bool ReadTags() {
    std::string_view key;
    if (!in_.EnterObject()) return false;
    while (in_.NextKey(&key)) {
      TagValue value;
      if (!ReadTag(in_, &value)) return false;
      record_.tags.emplace(key, std::move(value));
    }
    return in_.ok();
  }

  bool ReadLayout() {
    std::string_view text;
    if (!in_.StringView(&text)) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), record_.layout_id, 16);
    if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
      return in_.Fail("layout is not 16 hexadecimal digits");
    }
    return true;
  }

  bool ReadImage() {
    std::string_view key;
    int found = 0;
    if (!in_.EnterObject()) return false;
    while (in_.NextKey(&key)) {
      bool good = true;
      if (key == "file") {
        good = in_.String(&file_);
      } else if (key == "bytes") {
        good = in_.Unsigned(&record_.image_bytes);
      } else if (key == "chunk_bytes") {
        good = in_.Unsigned(&record_.chunk_bytes);
      } else if (key == "header_bytes") {
        good = in_.Unsigned(&record_.header_bytes);
      } else {
        --found;
        good = in_.Skip();
      }
      if (!good) return false;
      ++found;
    }
    return in_.ok() && (found == 4 || in_.Fail("image lacks its file, bytes, chunk_bytes or header_bytes"));
  }

  bool ReadDigests() {
    std::string_view text;
    if (!in_.EnterArray()) return false;
    while (in_.NextElement()) {
      codec::Digest digest;
      if (!in_.StringView(&text)) return false;
      if (!codec::Digest::FromHex(text, &digest)) return in_.Fail("a digest is not 32 hexadecimal digits");
      record_.digests.push_back(digest);
    }
    return in_.ok();
  }

  bool ReadProvenance() {
    std::string_view key;
    if (!in_.EnterObject()) return false;
    while (in_.NextKey(&key)) {
      std::string value;
      if (!in_.String(&value)) return false;
      record_.provenance.emplace(key, std::move(value));
    }
    return in_.ok();
  }

  absl::Status Check() const {
    const CommitRecord& r = record_;
    if (r.key.step >= kStepLimit) return Damaged(absl::StrFormat("step %d is not below %d", r.key.step, kStepLimit));
    if (r.key.world == 0 || r.key.rank >= r.key.world) {
      return Damaged(absl::StrFormat("rank %d of world %d", r.key.rank, r.key.world));
    }
    if (const std::string name = FormatImageName(r.key.rank, r.key.world); file_ != name) {
      return Damaged(absl::StrFormat("it describes the file %s, but its rank's is %s", Quoted(file_), name));
    }
    if (r.chunk_bytes < kChunkBytesMin || r.chunk_bytes > kChunkBytesMax) {
      return Damaged(absl::StrFormat("chunk_bytes is %d, not within %d and %d", r.chunk_bytes, kChunkBytesMin, kChunkBytesMax));
    }
    if (r.image_bytes > uint64_t{1} << 62) return Damaged(absl::StrFormat("an image of %d bytes", r.image_bytes));
    if (r.header_bytes > r.image_bytes) {
      return Damaged(absl::StrFormat("a header of %d bytes in an image of %d", r.header_bytes, r.image_bytes));
    }
    if (r.digests.size() != r.chunk_count()) {
      return Damaged(absl::StrFormat("%d digests for %d bytes in chunks of %d, which are %d", r.digests.size(), r.image_bytes,
                                     r.chunk_bytes, r.chunk_count()));
    }
    return absl::OkStatus();
  }

  JsonReader in_;
  CommitRecord record_;
  uint64_t format_ = 0;
  uint32_t seen_ = 0;
  std::string file_;
};

// Why a text without the closing digest is refused: another format may end otherwise, the rest is named by what JSON says.
absl::Status NoSeal(std::string_view text) {
  JsonReader in(text);
  std::string_view key;
  uint64_t format = 0;
  if (in.EnterObject() && in.NextKey(&key) && key == "format" && in.Unsigned(&format) && format != kFormat) {
    return RecordReader::OtherFormat(format);
  }
  JsonReader whole(text);
  whole.Skip();
  NEVE_RETURN_IF_ERROR(whole.Finish());
  return Damaged("it does not end with its own digest");
}

absl::StatusOr<CommitRecord> Decode(std::string_view text) {
  if (text.size() > kRecordBytesMax) {
    return Damaged(absl::StrFormat("it has %d bytes, over the limit of %d", text.size(), kRecordBytesMax));
  }
  if (text.size() < kSealBytes) return NoSeal(text);
  const size_t covered = text.size() - kSealBytes;
  const std::string_view seal = text.substr(covered);
  if (!seal.starts_with(kDigestField) || !seal.ends_with("\"}")) return NoSeal(text);
  const std::string_view written = seal.substr(kDigestField.size(), kDigestDigits);
  const std::string found = codec::DigestOf(std::as_bytes(std::span(text.substr(0, covered)))).ToHex();
  if (written != found) {   // as text: one digest has one spelling
    return DataLoss(absl::StrFormat("its own digest differs: %s is written, %s found", Quoted(written), found));
  }
  return RecordReader(text).Read();
}

}  // namespace

std::string EncodeRecord(const CommitRecord& record) {
  std::string out;
  out.reserve(1024 + record.job.size() + record.digests.size() * (kDigestDigits + 3));
  out.append("{\"format\":1");
  AppendField("job", &out);
  AppendJsonText(record.job, &out);
  AppendField("uid", &out);
  AppendJsonString(record.uid.ToHex(), &out);
  AppendField("step", record.key.step, &out);
  AppendField("incarnation", record.key.save.incarnation, &out);
  AppendField("sequence", record.key.save.sequence, &out);
  AppendField("rank", record.key.rank, &out);
  AppendField("world", record.key.world, &out);
  AppendField("time", &out);
  AppendNumber(record.time, &out);
  AppendField("tags", &out);
  out.push_back('{');
  for (bool first = true; const auto& [name, value] : record.tags) {
    if (!std::exchange(first, false)) out.push_back(',');
    AppendJsonText(name, &out);
    out.push_back(':');
    AppendTag(value, &out);
  }
  out.push_back('}');
  AppendField("layout", &out);
  out.append(absl::StrFormat("\"%016x\"", record.layout_id));
  out.append(",\"image\":{\"file\":");
  AppendJsonString(FormatImageName(record.key.rank, record.key.world), &out);
  AppendField("bytes", record.image_bytes, &out);
  AppendField("chunk_bytes", record.chunk_bytes, &out);
  AppendField("header_bytes", record.header_bytes, &out);
  out.append("},\"digests\":[");
  for (size_t i = 0; i < record.digests.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendJsonString(record.digests[i].ToHex(), &out);
  }
  out.append("],\"provenance\":{");
  for (bool first = true; const auto& [name, value] : record.provenance) {
    if (!std::exchange(first, false)) out.push_back(',');
    AppendJsonText(name, &out);
    out.push_back(':');
    AppendJsonText(value, &out);
  }
  out.push_back('}');
  const std::string digest = codec::DigestOf(std::as_bytes(std::span(std::string_view(out)))).ToHex();
  out.append(kDigestField).append(digest).append("\"}");
  return out;
}

absl::StatusOr<CommitRecord> DecodeRecord(std::string_view text) {
  absl::StatusOr<CommitRecord> record = Decode(text);
  if (!record.ok()) return Annotate(record.status(), "commit record");
  return record;
}

}  // namespace neve::format
