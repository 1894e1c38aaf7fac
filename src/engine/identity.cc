#include "engine/identity.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "base/os/process.h"
#include "engine/blocking.h"
#include "format/names.h"

namespace neve {
namespace {

bool IsExists(const absl::Status& status) { return ErrnoOf(status) == EEXIST; }

}  // namespace

Uid UidFromRecords(storage::Tier& tier, const storage::Listing& listing) {
  std::vector<const storage::ImageEntry*> with_record;
  for (const storage::ImageEntry& entry : listing.images) {
    if (entry.has_record) with_record.push_back(&entry);
  }
  std::sort(with_record.begin(), with_record.end(), [](const auto* a, const auto* b) { return a->key.save > b->key.save; });
  constexpr size_t kRecordsTried = 16;
  for (size_t i = 0; i < with_record.size() && i < kRecordsTried; ++i) {
    const ImageKey key = with_record[i]->key;
    auto reader = Await<std::shared_ptr<storage::ImageReader>>([&](auto done) { tier.OpenImage(key, done); });
    if (reader.ok()) return (*reader)->record().uid;
  }
  return Uid{};
}

absl::StatusOr<Uid> ReadUid(std::span<storage::Tier* const> durable, absl::Status* unreachable) {
  Uid uid;
  std::string holder;
  for (storage::Tier* tier : durable) {
    Uid here;
    auto note = Await<std::string>([&](auto done) { tier->ReadNote(std::string(format::kJobFile), done); });
    absl::StatusOr<format::JobIdentity> job = note.ok() ? format::DecodeJobIdentity(*note) : note.status();
    if (job.ok()) {
      here = job->uid;
    } else if (absl::IsNotFound(job.status()) || IsDamaged(job.status())) {
      auto listing = Await<storage::Listing>([&](auto done) { tier->List(done); });
      if (listing.ok()) here = UidFromRecords(*tier, *listing);
      if (IsDamaged(job.status())) {
        const std::string message =
            absl::StrFormat("%s: job.json cannot be read: %s", tier->info().place, std::string(job.status().message()));
        if (!here.known()) return Damaged(message + "; restore it from a backup, or move the folder away to begin a new job");
        obs::Log(obs::Level::kWarning,
                 absl::StrFormat("event=job_json_damaged what=\"%s; the uid of the newest record is used\"", message));
      }
    } else {
      if (unreachable != nullptr && unreachable->ok()) *unreachable = job.status();
      continue;
    }
    if (!here.known()) continue;
    if (uid.known() && uid != here) {
      return Invalid(absl::StrFormat("%s belongs to job uid %s and %s to %s: these are two jobs; give the tiers of one", holder,
                                     uid.ToHex(), tier->info().place, here.ToHex()));
    }
    uid = here;
    holder = tier->info().place;
  }
  return uid;
}

format::LifeClaim ThisProcess(const std::string& nonce, uint32_t world) {
  const os::ProcessId process = os::CurrentProcess();
  return {.nonce = nonce, .host = os::HostName(), .boot_id = os::BootIdString(process), .pid = process.pid,
          .start_time = process.start_time, .world = world};
}

absl::StatusOr<uint32_t> ClaimLife(storage::Tier& tier, const std::string& job, const Uid& uid, uint32_t incarnation, bool fixed,
                                   const format::LifeClaim& claim) {
  const std::string identity = format::EncodeJobIdentity({job, uid});
  absl::Status written = AwaitStatus([&](auto done) { tier.WriteNote(std::string(format::kJobFile), identity, true, done); });
  if (!written.ok()) {
    if (!IsExists(written)) return written;
    NEVE_ASSIGN_OR_RETURN(const std::string text, Await<std::string>([&](auto done) {
      tier.ReadNote(std::string(format::kJobFile), done);
    }));
    const absl::StatusOr<format::JobIdentity> there = format::DecodeJobIdentity(text);
    if (there.ok() && there->uid != uid) {
      return Invalid(
          absl::StrFormat("%s belongs to job uid %s, this job is %s: another run began there; use another folder or job name",
                          tier.info().place, there->uid.ToHex(), uid.ToHex()));
    }
  }
  const std::string text = format::EncodeLifeClaim(claim);
  constexpr uint32_t kClaimsTried = 1000;
  for (uint32_t i = 0; i < kClaimsTried; ++i) {
    absl::Status claimed =
        AwaitStatus([&](auto done) { tier.WriteNote(format::FormatLifeName(incarnation), text, true, done); });
    if (claimed.ok()) return incarnation;
    if (!IsExists(claimed)) return claimed;
    auto found = Await<std::string>([&](auto done) { tier.ReadNote(format::FormatLifeName(incarnation), done); });
    std::string who;
    if (found.ok()) {
      const auto there = format::DecodeLifeClaim(*found);
      if (there.ok() && there->nonce == claim.nonce) return incarnation;   // another rank's, or a retry after a lost answer
      if (there.ok()) who = absl::StrFormat(" (host %s, pid %d)", there->host, there->pid);
    }
    if (fixed) {
      return Invalid(absl::StrFormat("%s: life %d is already claimed%s; %s", tier.info().place, incarnation, who,
                                     claim.world > 1 ? "open again, which finds a greater one" : "give a greater incarnation"));
    }
    ++incarnation;
  }
  return Unavailable(absl::StrFormat("%s: could not claim a life after %d tries", tier.info().place, kClaimsTried));
}

void CheckNotSuperseded(storage::Tier& tier, uint32_t incarnation, storage::Done done) {
  tier.ReadNote(format::FormatLifeName(incarnation + 1), [incarnation, place = tier.info().place,
                                                          done](absl::StatusOr<std::string> text) {
    if (!text.ok()) {
      done(absl::OkStatus());
      return;
    }
    const auto claim = format::DecodeLifeClaim(*text);
    done(Unavailable(
        claim.ok() ? absl::StrFormat("superseded by life %d (host %s, pid %d) in %s: this process commits no more there",
                                     incarnation + 1, claim->host, claim->pid, place)
                   : absl::StrFormat("superseded by life %d in %s: this process commits no more there", incarnation + 1, place)));
  });
}

}  // namespace neve
