// What lies in a job folder, from names and sizes alone. Foreign files, temporaries and half folders are passed over; entries
// that vanish while they are looked at count as gone.
#ifndef NEVE_STORAGE_FILE_LISTING_H_
#define NEVE_STORAGE_FILE_LISTING_H_

#include "base/error/status.h"
#include "storage/file/job_folder.h"
#include "storage/tier.h"

namespace neve::storage {

absl::StatusOr<Listing> ListJobFolder(const JobFolder& folder);

}  // namespace neve::storage

#endif  // NEVE_STORAGE_FILE_LISTING_H_
