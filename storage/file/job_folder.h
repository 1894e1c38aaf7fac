// Where things of one job lie, and the rules for a place that is missing: a missing `root` is a place that cannot be reached
// (an unmounted disk looks so), a missing job folder below it is a place that holds nothing yet.
#ifndef NEVE_STORAGE_FILE_JOB_FOLDER_H_
#define NEVE_STORAGE_FILE_JOB_FOLDER_H_

#include <string>

#include "base/error/status.h"
#include "neve/types.h"

namespace neve::storage {

class JobFolder {
 public:
  JobFolder(std::string path, std::string root) : path_(std::move(path)), root_(std::move(root)) {}

  const std::string& path() const { return path_; }
  std::string SaveFolder(const ImageKey& key) const;
  std::string ImagePath(const ImageKey& key) const;
  std::string RecordPath(const ImageKey& key) const;
  std::string PinPath(const ImageKey& key) const;
  std::string SpareFolder() const;

  // False: missing, under a root that is there. Unavailable: the root is missing, or what stands there is no folder.
  absl::StatusOr<bool> Exists() const;
  // Makes the folder and its missing parents, and makes their names durable.
  absl::Status Make() const;
  // Makes the folder of one save too; its name is made durable by the commit.
  absl::Status MakeSaveFolder(const ImageKey& key) const;
  // Removes the folder of a save when nothing is left in it but what belongs to nobody: a pin, a cache, temporaries.
  void RemoveSaveFolderIfEmpty(const ImageKey& key) const;

 private:
  std::string path_;
  std::string root_;
};

// A write that met a missing folder could not be done; that is not the NotFound of a tier that holds no such image.
absl::Status MissingIsUnavailable(const absl::Status& status);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_JOB_FOLDER_H_
