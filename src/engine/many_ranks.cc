// What the ranks of one job do together: meet at open, choose a save and say how its reading went. save() has no part here.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "base/os/process.h"
#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "base/sync/sockets.h"
#include "engine/blocking.h"
#include "engine/engine_impl.h"
#include "engine/identity.h"
#include "format/names.h"
#include "group/agreement.h"
#include "group/fields.h"
#include "group/static_store.h"
#include "restore/common_save.h"
#include "slot/folder.h"
#include "slot/slot.h"

namespace neve {
namespace {

std::string WishOf(const FindRequest& request) {
  std::string wish = request.step.has_value() ? absl::StrFormat("step %d", *request.step) : "the newest save";
  if (request.before.has_value()) wish += " before " + request.before->ToString();
  if (request.fallback) wish += ", or an older one";
  for (const std::string& pattern : request.take_rank0) wish += ", rank 0's " + pattern;
  return wish;
}

// Names of a launcher's store are shared with others; two open engines of one process must not meet each other there.
class PrefixedStore : public group::Store {
 public:
  PrefixedStore(std::unique_ptr<group::Store> store, std::string prefix) : store_(std::move(store)), prefix_(std::move(prefix)) {}
  std::string place() const override { return store_->place(); }
  absl::Status Set(const std::string& name, std::string_view value) override { return store_->Set(prefix_ + name, value); }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& name) override { return store_->Get(prefix_ + name); }
  void Forget(const std::string& prefix) override { store_->Forget(prefix_ + prefix); }

 private:
  const std::unique_ptr<group::Store> store_;
  const std::string prefix_;
};

}  // namespace

absl::Status EngineImpl::MakeGroup() {
  sync::MutexLock lock(group_mutex_);
  if (options_.world == 1) {
    group_ = group::SoloGroup();
    return absl::OkStatus();
  }
  const GroupOptions& given = options_.group;
  if (!(given.timeout_s > 0)) return Invalid(absl::StrFormat("a group's timeout of %g s: want more than 0", given.timeout_s));
  group::Self self{options_.rank, options_.world, absl::StrFormat("host %s, process %d", claim_.host, claim_.pid), os::RandomHex(32)};
  if (given.gather) {
    group_ = group::CallbackGroup(given.gather, std::move(self));
    return absl::OkStatus();
  }
  constexpr std::string_view kDir = "dir:", kStatic = "static:";
  std::unique_ptr<group::Store> store;
  if (given.set && given.get) {
    store = group::FunctionStore({given.set, given.get}, given.place.empty() ? "the launcher's store" : given.place);
  } else if (given.place.starts_with(kDir)) {
    NEVE_ASSIGN_OR_RETURN(store, group::DirStore(given.place.substr(kDir.size())));
  } else if (given.place.starts_with(kStatic)) {
    NEVE_ASSIGN_OR_RETURN(const group::StaticList list, group::ParseStaticList(given.place.substr(kStatic.size()), options_.world));
    NEVE_ASSIGN_OR_RETURN(const std::string key, group::StaticKey(list));
    NEVE_ASSIGN_OR_RETURN(store, group::StaticStore(list, options_.rank, key, "neve group of job " + options_.job));
    own_place_ = list.places[options_.rank];
  } else {
    return Invalid(absl::StrFormat("group \"%s\" of a world of %d ranks: want dir:PATH (a folder that all ranks see), "
                                   "static:HOST:PORT,... (a place of each rank), torch.distributed, or a callback",
                                   given.place, options_.world));
  }
  const std::string prefix = "neve/" + format::UidFromName(options_.job + '\n' + options_.folder).ToHex() + "/";
  store = std::make_unique<PrefixedStore>(std::move(store), prefix);
  group_ = group::StoreGroup(std::move(store), std::move(self), os::RandomHex(16), &stop_group_);
  return absl::OkStatus();
}

absl::StatusOr<group::Messages> EngineImpl::Gather(std::string_view what, std::string_view mine) {
  sync::MutexLock lock(group_mutex_);
  return group_->Gather(what, mine, options_.group.timeout_s);
}

