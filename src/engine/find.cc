// Choosing what to restore: the newest complete save, from the tiers that hold it, nearest first.
#include <algorithm>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "engine/blocking.h"
#include "engine/engine_impl.h"
#include "engine/find_refusals.h"
#include "engine/global_image.h"
#include "engine/save_info.h"

namespace neve {
absl::Status EngineImpl::CheckListed(const std::vector<catalog::TierListing>& listings, const std::vector<std::string>& names,
                                     const FindRequest& request) const {
  for (size_t t = 0; t < listings.size(); ++t) {
    if (listings[t].status.ok()) continue;
    const bool allowed =
        std::find(request.allow_missing.begin(), request.allow_missing.end(), names[t]) != request.allow_missing.end();
    if (!allowed) {
      return Unavailable(
          absl::StrFormat("tier %s (%s) could not be listed: %s; bring it back, or allow it to be missing (allow_missing)",
                          names[t], listings[t].place, std::string(listings[t].status.message())),
          ErrnoOf(listings[t].status));
    }
    obs::Log(obs::Level::kWarning,
             absl::StrFormat("event=tier_missing tier=%s error=\"%s\"", names[t], std::string(listings[t].status.message())));
  }
  return absl::OkStatus();
}

std::shared_ptr<const engine::SaveOpener> EngineImpl::OpenerOf(const catalog::Save& save,
                                                                const std::vector<catalog::TierListing>& listings,
                                                                const std::vector<std::string>& names) {
  auto opener = std::make_shared<engine::SaveOpener>();
  opener->info = engine::ToSaveInfo(save, listings, names);
  opener->info.job = options_.job;
  {
    sync::MutexLock lock(uid_mutex_);
    opener->info.uid = uid_;
  }
  opener->save = save;
  for (size_t t = 0; t < listings.size(); ++t) {
    const bool is_ram = listings[t].kind == TierKind::kRam;
    opener->tiers.push_back({is_ram ? RamTier() : durable_[t - (ram_.has_value() ? 1 : 0)]->tier, names[t], listings[t].place});
  }
  if (ready_pool_ != nullptr) opener->pool = pool_;
  opener->crew = crew_;
  if (options_.world > 1) {
    opener->others = IsReplica(save) ? restore::OtherReaders::kOfAll : restore::OtherReaders::kOfParts;
  }
  opener->metrics = metrics_;
  opener->held = held_;
  return opener;
}

absl::StatusOr<std::unique_ptr<Image>> EngineImpl::OpenSave(const std::shared_ptr<const engine::SaveOpener>& opener,
                                                            const FindRequest& request, engine::FindRefusals& refusals,
                                                            std::string* reason, bool* header_lost, const std::string& wanted) {
  *header_lost = false;
  const auto failed = [&refusals](const absl::Status& status) { refusals.CopyFailed(status); };
  const bool replica = IsReplica(opener->save);
  if (opener->save.world != options_.world && !replica) {
    return engine::OpenGlobalImage(opener, {request.take_rank0, request.include}, options_.rank, failed, reason, header_lost);
  }
  const auto prepare = [&](ImageParts& parts) {
    parts.global = [opener, rank = options_.rank](const GlobalOptions& options) {
      std::string why;
      bool lost = false;
      return engine::OpenGlobalImage(opener, options, rank, [](const absl::Status&) {}, &why, &lost);
    };
  };
  NEVE_ASSIGN_OR_RETURN(std::unique_ptr<Image> image,
                        opener->OpenFile(replica ? 0 : options_.rank, failed, reason, header_lost, prepare, wanted));
  return image;
}

absl::StatusOr<std::unique_ptr<Image>> EngineImpl::Find(const FindRequest& request) {
  NEVE_RETURN_IF_ERROR(CheckUsable());
  if (options_.world > 1) {
    const GroupCall call(this);
    return FindTogether(request);
  }
  // A tier that cannot be read must not look like a job that never was.
  NEVE_RETURN_IF_ERROR(EnsureUid());
  std::vector<std::string> names;
  const std::vector<catalog::TierListing> listings = ListAll(&names);
  NEVE_RETURN_IF_ERROR(CheckListed(listings, names, request));
  engine::FindRefusals refusals(request);
  for (const catalog::Save& save : catalog::GroupSaves(listings)) {
    if (!refusals.Wants(save.save, save.step)) continue;
    refusals.Saw(save.any_record);
    std::string reason = save.reason;
    if (save.complete) {
      bool header_lost = false;
      absl::StatusOr<std::unique_ptr<Image>> image = OpenSave(OpenerOf(save, listings, names), request, refusals, &reason, &header_lost);
      if (image.ok()) return image;
      if (header_lost) {
        // A header is lost, or the ranks' headers contradict each other; what the ranks disagree on, an older save cannot mend.
        if (!request.fallback || absl::IsUnimplemented(image.status())) {
          return Annotate(image.status(), engine::SaveText(save.save, save.step));
        }
        reason = std::string(image.status().message());
        refusals.CopyFailed(image.status());
      }
    }
    NEVE_RETURN_IF_ERROR(refusals.Refuse(save.save, save.step, reason));
  }
  return refusals.Nothing(options_.job, Places(listings));
}

std::string EngineImpl::Places(const std::vector<catalog::TierListing>& listings) {
  std::string places;
  for (const auto& listing : listings) places += (places.empty() ? "" : ", ") + listing.place;
  return places;
}

}  // namespace neve
