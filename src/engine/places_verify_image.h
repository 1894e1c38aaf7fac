// Checks one image: the rules of its header, its tree, its values and its blobs, its size, its identity, and the digest of every
// chunk. Chunks are streamed in bounded memory by the threads of a crew; what is wrong is named by file, tensor, chunk and offset.
#ifndef NEVE_ENGINE_PLACES_VERIFY_IMAGE_H_
#define NEVE_ENGINE_PLACES_VERIFY_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/error/status.h"
#include "base/sync/crew.h"
#include "format/commit_record.h"
#include "neve/places.h"

namespace neve::engine {

// Reads bytes [offset, offset + target.size()). Thread: any.
using ReadBytes = std::function<absl::Status(uint64_t offset, std::span<std::byte> target)>;

struct ImageToVerify {
  std::string place;                                // for the report
  std::string file;
  uint64_t bytes = 0;                               // size found
  ReadBytes read;
  std::optional<format::CommitRecord> record;       // none: structure is all that can be checked
};

// Told of bytes done, from the crew's threads.
using Advance = std::function<void(uint64_t bytes)>;

// Unsupported: without a record, and no safetensors file at all (says what it is). All else is told by the report.
absl::Status VerifyImage(const ImageToVerify& image, sync::Crew* crew, const Advance& advance, VerifyReport* report);

void AddProblem(VerifyReport* report, Problem problem, bool structural);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_PLACES_VERIFY_IMAGE_H_
