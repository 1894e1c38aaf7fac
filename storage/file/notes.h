// Small named files of the job, directly in its folder.
#ifndef NEVE_STORAGE_FILE_NOTES_H_
#define NEVE_STORAGE_FILE_NOTES_H_

#include <string>

#include "base/error/status.h"
#include "storage/file/job_folder.h"

namespace neve::storage {

inline constexpr uint64_t kNoteBytesMax = 1u << 20;

absl::StatusOr<std::string> ReadNoteFile(const JobFolder& folder, const std::string& name);
absl::Status WriteNoteFile(const JobFolder& folder, const std::string& name, const std::string& content, bool exclusive);
absl::Status RemoveNoteFile(const JobFolder& folder, const std::string& name);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_NOTES_H_
