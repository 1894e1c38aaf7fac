// A new file that takes the place of another, whole or not at all.
//
//   1  a file is made in the target's folder, its room reserved: without a name where the file system can (a kill leaves
//      nothing), else under a temporary one                                        -> the old file, and a temporary perhaps
//   2  its bytes are written                                                       -> the same
//   3  fsync of the file                                                           -> the same
//   4  given a temporary name, and renamed over the target                         -> the old file or the new one, whole
//   5  fsync of the folder                                                         -> the new one
// Any failure removes the temporary and leaves the old file as it was.
//
// Of several saves of one process to one name the one that began last stays: an earlier one that ends after it (an asynchronous
// one) leaves it alone, as if it had been written and then replaced.
//
// A kill in step 4 leaves a temporary. Temporaries are named `.tmp-<16 hex digits>` by the numbers 0, 1, .. and are locked
// (flock) by the process that writes them, so the next save into the folder tells the dead ones and removes them. A lock dies with
// the last descriptor: a forked child that outlives its parent keeps it, and then the next number is taken.
#ifndef NEVE_ENGINE_REPLACEMENT_H_
#define NEVE_ENGINE_REPLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error/status.h"
#include "base/os/syscalls.h"

namespace neve {

class Replacement {
 public:
  // Links are followed: a link stays a link and what it points at is replaced. An old file's mode is kept, and its owner and group
  // as far as this user may give them; a new one obeys the umask. The program may change its working folder afterwards. Invalid,
  // Unavailable (an old file that may not be written, too), Exhausted (no room for `bytes`).
  static absl::StatusOr<std::unique_ptr<Replacement>> Begin(const std::string& path, uint64_t bytes);
  ~Replacement();

  // Any thread, ranges in any order. Pages go out to the disk as the save goes on when ranges come in ascending order, so that
  // a container's page cache does not grow with the file.
  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes);
  // The file's length becomes `bytes`; it is durable and has its name when this returns.
  absl::Status Finish(uint64_t bytes);

 private:
  absl::Status CannotSave(const absl::Status& status) const;   // names the target
  absl::Status TakeTemporaryName();     // of a file without one
  absl::Status CreateTemporary();       // where files must have one
  absl::Status TakeName();              // steps 4 and 5
  void RemoveDeadTemporaries() const;
  std::string Temporary(uint64_t number) const;

  struct Turns;
  static std::shared_ptr<Turns> TurnsOf(const std::string& target);

  std::string folder_, target_, temporary_;
  std::shared_ptr<Turns> turns_;        // of all savers of this process to the target
  uint64_t turn_ = 0;
  uint64_t number_ = 0;
  os::File file_;
  bool named_ = false;   // the temporary has its name, and is to be removed after a failure
};

}  // namespace neve

#endif  // NEVE_ENGINE_REPLACEMENT_H_
