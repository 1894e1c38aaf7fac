// An image and its commit record as Contents: no byte is delivered before the digest of its chunk was found to hold.
#ifndef NEVE_FORMAT_VERIFIED_CONTENTS_H_
#define NEVE_FORMAT_VERIFIED_CONTENTS_H_

#include <memory>

#include "format/commit_record.h"
#include "format/contents.h"

namespace neve::format {

// Takes an image that was opened by path. Reads the chunks of its header. Damaged: the sizes of the two differ. DataLoss: the
// header differs from its digest; later from Read, for the chunk that does. A chunk is checked when it is first touched.
absl::StatusOr<std::unique_ptr<Contents>> Verified(std::unique_ptr<Contents> image, CommitRecord record);

}  // namespace neve::format

#endif  // NEVE_FORMAT_VERIFIED_CONTENTS_H_
