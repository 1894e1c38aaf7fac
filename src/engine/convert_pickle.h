// The pickle (protocol 2) of a state, as torch.save would have made it: containers, numbers, text, bytes, tensors of every layout,
// Parameters, namedtuples and dataclasses by the names of their classes. An object that was saved by its state_dict is written as that.
// Storages are named by the keys "0", "1", .. of the archive.
#ifndef NEVE_ENGINE_CONVERT_PICKLE_H_
#define NEVE_ENGINE_CONVERT_PICKLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "engine/convert.h"

namespace neve::engine {

// One storage of the archive: the bytes of one entry of the image's header.
struct TorchStorage {
  uint32_t entry;      // in header().tensors
  uint64_t bytes;
};

struct TorchPickle {
  std::string pickle;
  std::vector<TorchStorage> storages;
};

// Unsupported: what a plain pickle cannot express, by name.
absl::StatusOr<TorchPickle> PickleOf(const Conversion& conversion);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_CONVERT_PICKLE_H_
