// The global image of a save: the images of all its ranks, opened, merged and read as one.
//
// Invariants
//   - Opening reads headers, and of what several ranks keep under one name, or as copies of one box, as much as it takes to know that
//     it is equal: nothing where the chunks' digests tell it (global_compare.h).
//   - A read fetches only the chunks that it needs, each once; every chunk is verified by its record, from the nearest tier first.
//     Of copies on several ranks the nearest is read, the next when that fails.
//   - Memory: the headers, and at most 32 MiB of staging at a time (as one image's reads).
#ifndef NEVE_ENGINE_GLOBAL_IMAGE_H_
#define NEVE_ENGINE_GLOBAL_IMAGE_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "engine/opened_image.h"
#include "engine/save_opener.h"
#include "format/global_image.h"

namespace neve::engine {

// own_rank: whose image counts as nearest. NotFound: some rank has no usable copy (`reason` says why, failed(status) is called for
// each). Otherwise *unreadable is true: a header is lost, the ranks contradict each other (Damaged), or differ (Unsupported).
absl::StatusOr<std::unique_ptr<Image>> OpenGlobalImage(const std::shared_ptr<const SaveOpener>& opener,
                                                       const GlobalOptions& options, uint32_t own_rank,
                                                       const std::function<void(const absl::Status&)>& failed, std::string* reason,
                                                       bool* unreadable);

// Of images that are open already, by rank. info: of the save.
absl::StatusOr<std::unique_ptr<OpenedImage>> MergeImages(std::vector<std::unique_ptr<RankFile>> images, SaveInfo info,
                                                         const GlobalOptions& options, uint32_t own_rank);

// One rank's own entries, its pieces in global coordinates; hidden ones are whole.
std::vector<format::GlobalEntry> EntriesOf(const format::ImageHeader& header, std::span<const format::LogicalTensor> tensors);

// Fills wanted boxes. Where bytes of an image are bad, what they belong to is read from other copies, and the rest from the image
// all the same; without another copy the status is that of the read. read: ranges of one image.
absl::Status ReadBoxes(std::span<const format::GlobalEntry> entries, std::span<const restore::BoxWant> wants,
                       std::span<const uint32_t> distances,
                       const std::function<absl::Status(uint32_t image, std::span<const restore::Range>)>& read,
                       std::span<uint8_t> written);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_GLOBAL_IMAGE_H_