namespace {

// What the ranks say of themselves beside who they are.
struct Terms {
  bool replicated = false;
  std::string ram;   // which RAM folder this rank sees; "": it keeps nothing in RAM
};

// A folder of that name in the same file system is the same one; where it is not made yet, the one that will hold it counts.
std::string RamPlace() {
  const absl::StatusOr<std::string> folder = slot::RamFolder(false);
  if (!folder.ok() && !absl::IsNotFound(folder.status())) return "unusable";
  std::string path = slot::ConfiguredRamFolder();
  struct ::stat facts {};
  for (std::string at = path; ::stat(at.c_str(), &facts) != 0 && at.size() > 1;) {
    const size_t slash = at.rfind('/');
    at = slash == 0 || slash == std::string::npos ? "/" : at.substr(0, slash);
  }
  return absl::StrFormat("%d:%s", facts.st_dev, path);
}

}  // namespace

absl::Status EngineImpl::MeetRanks() {
  group::Arrival arrival;
  arrival.job = options_.job;
  arrival.durable = !durable_.empty();
  arrival.process = claim_;
  os::FillRandom(arrival.fresh.bytes);
  arrival.address = sync::PrimaryAddress();
  if (options_.rank == 0) arrival.key = os::RandomHex(64);
  if (!durable_.empty()) {
    arrival.place = durable_.front()->tier->info().place;
    const std::vector<storage::Tier*> tiers = DurableTiers();
    absl::StatusOr<Uid> uid = ReadUid(tiers, &arrival.status);
    if (uid.ok()) {
      arrival.uid = *uid;
    } else {
      arrival.status = uid.status();
    }
  }
  std::string mine;
  group::PutField(&mine, Encode(arrival));
  group::PutField(&mine, options_.replicated ? "1" : "0");
  group::PutField(&mine, ram_.has_value() ? RamPlace() : "");
  NEVE_ASSIGN_OR_RETURN(const group::Messages messages, Gather("open: the job", mine));
  group::Messages arrivals;
  std::vector<Terms> terms;
  for (uint32_t rank = 0; rank < messages.size(); ++rank) {
    group::FieldReader fields(messages[rank]);
    std::optional<std::string> theirs = fields.Next(), replicated = fields.Next(), ram = fields.Next();
    if (!ram.has_value()) return Invalid(absl::StrFormat("what rank %d sent cannot be read: it may run another version of neve", rank));
    arrivals.push_back(*std::move(theirs));
    terms.push_back({*replicated == "1", *std::move(ram)});
  }
  NEVE_ASSIGN_OR_RETURN(const group::Job job, group::AgreeOnJob(arrivals));
  for (uint32_t rank = 1; rank < terms.size(); ++rank) {
    if (terms[rank].replicated == terms[0].replicated) continue;
    return Invalid(absl::StrFormat("rank %d opens with replicated, rank %d without: every rank opens alike",
                                   terms[0].replicated ? 0 : rank, terms[0].replicated ? rank : 0));
  }
  {
    sync::MutexLock lock(uid_mutex_);
    uid_ = job.uid;
  }
  const auto on_this_host = [this](const format::LifeClaim& process) {
    return process.host == claim_.host && process.boot_id == claim_.boot_id;
  };
  const auto first = std::find_if(job.processes.begin(), job.processes.end(), on_this_host);
  one_host_ = true;
  first_of_host_ = first == job.processes.begin() + options_.rank;
  for (uint32_t rank = 0; rank < options_.world; ++rank) {
    const bool same_ram = on_this_host(job.processes[rank]) && terms[rank].ram == terms[options_.rank].ram;
    one_host_ &= same_ram;
    if (same_ram && rank < options_.rank) keeps_ram_ = false;
  }
  const os::ProcessId self = os::CurrentProcess();
  for (uint32_t rank = 0; rank < options_.world; ++rank) {
    const format::LifeClaim& process = job.processes[rank];
    if (on_this_host(process)) host_ranks_[rank] = {self.boot_id, process.pid, process.start_time};
  }
  // Whoever writes a claim writes the same for all ranks of its host.
  claim_ = *first;

  // A rank on another host, by whose address it is known how this one is reached: the first one, for most.
  const auto elsewhere = std::find_if_not(job.processes.begin(), job.processes.end(), on_this_host);
  group::Past past;
  past.control = ListenForControl(elsewhere == job.processes.end() ? "" : job.addresses[elsewhere - job.processes.begin()]);
  past.place = watermark_.place();
  past.given = options_.incarnation;
  std::vector<std::string> names;
  const std::vector<catalog::TierListing> listings = ListAll(&names);
  const absl::StatusOr<uint32_t> greatest = GreatestLife(listings, names);
  past.status = greatest.status();
  // A place that was given and cannot be had is an error of the list, or another process's port.
  if (past.status.ok() && !own_place_.empty() && absl::IsUnavailable(past.control)) past.status = past.control;
  past.greatest = greatest.value_or(0);
  for (const std::string& name : names) past.tiers += name + " ";
  NEVE_ASSIGN_OR_RETURN(const group::Messages pasts, Gather("open: the life", Encode(past)));
  NEVE_ASSIGN_OR_RETURN(const group::Life life, group::AgreeOnLife(pasts));
  agreed_incarnation_ = life.incarnation;
  watermark_.Join({.rank = options_.rank, .world = options_.world, .incarnation = life.incarnation, .uid = job.uid, .key = job.key,
                   .tiers = names, .places = life.places},
                  [this] { WatermarkMoved(); });
  return absl::OkStatus();
}

