#include "group/agreement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "group/fields.h"

namespace neve::group {
namespace {

absl::Status Unreadable(size_t rank) {
  return Invalid(absl::StrFormat("what rank %d sent cannot be read: it may run another version of neve", rank));
}

// The fields of one message, in order; `ok` turns false at the first that is not there.
class Taker {
 public:
  explicit Taker(std::string_view text) : fields_(text) {}
  std::string Text() { return Take(fields_.Next()).value_or(""); }
  uint64_t Number() { return Take(fields_.NextNumber()).value_or(0); }
  Uid OfUid() {
    Uid uid;
    ok_ &= Uid::FromHex(Text(), &uid);
    return uid;
  }
  bool ok() const { return ok_; }

 private:
  template <typename T>
  std::optional<T> Take(std::optional<T> field) {
    ok_ &= field.has_value();
    return field;
  }
  FieldReader fields_;
  bool ok_ = true;
};

void PutNumber(std::string* text, uint64_t number) { PutField(text, std::to_string(number)); }

std::optional<Arrival> DecodeArrival(std::string_view text, uint32_t rank) {
  Taker take(text);
  Arrival arrival;
  arrival.status = DecodeStatus(take.Text(), rank);
  arrival.job = take.Text();
  arrival.durable = take.Number() != 0;
  arrival.uid = take.OfUid();
  arrival.place = take.Text();
  arrival.fresh = take.OfUid();
  arrival.address = take.Text();
  arrival.key = take.Text();
  arrival.process.nonce = take.Text();
  arrival.process.host = take.Text();
  arrival.process.boot_id = take.Text();
  arrival.process.pid = static_cast<int64_t>(take.Number());
  arrival.process.start_time = take.Number();
  return take.ok() ? std::optional(std::move(arrival)) : std::nullopt;
}

}  // namespace

std::string EncodeStatus(const absl::Status& status) {
  std::string text;
  PutNumber(&text, static_cast<uint64_t>(status.code()));
  PutNumber(&text, static_cast<uint64_t>(ErrnoOf(status)));
  PutField(&text, std::string(status.message()));
  return text;
}

absl::Status DecodeStatus(std::string_view text, uint32_t rank) {
  Taker take(text);
  const uint64_t code = take.Number(), error_number = take.Number();
  const std::string message = take.Text();
  if (!take.ok() || code > static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)) return Unreadable(rank);
  if (code == 0) return absl::OkStatus();
  const std::string named = absl::StrFormat("rank %d: %s", rank, message);
  // These two carry the errno.
  const int number = error_number < 4096 ? static_cast<int>(error_number) : 0;
  if (code == static_cast<uint64_t>(absl::StatusCode::kUnavailable)) return Unavailable(named, number);
  if (code == static_cast<uint64_t>(absl::StatusCode::kResourceExhausted)) return Exhausted(named, number);
  return absl::Status(static_cast<absl::StatusCode>(code), named);
}

absl::Status FirstError(std::span<const std::string> statuses) {
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    NEVE_RETURN_IF_ERROR(DecodeStatus(statuses[rank], static_cast<uint32_t>(rank)));
  }
  return absl::OkStatus();
}

std::string Encode(const Arrival& arrival) {
  std::string text;
  PutField(&text, EncodeStatus(arrival.status));
  PutField(&text, arrival.job);
  PutNumber(&text, arrival.durable ? 1 : 0);
  PutField(&text, arrival.uid.ToHex());
  PutField(&text, arrival.place);
  PutField(&text, arrival.fresh.ToHex());
  PutField(&text, arrival.address);
  PutField(&text, arrival.key);
  PutField(&text, arrival.process.nonce);
  PutField(&text, arrival.process.host);
  PutField(&text, arrival.process.boot_id);
  PutNumber(&text, static_cast<uint64_t>(arrival.process.pid));
  PutNumber(&text, arrival.process.start_time);
  return text;
}

