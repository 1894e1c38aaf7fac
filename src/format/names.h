// Names of saves, images and records in a file or object tier, and of job.json and the claims of lives.
//
//   step-000000001000.i0003.s000017/                  one save: unique, nothing is ever replaced
//     shard-00003-of-00008.safetensors                the image of rank 3
//     shard-00003-of-00008.commit.json                its record, written last
//     pinned   complete.json
//   job.json   life-0003.json   .spare/<n>   .tmp-<nonce>
//
// Numbers are zero-padded to the widths shown and grow beyond them where needed. Parsers take exactly what Format gives.
#ifndef NEVE_FORMAT_NAMES_H_
#define NEVE_FORMAT_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error/status.h"
#include "neve/types.h"

namespace neve::format {

struct SaveName {
  uint64_t step = 0;
  SaveId save;
  bool operator==(const SaveName&) const = default;
};
std::string FormatSaveName(const SaveName& name);
std::optional<SaveName> ParseSaveName(std::string_view name);

struct ShardName {
  uint32_t rank = 0, world = 1;
  bool is_record = false;
  bool operator==(const ShardName&) const = default;
};
std::string FormatImageName(uint32_t rank, uint32_t world);    // "shard-00003-of-00008.safetensors"
std::string FormatRecordName(uint32_t rank, uint32_t world);   // "shard-00003-of-00008.commit.json"
std::optional<ShardName> ParseShardName(std::string_view name);

inline constexpr std::string_view kJobFile = "job.json", kPinnedFile = "pinned", kCompleteFile = "complete.json",
                                  kSpareFolder = ".spare", kTemporaryPrefix = ".tmp-";
std::string FormatLifeName(uint32_t incarnation);              // "life-0003.json"
std::optional<uint32_t> ParseLifeName(std::string_view name);

// job.json: {"format":1,"name":..,"uid":..}
struct JobIdentity {
  std::string name;
  Uid uid;
};
std::string EncodeJobIdentity(const JobIdentity& job);
absl::StatusOr<JobIdentity> DecodeJobIdentity(std::string_view text);   // Damaged

// life-0003.json: {"nonce","host","boot_id","pid","start_time","world"}
struct LifeClaim {
  std::string nonce, host, boot_id;
  int64_t pid = 0;
  uint64_t start_time = 0;
  uint32_t world = 1;
};
std::string EncodeLifeClaim(const LifeClaim& claim);
absl::StatusOr<LifeClaim> DecodeLifeClaim(std::string_view text);       // Damaged

// The uid of a job without a durable tier: its name stands for it.
Uid UidFromName(std::string_view job);

}  // namespace neve::format

#endif  // NEVE_FORMAT_NAMES_H_