absl::Status EngineImpl::ListenForControl(const std::string& other) {
  NEVE_ASSIGN_OR_RETURN(std::string address, engine::ControlAddress(one_host_, other));
  if (own_place_.empty()) return watermark_.Listen(sync::PlaceOf(address, 0));
  // Of a list, each rank's place is for this; rank 0's serves the gathers already, so it takes another port beside it.
  return watermark_.Listen(options_.rank > 0 ? own_place_ : own_place_.substr(0, own_place_.rfind(':')) + ":0");
}

absl::StatusOr<EngineImpl::Opened> EngineImpl::TellOpened(const std::string& what, const absl::Status& status, bool lost,
                                                          const std::string& fingerprint) {
  std::string mine;
  group::PutField(&mine, group::EncodeStatus(status));
  group::PutField(&mine, lost ? "1" : "0");
  group::PutField(&mine, fingerprint);
  NEVE_ASSIGN_OR_RETURN(const group::Messages messages, Gather(what, mine));
  Opened opened;
  opened.mine = fingerprint;
  for (uint32_t rank = 0; rank < messages.size(); ++rank) {
    group::FieldReader fields(messages[rank]);
    const absl::Status theirs = group::DecodeStatus(fields.Next().value_or(""), rank);
    const bool is_lost = fields.Next() == "1";
    const std::string print = fields.Next().value_or("");
    if (rank == 0) opened.rank0 = print;
    opened.alike &= print == opened.rank0;
    if (theirs.ok() || !opened.first.ok()) continue;
    opened.first = theirs;
    opened.lost = is_lost;
  }
  return opened;
}

std::string EngineImpl::FingerprintOf(const absl::StatusOr<std::unique_ptr<Image>>& image, const catalog::Save& save) const {
  if (!image.ok() || !IsReplica(save)) return "";
  const auto* file = dynamic_cast<const RankFile*>(image->get());
  return file == nullptr || file->record() == nullptr ? "" : engine::FingerprintOf(*file->record());
}

