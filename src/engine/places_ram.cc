#include "engine/places_ram.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/names.h"

namespace neve::engine {
namespace {

class SlotReader : public storage::ImageReader {
 public:
  SlotReader(std::shared_ptr<const slot::Slot> slot, format::CommitRecord record) : slot_(std::move(slot)), record_(std::move(record)) {}
  const format::CommitRecord& record() const override { return record_; }
  void Read(uint64_t offset, std::span<std::byte> target, storage::Done done) override {
    const std::span<const std::byte> image = Mapped();
    if (offset > image.size() || image.size() - offset < target.size()) {
      done(Damaged(absl::StrFormat("a read of %d bytes at %d of an image of %d", target.size(), offset, image.size())));
      return;
    }
    std::copy_n(image.begin() + static_cast<ptrdiff_t>(offset), target.size(), target.begin());
    done(absl::OkStatus());
  }
  std::span<const std::byte> Mapped() const override { return slot_->image().first(record_.image_bytes); }

 private:
  const std::shared_ptr<const slot::Slot> slot_;
  const format::CommitRecord record_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankFile>> OpenSlotImage(const std::string& path, std::shared_ptr<sync::Crew> crew,
                                                        std::shared_ptr<const slot::Slot>* slot) {
  NEVE_ASSIGN_OR_RETURN(*slot, slot::Slot::OpenForReading(path));
  NEVE_ASSIGN_OR_RETURN(format::CommitRecord record, (*slot)->Record());
  if (record.digests.empty() || record.image_bytes > (*slot)->image().size()) return Unavailable(path + " holds no sealed image now");
  ImageParts parts;
  parts.image_bytes = record.image_bytes;
  parts.crew = std::move(crew);
  parts.metrics = std::make_shared<obs::Metrics>();
  parts.info.job = record.job;
  parts.info.step = record.key.step;
  parts.info.save = record.key.save;
  parts.info.world = record.key.world;
  parts.record = std::make_shared<const format::CommitRecord>(record);
  restore::Source source;
  source.name = "ram";
  source.place = path;
  source.reader = std::make_shared<SlotReader>(*slot, std::move(record));
  parts.sources.push_back(std::move(source));
  return MakeImage(std::move(parts));
}

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
