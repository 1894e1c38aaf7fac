// Commit records, job.json and claims: any bytes are decoded or refused, and what was decoded comes back the same.
#include <span>
#include <string>
#include <string_view>

#include "base/error/check.h"
#include "base/codec/digest.h"
#include "format/commit_record.h"
#include "format/names.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {

std::vector<std::string> FuzzSeeds() {
  format::CommitRecord record;
  record.job = "gpt";
  record.uid.bytes.fill(7);
  record.key = {{.incarnation = 3, .sequence = 17}, 1000, 1, 2};
  record.time = 1700000000;
  record.tags = {{"loss", 2.5}, {"note", std::string("a\"b")}, {"best", true}, {"epoch", int64_t{4}}};
  record.image_bytes = (9u << 20) + 5;
  record.header_bytes = 4096;
  record.digests.resize(record.chunk_count());
  record.provenance = {{"neve", "0.1.0"}, {"host", "node1"}};
  return {format::EncodeRecord(record), format::EncodeJobIdentity({"gpt", record.uid}),
          format::EncodeLifeClaim({.nonce = "n", .host = "node1", .boot_id = "b", .pid = 12, .start_time = 34, .world = 2}),
          format::FormatSaveName({1000, {3, 17}}), format::FormatImageName(3, 8), format::FormatRecordName(3, 8),
          format::FormatLifeName(3)};
}

}  // namespace neve::fuzz

namespace {

void TryRecord(std::string_view text) {
  using namespace neve;
  const auto record = format::DecodeRecord(text);
  if (!record.ok()) return;
  NEVE_CHECK(record->digests.size() == record->chunk_count());
  const auto again = format::DecodeRecord(format::EncodeRecord(*record));
  NEVE_CHECK(again.ok() && again->key == record->key && again->digests == record->digests);
}

// With the digest at its end that it should have: what comes before it would hardly ever be read otherwise.
std::string Sealed(std::string_view text) {
  constexpr std::string_view kField = ",\"digest\":\"";
  const std::string body(text.substr(0, text.rfind(kField)));
  return body + std::string(kField) + neve::codec::DigestOf(std::as_bytes(std::span(body))).ToHex() + "\"}";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  TryRecord(text);
  TryRecord(Sealed(text));
  if (const auto job = format::DecodeJobIdentity(text); job.ok()) {
    NEVE_CHECK(format::DecodeJobIdentity(format::EncodeJobIdentity(*job)).ok());
  }
  if (const auto claim = format::DecodeLifeClaim(text); claim.ok()) {
    NEVE_CHECK(format::DecodeLifeClaim(format::EncodeLifeClaim(*claim)).ok());
  }
  if (const auto name = format::ParseSaveName(text)) NEVE_CHECK(format::FormatSaveName(*name) == text);
  if (const auto name = format::ParseLifeName(text)) NEVE_CHECK(format::FormatLifeName(*name) == text);
  if (const auto name = format::ParseShardName(text)) {
    NEVE_CHECK((name->is_record ? format::FormatRecordName : format::FormatImageName)(name->rank, name->world) == text);
  }
  return 0;
}
