// What stands behind an image whose data lies in a zip archive: inflated entries, values of lazy views, checksums.
//
// What is read of an entry is summed on the way; the read that completes what is used of one compares its CRC-32.
#ifndef NEVE_FORMAT_ZIP_ORIGIN_H_
#define NEVE_FORMAT_ZIP_ORIGIN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sync/mutex.h"
#include "format/inflate.h"
#include "format/lazy_view.h"
#include "format/summed_source.h"
#include "format/virtual_image.h"
#include "format/zip_directory.h"

namespace neve::format {

class ZipOrigin final : public Origin {
 public:
  ZipOrigin(std::shared_ptr<const ByteSource> source, ZipDirectory directory)
      : source_(std::move(source)), directory_(std::move(directory)) {}

  const ZipDirectory& directory() const { return directory_; }

  // Before anything is read. What is used of an entry: `bytes` behind its first `skip`. word: of a foreign byte order.
  Backing BackingOf(const ZipEntry& entry, uint64_t skip, uint64_t bytes, uint32_t word);
  Backing AddLazyView(const ZipEntry& entry, uint32_t word, LazyView view);
  void NameTensor(const ZipEntry& entry, const std::string& tensor);  // the first that an entry holds, for problems
  void AddProblem(ContentsProblem problem) { known_.push_back(std::move(problem)); }  // found while opening, told by Check

  // The archive for reading what is used of it, checksums compared. When all was used and named.
  std::shared_ptr<const ByteSource> Summed();

  // Bytes of an entry, inflated. Requires: within entry.bytes. DataLoss: the checksum of what this completes differs.
  absl::Status ReadEntry(const ZipEntry& entry, uint64_t offset, std::span<std::byte> target) const;
  absl::Status ReadMade(uint64_t number, uint64_t offset, std::span<std::byte> target) const override;
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override;
  absl::Status CheckRead() const override;

 private:
  struct Made {
    const ZipEntry* entry;
    uint64_t skip;
    uint32_t word;
    std::optional<LazyView> view;
  };

  // What is used of an entry: [begin, end).
  struct Use {
    uint64_t begin, end;
  };

  std::string_view NameOf(const ZipEntry& entry) const;
  absl::Status InflateEntry(const ZipEntry& entry, Inflater* inflater, uint64_t offset, std::span<std::byte> target) const;

  std::shared_ptr<const ByteSource> source_;
  ZipDirectory directory_;
  std::map<const ZipEntry*, Use> uses_;
  std::shared_ptr<const SummedSource> summed_;
  std::vector<Made> made_;
  std::map<const ZipEntry*, std::string> tensors_;
  std::vector<ContentsProblem> known_;
  mutable sync::Mutex mutex_;
  mutable std::map<const ZipEntry*, std::unique_ptr<Inflater>> inflaters_ NEVE_GUARDED_BY(mutex_);  // a few, where they stopped
  mutable std::map<const ZipEntry*, bool> inflated_ NEVE_GUARDED_BY(mutex_);  // those read so far: whether to the end
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_ZIP_ORIGIN_H_
