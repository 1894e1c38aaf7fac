#include "engine/places_ram.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/names.h"

namespace neve::engine {

absl::StatusOr<std::vector<slot::SlotInfo>> SlotsOf(const PlaceInfo& ram) {
  std::vector<slot::SlotInfo> all;
  if (!ram.path.empty()) {
    NEVE_ASSIGN_OR_RETURN(all, slot::Scan(ram.path, Uid{}));
  }
  if (ram.job.empty()) return all;
  std::set<std::string> jobs, folders = {format::UidFromName(ram.job).ToHex()};
  for (const slot::SlotInfo& found : all) {
    if (!found.job.empty()) jobs.insert(found.job);
    if (found.job == ram.job) folders.insert(found.uid.ToHex());
  }
  std::vector<slot::SlotInfo> of_job;
  for (slot::SlotInfo& found : all) {
    const bool unreadable = found.job.empty() && folders.contains(found.uid.ToHex());
    if (found.job == ram.job || unreadable) of_job.push_back(std::move(found));
  }
  if (!of_job.empty()) return of_job;
  std::string known;
  for (const std::string& job : jobs) known += (known.empty() ? "" : ", ") + job;
  return NotFound(absl::StrFormat("RAM holds no slot of a job named '%s'; %s", ram.job,
                                  known.empty() ? "it holds none at all" : "of these it does: " + known));
}

}  // namespace neve::engine