absl::StatusOr<std::unique_ptr<Image>> EngineImpl::FindTogether(const FindRequest& request) {
  std::vector<std::string> names;
  const std::vector<catalog::TierListing> listings = ListAll(&names);
  const absl::Status listed = CheckListed(listings, names, request);
  const std::vector<catalog::Save> saves = catalog::GroupSaves(listings);
  engine::FindRefusals refusals(request);
  std::optional<SaveId> before = request.before;
  while (true) {
    restore::View view = restore::ViewOf(saves, before);
    view.status = listed;
    view.wish = WishOf(request);
    {
      sync::MutexLock lock(save_mutex_);
      view.sequence = sequence_;
    }
    NEVE_ASSIGN_OR_RETURN(const group::Messages views, Gather("restore: choose", Encode(view)));
    NEVE_ASSIGN_OR_RETURN(const restore::Common common, restore::FindCommon(views));
    {
      // From here on the ranks count their saves alike, whatever happened before.
      sync::MutexLock lock(save_mutex_);
      sequence_ = std::max(sequence_, common.sequence);
    }
    for (const restore::CommonSave& candidate : common.saves) {
      if (!refusals.Wants(candidate.save, candidate.step)) continue;
      refusals.Saw(candidate.any_record);
      const std::string text = engine::SaveText(candidate.save, candidate.step);
      std::string reason = candidate.reason;
      if (candidate.offered) {
        const auto save = std::find_if(saves.begin(), saves.end(), [&](const auto& s) { return s.save == candidate.save; });
        engine::FindRefusals own(request);
        bool header_lost = false;
        std::string own_reason;
        const auto opener = OpenerOf(*save, listings, names);
        absl::StatusOr<std::unique_ptr<Image>> image = OpenSave(opener, request, own, &own_reason, &header_lost);
        const auto status = [&] {
          return image.ok() || header_lost ? image.status() : Annotate(own.first_error(), "no copy can be used");
        };
        NEVE_ASSIGN_OR_RETURN(Opened opened, TellOpened("restore: open " + text, status(), header_lost, FingerprintOf(image, *save)));
        if (opened.first.ok() && !opened.alike) {
          // Of one save of replicated state the nearest copies are not the same: rank 0's is everybody's.
          if (opened.mine != opened.rank0) {
            obs::Log(obs::Level::kWarning,
                     absl::StrFormat("event=replica_differs step=%d save=%s reason=\"the copy that rank %d reaches first is not the one "
                                     "that rank 0 does: the ranks did not hold the same state; rank 0's is taken\"",
                                     candidate.step, candidate.save.ToString(), options_.rank));
            image = OpenSave(opener, request, own, &own_reason, &header_lost, opened.rank0);
          }
          NEVE_ASSIGN_OR_RETURN(opened, TellOpened("restore: open rank 0's " + text, status(), header_lost, ""));
        }
        const absl::Status& first = opened.first;
        const bool lost = opened.lost;
        if (first.ok()) return image;
        if (lost && (!request.fallback || absl::IsUnimplemented(first))) return Annotate(first, text);
        refusals.CopyFailed(first);
        reason = std::string(first.message());
      }
      NEVE_RETURN_IF_ERROR(refusals.Refuse(candidate.save, candidate.step, reason));
    }
    if (!common.rest.has_value()) return refusals.Nothing(options_.job, Places(listings));
    before = common.rest;
  }
}

absl::Status EngineImpl::Agree(const absl::Status& mine) {
  if (options_.world == 1) return mine;
  NEVE_RETURN_IF_ERROR(CheckUsable());
  const GroupCall call(this);
  NEVE_ASSIGN_OR_RETURN(const group::Messages all, Gather("restore: whole", group::EncodeStatus(mine)));
  return group::FirstError(all);
}

void EngineImpl::Leave(const std::string& why) {
  if (options_.world == 1 || !CheckUsable().ok()) return;
  const GroupCall call(this);
  sync::MutexLock lock(group_mutex_);
  group_->Leave("restore: whole", why);
}

void EngineImpl::EndGroupCalls() {
  if (options_.world == 1) return;
  stop_group_ = true;
  sync::MutexLock lock(mutex_);
  idle_.Wait(mutex_, [this]() NEVE_REQUIRES(mutex_) { return group_calls_ == 0; });
}

}  // namespace neve
