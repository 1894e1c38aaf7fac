// When every rank has committed a save: the watermark tells it, and listings show it where they show all ranks' images; off the step
// path, only while somebody holds a ticket that may be waited for.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "base/os/process.h"
#include "base/sync/pause.h"
#include "engine/closing_wait.h"
#include "engine/engine_impl.h"

namespace neve {
namespace {

constexpr sync::Nanos kFirstLook = 20 * sync::kMillisecond, kLongestPause = sync::kSecond;

}  // namespace

void EngineImpl::WatchCompletion(const std::shared_ptr<TicketImpl>& ticket, const Due& due) {
  if (options_.world == 1) return;
  bool durable = false;
  for (const std::vector<std::string>* names : {&due.own, &due.others}) {
    durable |= std::any_of(names->begin(), names->end(), [](const std::string& name) { return name != "ram"; });
  }
  if (!durable && !one_host_ && !watermark_.on()) {
    ticket->NeverCompleted(Unsupported("the ranks are on several hosts, this save is due in RAM only, and there are no control connections "
                                       "(health() says why): whether all have it cannot be told; wait for \"complete\" of a save that is "
                                       "due in a file tier"));
    return;
  }
  sync::MutexLock lock(mutex_);
  watched_.push_back(ticket);
  watch_pause_ = kFirstLook;
  if (std::exchange(watching_, true)) return;
  slot_executor_->PostAfter(watch_pause_, [this] { LookForCompletion(); });
}

void EngineImpl::LookForCompletion() {
  const bool more = LookOnce();
  sync::MutexLock lock(mutex_);
  watching_ = more || !watched_.empty();
  if (!watching_) return;
  watch_pause_ = std::min(watch_pause_ * 2, kLongestPause);
  slot_executor_->PostAfter(watch_pause_, [this] { LookForCompletion(); });
}

void EngineImpl::WatermarkMoved() {
  if (node::SlotPool* pool = ready_pool_; pool != nullptr) {
    if (const std::optional<SaveId> newest = watermark_.Newest("ram")) pool->KeepToo(*newest);
  }
  {
    sync::MutexLock lock(mutex_);
    if (closed_ || std::exchange(told_look_, true)) return;
  }
  executor_->Post([this] {
    std::vector<std::shared_ptr<TicketImpl>> tickets;
    {
      sync::MutexLock lock(mutex_);
      told_look_ = false;
    }
    // Before the tickets: who has waited for one and drains then waits for what retires by it, too.
    for (auto& durable : durable_) {
      if (!durable->config.keep.has_value() || watermark_.Newest(durable->name) == durable->told_newest) continue;
      durable->told_newest = watermark_.Newest(durable->name);
      if (const std::optional<SaveId> own = durable->retention->newest_durable()) MadeDurable(*durable, *own);
    }
    {
      sync::MutexLock lock(mutex_);
      for (const std::weak_ptr<TicketImpl>& watched : watched_) {
        if (std::shared_ptr<TicketImpl> ticket = watched.lock()) tickets.push_back(std::move(ticket));
      }
    }
    for (const std::shared_ptr<TicketImpl>& ticket : tickets) TellTicket(*ticket);
  });
}

bool EngineImpl::TellTicket(TicketImpl& ticket) const {
  std::vector<std::string> names = {""};
  if (ram_.has_value()) names.push_back("ram");
  for (const auto& durable : durable_) names.push_back(durable->name);
  for (const std::string& name : names) {
    if (!ticket.CompletionPendingIn(name)) continue;
    if (watermark_.Complete(name, ticket.save_id())) {
      ticket.Completed(name);
    } else if (watermark_.Lost(name, ticket.save_id())) {
      ticket.NeverCompletedIn(name, Unavailable(absl::StrFormat("step %d (save %s) will never be complete%s: another rank has skipped or "
                                                                "replaced it, or could not write it",
                                                                ticket.step(), ticket.save_id().ToString(),
                                                                name.empty() ? "" : " in tier " + name)));
    } else if (watermark_.on()) {
      ticket.MissingIs(watermark_.WaitsFor(name));
    }
  }
  return ticket.CompletionPending();
}

bool EngineImpl::ToldWhole(const SaveId& save) const {
  return watermark_.on() && !durable_.empty() && std::all_of(durable_.begin(), durable_.end(), [&](const auto& durable) {
    return watermark_.Complete(durable->name, save);
  });
}

bool EngineImpl::LookOnce() {
  std::vector<std::shared_ptr<TicketImpl>> tickets;
  {
    sync::MutexLock lock(mutex_);
    std::erase_if(watched_, [&](const std::weak_ptr<TicketImpl>& watched) {
      std::shared_ptr<TicketImpl> ticket = watched.lock();
      if (ticket == nullptr || !ticket->CompletionPending()) return true;
      tickets.push_back(std::move(ticket));
      return false;
    });
  }
  std::erase_if(tickets, [this](const std::shared_ptr<TicketImpl>& ticket) { return !TellTicket(*ticket); });
  if (tickets.empty()) return false;
  std::vector<std::string> names;
  const std::vector<catalog::TierListing> listings = ListAll(&names);
  const std::vector<catalog::Save> saves = catalog::GroupSaves(listings);
  for (const std::shared_ptr<TicketImpl>& ticket : tickets) {
    const auto save = std::find_if(saves.begin(), saves.end(), [&](const auto& s) { return s.save == ticket->save_id(); });
    if (save == saves.end()) continue;
    if (!save->complete) {
      ticket->MissingIs(watermark_.on() ? save->reason + "; told: " + watermark_.WaitsFor("") : save->reason);
      continue;
    }
    bool anywhere = !replicated();
    for (size_t t = 0; t < names.size(); ++t) {
      // The RAM of this host holds the one image of replicated state whether rank 0 has saved it or not.
      if (!save->CompleteIn(static_cast<int>(t)) || (replicated() && !one_host_ && listings[t].kind == TierKind::kRam)) continue;
      ticket->Completed(names[t]);
      anywhere = true;
    }
    if (anywhere) ticket->Completed("");
    ticket->MissingIs("not every rank has it in that tier");
  }
  return true;
}

std::optional<SaveId> EngineImpl::WaitUntilWhole(const SaveId& newest, uint32_t rank, uint32_t world, double deadline_s) {
  double allowed_s = deadline_s;
  if (deadline_s < 0) {
    for (const auto& durable : durable_) allowed_s = std::max(allowed_s, durable->config.timeout_s);
  }
  std::vector<int> durable;
  for (size_t t = 0; t < durable_.size(); ++t) durable.push_back(static_cast<int>(t) + (ram_.has_value() ? 1 : 0));
  std::map<uint32_t, bool> lives;   // of this host's ranks
  const auto alive = [&lives](uint32_t other) {
    const auto known = lives.find(other);
    return known == lives.end() ? std::nullopt : std::optional(known->second);
  };
  const sync::Nanos begin = sync::MonotonicNow();
  sync::Nanos pause = kFirstLook;
  while (true) {
    if (ToldWhole(newest)) return newest;
    // Before the listing: one that ends after it may have committed in between.
    for (const auto& [other, process] : host_ranks_) lives[other] = os::IsAlive(process);
    std::vector<std::string> names;
    const std::vector<catalog::TierListing> listings = ListAll(&names);
    const std::vector<catalog::Save> saves = catalog::GroupSaves(listings);
    const engine::ClosingWait wait =
        engine::LookWhileClosing(saves, durable, newest, rank, world, allowed_s, alive);
    if (wait.whole == newest) return wait.whole;
    if (static_cast<double>(sync::MonotonicNow() - begin) >= wait.patience_s * static_cast<double>(sync::kSecond)) {
      obs::Log(obs::Level::kWarning,
               absl::StrFormat("event=slots_left save=%s reason=\"not every rank has written it; `neve recover` or the next life does\"",
                               newest.ToString()));
      return wait.whole;
    }
    sync::Pause(pause);
    pause = std::min(pause * 2, kLongestPause / 4);
  }
}

void EngineImpl::EndCompletion() {
  if (options_.world == 1) return;
  LookOnce();
  sync::MutexLock lock(mutex_);
  for (const std::weak_ptr<TicketImpl>& watched : std::exchange(watched_, {})) {
    if (const std::shared_ptr<TicketImpl> ticket = watched.lock()) {
      ticket->NeverCompleted(Closed("the engine was closed before every rank was seen to have this save"));
    }
  }
}

}  // namespace neve
