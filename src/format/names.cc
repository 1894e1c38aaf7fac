#include "format/names.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "absl/strings/str_format.h"
#include "base/codec/digest.h"
#include "format/json_reader.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

constexpr uint64_t kFormat = 1;

// Takes decimal digits off the front of `text`.
template <typename Integer>
bool TakeNumber(std::string_view* text, Integer* value) {
  if (text->empty() || text->front() < '0' || text->front() > '9') return false;   // from_chars would take a minus
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

bool TakeLiteral(std::string_view* text, std::string_view literal) {
  if (!text->starts_with(literal)) return false;
  text->remove_prefix(literal.size());
  return true;
}

constexpr std::string_view kImageEnd = ".safetensors", kRecordEnd = ".commit.json";

std::string FormatShard(uint32_t rank, uint32_t world, std::string_view end) {
  return absl::StrFormat("shard-%05d-of-%05d%s", rank, world, end);
}

}  // namespace

std::string FormatSaveName(const SaveName& name) {
  return absl::StrFormat("step-%012d.i%04d.s%06d", name.step, name.save.incarnation, name.save.sequence);
}

// Every parser formats what it found and compares: one number has one name, so no two folders are one save.
std::optional<SaveName> ParseSaveName(std::string_view name) {
  SaveName parsed;
  std::string_view rest = name;
  if (!TakeLiteral(&rest, "step-") || !TakeNumber(&rest, &parsed.step) || !TakeLiteral(&rest, ".i") ||
      !TakeNumber(&rest, &parsed.save.incarnation) || !TakeLiteral(&rest, ".s") ||
      !TakeNumber(&rest, &parsed.save.sequence) || !rest.empty()) {
    return std::nullopt;
  }
  if (parsed.step >= kStepLimit || FormatSaveName(parsed) != name) return std::nullopt;
  return parsed;
}

std::string FormatImageName(uint32_t rank, uint32_t world) { return FormatShard(rank, world, kImageEnd); }
std::string FormatRecordName(uint32_t rank, uint32_t world) { return FormatShard(rank, world, kRecordEnd); }

std::optional<ShardName> ParseShardName(std::string_view name) {
  ShardName parsed;
  std::string_view rest = name;
  if (!TakeLiteral(&rest, "shard-") || !TakeNumber(&rest, &parsed.rank) || !TakeLiteral(&rest, "-of-") ||
      !TakeNumber(&rest, &parsed.world) || (rest != kImageEnd && rest != kRecordEnd)) {
    return std::nullopt;
  }
  parsed.is_record = rest == kRecordEnd;
  if (parsed.rank >= parsed.world || FormatShard(parsed.rank, parsed.world, rest) != name) return std::nullopt;
  return parsed;
}

std::string FormatLifeName(uint32_t incarnation) { return absl::StrFormat("life-%04d.json", incarnation); }

std::optional<uint32_t> ParseLifeName(std::string_view name) {
  uint32_t incarnation = 0;
  std::string_view rest = name;
  if (!TakeLiteral(&rest, "life-") || !TakeNumber(&rest, &incarnation) || rest != ".json") return std::nullopt;
  if (FormatLifeName(incarnation) != name) return std::nullopt;
  return incarnation;
}

std::string EncodeJobIdentity(const JobIdentity& job) {
  std::string out = "{\"format\":1,\"name\":";
  AppendJsonText(job.name, &out);
  out.append(",\"uid\":\"").append(job.uid.ToHex()).append("\"}\n");
  return out;
}

absl::StatusOr<JobIdentity> DecodeJobIdentity(std::string_view text) {
  JobIdentity job;
  uint64_t format = 0;
  bool has_name = false, has_uid = false;
  JsonReader in(text);
  std::string_view key, value;
  if (in.EnterObject()) {
    while (in.NextKey(&key)) {
      if (key == "format") {
        in.Unsigned(&format);
      } else if (key == "name") {
        has_name = in.String(&job.name);
      } else if (key == "uid") {
        has_uid = in.StringView(&value) && Uid::FromHex(value, &job.uid);
        if (!has_uid) in.Fail("uid is not 32 hexadecimal digits");
      } else {
        in.Skip();
      }
    }
  }
  if (absl::Status status = in.Finish(); !status.ok()) return Annotate(status, std::string(kJobFile));
  if (format == 0 || !has_name || !has_uid || !job.uid.known()) {
    return Damaged(absl::StrFormat("%s: it lacks its format, name or uid", kJobFile));
  }
  if (format != kFormat) {
    return Unsupported(absl::StrFormat("%s: its format is %d, this build reads %d; use a newer neve", kJobFile, format, kFormat));
  }
  return job;
}

std::string EncodeLifeClaim(const LifeClaim& claim) {
  std::string out = "{\"nonce\":";
  AppendJsonText(claim.nonce, &out);
  out.append(",\"host\":");
  AppendJsonText(claim.host, &out);
  out.append(",\"boot_id\":");
  AppendJsonText(claim.boot_id, &out);
  out.append(",\"pid\":");
  AppendNumber(claim.pid, &out);
  out.append(",\"start_time\":");
  AppendNumber(claim.start_time, &out);
  out.append(",\"world\":");
  AppendNumber(uint64_t{claim.world}, &out);
  out.append("}\n");
  return out;
}

absl::StatusOr<LifeClaim> DecodeLifeClaim(std::string_view text) {
  LifeClaim claim;
  int found = 0;
  JsonReader in(text);
  std::string_view key;
  if (in.EnterObject()) {
    while (in.NextKey(&key)) {
      if (key == "nonce") {
        found += in.String(&claim.nonce);
      } else if (key == "host") {
        found += in.String(&claim.host);
      } else if (key == "boot_id") {
        found += in.String(&claim.boot_id);
      } else if (key == "pid") {
        found += in.Integer(&claim.pid);
      } else if (key == "start_time") {
        found += in.Unsigned(&claim.start_time);
      } else if (key == "world") {
        uint64_t world = 0;
        found += in.Unsigned(&world);
        if (world == 0 || world > UINT32_MAX) in.Fail("world is out of range");
        claim.world = static_cast<uint32_t>(world);
      } else {
        in.Skip();
      }
    }
  }
  if (absl::Status status = in.Finish(); !status.ok()) return Annotate(status, "claim of a life");
  if (found != 6) return Damaged("claim of a life: it lacks its nonce, host, boot_id, pid, start_time or world");
  return claim;
}

Uid UidFromName(std::string_view job) {
  const codec::Digest digest = codec::DigestOf(std::as_bytes(std::span(job)));
  Uid uid;
  for (size_t i = 0; i < 8; ++i) {
    uid.bytes[i] = static_cast<uint8_t>(digest.high >> (56 - 8 * i));
    uid.bytes[8 + i] = static_cast<uint8_t>(digest.low >> (56 - 8 * i));
  }
  return uid;
}

}  // namespace neve::format
