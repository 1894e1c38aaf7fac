// What stands behind an image whose data lies in a zip archive: inflated entries, values of lazy views, checksums.
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
#include "format/virtual_image.h"
#include "format/zip_directory.h"

namespace neve::format {

class ZipOrigin final : public Origin {
 public:
  ZipOrigin(std::shared_ptr<const ByteSource> source, ZipDirectory directory)
      : source_(std::move(source)), directory_(std::move(directory)) {}

  const ZipDirectory& directory() const { return directory_; }
  const ByteSource& source() const { return *source_; }

  // Before anything is read. `skip` bytes of the entry come before what is asked for; word: of a foreign byte order.
  Backing BackingOf(const ZipEntry& entry, uint64_t skip, uint32_t word);
  Backing AddLazyView(const ZipEntry& entry, uint32_t word, LazyView view);
  void NameTensor(const ZipEntry& entry, const std::string& tensor);  // the first that an entry holds, for problems
  void AddProblem(ContentsProblem problem) { known_.push_back(std::move(problem)); }  // found while opening, told by Check

  // Bytes of an entry, inflated. Requires: within entry.bytes.
  absl::Status ReadEntry(const ZipEntry& entry, uint64_t offset, std::span<std::byte> target) const;
  absl::Status ReadMade(uint64_t number, uint64_t offset, std::span<std::byte> target) const override;
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override;

 private:
  struct Made {
    const ZipEntry* entry;
    uint64_t skip;
    uint32_t word;
    std::optional<LazyView> view;
  };

  std::shared_ptr<const ByteSource> source_;
  ZipDirectory directory_;
  std::vector<Made> made_;
  std::map<const ZipEntry*, std::string> tensors_;
  std::vector<ContentsProblem> known_;
  mutable sync::Mutex mutex_;
  mutable std::map<const ZipEntry*, std::unique_ptr<Inflater>> inflaters_ NEVE_GUARDED_BY(mutex_);  // a few, where they stopped
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_ZIP_ORIGIN_H_
