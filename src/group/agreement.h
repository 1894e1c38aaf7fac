// What the ranks of a job agree on when they open: pure functions of what each of them said, so that all come to the same.
//
// Invariants
//   - The uid is the one that any rank's durable tier holds; two different ones are an error that names both; none: rank 0's new
//     one. Without a durable tier the job's name stands for it, on every rank.
//   - The incarnation is 1 + the greatest that any rank lists in any tier, or the one that was given, the same on all ranks.
//   - An error of one rank is every rank's, with the rank named.
#ifndef NEVE_GROUP_AGREEMENT_H_
#define NEVE_GROUP_AGREEMENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/names.h"
#include "neve/types.h"

namespace neve::group {

// A status of one rank as it travels, and as the others report it.
std::string EncodeStatus(const absl::Status& status);
absl::Status DecodeStatus(std::string_view text, uint32_t rank);   // "rank 3: ..." before the message
// OK when all are: else the first that is not.
absl::Status FirstError(std::span<const std::string> statuses);

// The first message of open.
struct Arrival {
  absl::Status status;          // what kept this rank from telling
  std::string job;
  bool durable = false;         // has a durable tier
  Uid uid;                      // that its durable tiers hold
  std::string place;            // where that is
  Uid fresh;                    // random, should there be none
  std::string address;          // of its host, for those on others
  std::string key;              // of the control connections; rank 0's: random, as secret as what carries the gathers
  format::LifeClaim process;    // nonce random
};
std::string Encode(const Arrival& arrival);

struct Job {
  Uid uid;
  std::string nonce;                         // of this life
  std::vector<format::LifeClaim> processes;  // by rank
  std::vector<std::string> addresses;        // by rank
  std::string key;
};
absl::StatusOr<Job> AgreeOnJob(std::span<const std::string> arrivals);

// The second: what this rank lists of that job.
struct Past {
  absl::Status status;
  uint32_t greatest = 0;                  // incarnation
  std::optional<uint32_t> given;          // incarnation=
  absl::Status control;                   // why it has no port for control connections
  std::string place;                      // else where that is
  std::string tiers;                      // whose saves it tells of
};
std::string Encode(const Past& past);
struct ControlPlace {
  absl::Status status;
  std::string place, tiers;
};
struct Life {
  uint32_t incarnation = 0;
  std::vector<ControlPlace> places;       // by rank
};
absl::StatusOr<Life> AgreeOnLife(std::span<const std::string> pasts);

}  // namespace neve::group

#endif  // NEVE_GROUP_AGREEMENT_H_
