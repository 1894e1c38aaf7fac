// The calls by which torch and NumPy rebuild tensors, recognized by name and read as data: the allow-list. A call of any
// other callable is none of these.
#ifndef NEVE_FORMAT_TORCH_TENSORS_H_
#define NEVE_FORMAT_TORCH_TENSORS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "format/pickle_graph.h"
#include "format/pickle_values.h"
#include "format/torch_types.h"
#include "neve/dtype.h"
#include "tensor/view.h"

namespace neve::format {

struct TorchTensor {
  enum class Kind : uint8_t { kDense, kMeta, kSparse, kQuantized, kArray };
  Kind kind = Kind::kDense;
  bool parameter = false, gradient = false, conjugated = false, negated = false, coalesced = false;
  std::string device;         // "": that of its storage, or the host
  PickleNode attributes = 0;  // Python attributes; 0: none

  PickleNode storage = 0;       // dense, quantized: its persistent id
  std::optional<DType> dtype;   // where it is not that of the storage
  std::string dtype_name;       // torch's, of meta and of those that neve lacks
  uint64_t offset = 0;          // in elements
  tensor::Dims shape, strides;  // strides: all but sparse

  std::string layout;             // sparse: "coo", "csr", "csc", "bsr", "bsc"
  std::vector<PickleNode> parts;  // its component tensors

  PickleNode bytes = 0;  // array: its bytes
  uint32_t swap = 1;     // bytes of the words to be turned around, as NumPy itself does when it reads them
  std::string numpy;     // its dtype where neve has no name for it, and the shape then ends with an item's bytes
};

// What a node rebuilds; nullopt: no tensor that is known here. Damaged: one of theirs with arguments that it does not take.
absl::StatusOr<std::optional<TorchTensor>> ReadTorchTensor(const PickleGraph& graph, const PickleValues& values, PickleNode node);

// ('storage', type, key, location, count[, view]).
struct TorchStorageId {
  TorchStorageType type;
  std::string type_name, key, location;
  uint64_t count = 0;   // of elements
  PickleNode view = 0;  // 0: none
};
absl::StatusOr<TorchStorageId> ReadStorageId(const PickleGraph& graph, PickleNode persistent);

}  // namespace neve::format

#endif  // NEVE_FORMAT_TORCH_TENSORS_H_