absl::StatusOr<Job> AgreeOnJob(std::span<const std::string> arrivals) {
  std::vector<Arrival> ranks;
  for (size_t rank = 0; rank < arrivals.size(); ++rank) {
    std::optional<Arrival> arrival = DecodeArrival(arrivals[rank], static_cast<uint32_t>(rank));
    if (!arrival.has_value()) return Unreadable(rank);
    ranks.push_back(*std::move(arrival));
  }
  Job job;
  bool any_durable = false;
  size_t holder = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Arrival& arrival = ranks[rank];
    NEVE_RETURN_IF_ERROR(arrival.status);
    if (arrival.job != ranks[0].job) {
      return Invalid(absl::StrFormat("rank 0 opens job \"%s\" and rank %d \"%s\": the ranks of one world open one job", ranks[0].job,
                                     rank, arrival.job));
    }
    any_durable |= arrival.durable;
    if (arrival.uid.known()) {
      if (job.uid.known() && job.uid != arrival.uid) {
        return Invalid(absl::StrFormat("rank %d: %s belongs to job uid %s, and rank %d: %s to %s: these are two jobs; give the tiers of "
                                       "one",
                                       holder, ranks[holder].place, job.uid.ToHex(), rank, arrival.place, arrival.uid.ToHex()));
      }
      if (!job.uid.known()) holder = rank;
      job.uid = arrival.uid;
    }
    job.processes.push_back(arrival.process);
    job.addresses.push_back(arrival.address);
  }
  if (ranks.empty()) return Internal("nobody arrived");
  if (!job.uid.known()) job.uid = any_durable ? ranks[0].fresh : format::UidFromName(ranks[0].job);
  job.nonce = ranks[0].process.nonce;
  job.key = ranks[0].key;
  for (format::LifeClaim& process : job.processes) {
    process.nonce = job.nonce;
    process.world = static_cast<uint32_t>(ranks.size());
  }
  return job;
}

std::string Encode(const Past& past) {
  std::string text;
  PutField(&text, EncodeStatus(past.status));
  PutNumber(&text, past.greatest);
  PutField(&text, past.given.has_value() ? std::to_string(*past.given) : "");
  PutField(&text, EncodeStatus(past.control));
  PutField(&text, past.place);
  PutField(&text, past.tiers);
  return text;
}

absl::StatusOr<Life> AgreeOnLife(std::span<const std::string> pasts) {
  constexpr uint32_t kLast = ~uint32_t{0};
  Life life;
  uint32_t greatest = 0;
  std::string given;
  for (size_t rank = 0; rank < pasts.size(); ++rank) {
    Taker take(pasts[rank]);
    const absl::Status status = DecodeStatus(take.Text(), static_cast<uint32_t>(rank));
    const uint64_t here = take.Number();
    const std::string wanted = take.Text(), control = take.Text();
    ControlPlace& place = life.places.emplace_back();
    place.place = take.Text();
    place.tiers = take.Text();
    // Named by its place in the list already.
    if (absl::Status absent = DecodeStatus(control, static_cast<uint32_t>(rank)); !absent.ok()) place.status = std::move(absent);
    if (!take.ok() || here > kLast) return Unreadable(rank);
    NEVE_RETURN_IF_ERROR(status);
    greatest = std::max(greatest, static_cast<uint32_t>(here));
    if (rank == 0) given = wanted;
    if (wanted != given) {
      return Invalid(absl::StrFormat("rank 0 was given incarnation %s and rank %d %s: give the same to all, or to none",
                                     given.empty() ? "none" : given, rank, wanted.empty() ? "none" : wanted));
    }
  }
  if (!given.empty()) {
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), number);
    if (error != std::errc() || end != given.data() + given.size()) return Unreadable(0);
    life.incarnation = number;
    return life;
  }
  if (greatest == kLast) return Invalid("the incarnations of this job are used up");
  life.incarnation = greatest + 1;
  return life;
}

}  // namespace neve::group
