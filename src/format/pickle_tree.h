// From a pickle's graph to the tree of an image: containers become nodes, tensors go to the maker in the order of the tree, all
// else that is plain becomes values text or blobs, and objects that only running the pickle could bring back become opaque
// nodes, below which tensors stay reachable:
//
//   {"o":"opaque","q":"module.Class","c":[NODE]}   c: nothing; the state that it would get; or a dict of "args", "state",
//                                                  "items" and "pairs", whichever there are
//
// An object that stands in several places is shown at the first; the others are opaque nodes without children.
#ifndef NEVE_FORMAT_PICKLE_TREE_H_
#define NEVE_FORMAT_PICKLE_TREE_H_

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error/status.h"
#include "format/pickle_graph.h"
#include "format/pickle_values.h"
#include "format/torch_tensors.h"
#include "format/virtual_image.h"

namespace neve::format {

// Where the storages of a pickle lie: the archive or stream that it came from.
class TorchStorages {
 public:
  struct Found {
    uint32_t storage = 0;  // of the maker
    DType dtype = DType::kU8;
    bool untyped = false, meta = false;
    uint64_t offset = 0;  // of a view of a storage: bytes from its start
    std::string device;   // "": the host
  };
  struct Named {
    PickleNode node = 0;   // the first that names the tensor
    TorchTensor tensor;    // its storage is a node for Find
  };
  virtual ~TorchStorages() = default;
  // A tensor that a persistent id names; none: it names a storage, as it does everywhere but in the oldest files.
  virtual absl::StatusOr<std::optional<Named>> FindTensor(PickleNode /*persistent*/) { return std::nullopt; }
  // What the id of a storage says of it.
  virtual absl::StatusOr<TorchStorageId> IdOf(const PickleGraph& graph, PickleNode persistent) { return ReadStorageId(graph, persistent); }
  // word: bytes of the words that tensors see in it. NotFound: its bytes are missing (and that is to be told, not refused).
  virtual absl::StatusOr<Found> Find(PickleNode persistent, uint32_t word) = 0;
  // A storage of the values of a lazily conjugated or negated view, row-major.
  virtual absl::StatusOr<uint32_t> Resolve(const Found& found, const TorchTensor& tensor, DType dtype, uint64_t byte_offset) = 0;
  // All bytes of a small storage.
  virtual absl::Status ReadSmall(const Found& found, uint64_t bytes_max, std::string* bytes) = 0;
  // Where bytes of the pickle lie as they are; false: nowhere.
  virtual bool LocatePickle(uint64_t offset, Backing* backing) const = 0;
};

class PickleTree {
 public:
  PickleTree(const PickleGraph& graph, TorchStorages* storages, ImageMaker* maker)
      : graph_(graph), values_(graph), storages_(storages), maker_(maker) {}

  // Emits the whole graph and sets the maker's tree. Unsupported: a list or dictionary that contains itself, nests deeper than
  // images do, or stands in very many places. Damaged: what the allow-list refuses, tensors out of their storages. Exhausted:
  // more than a header can hold.
  absl::Status Build();
  // The same for parts that the caller puts together: the node of one object.
  absl::Status Emit(PickleNode node, const std::string& name, int depth, std::string* out, bool* plain);
  const std::string& values_text() const { return values_text_; }

 private:
  absl::Status CheckSharing();
  absl::Status EmitValue(PickleNode node, const std::string& name, std::string* out);
  absl::Status EmitDict(std::span<const PickleNode> pairs, std::string_view type, PickleNode attributes, const std::string& name,
                        int depth, std::string* out);
  absl::Status EmitList(std::span<const PickleNode> items, bool tuple, const std::string& name, int depth, std::string* out);
  absl::Status EmitCall(PickleNode node, const std::string& name, int depth, std::string* out, bool* plain);
  absl::Status EmitTensor(PickleNode node, const TorchTensor& tensor, const std::string& name, int depth, std::string* out,
                          bool* plain);
  absl::Status EmitDense(PickleNode node, const TorchTensor& tensor, const std::string& name, int depth, std::string* out,
                         bool* plain);
  absl::Status EmitArray(PickleNode node, const TorchTensor& tensor, const std::string& name, std::string* out, bool* plain);
  absl::Status EmitMeta(const TorchTensor& tensor, std::string* out);
  absl::Status EmitSparse(const TorchTensor& tensor, const std::string& name, int depth, std::string* out);
  absl::Status EmitGenerator(PickleNode node, const std::string& name, std::string* out, bool* emitted);
  absl::Status EmitOpaque(PickleNode node, const std::string& name, int depth, std::string* out);
  absl::Status EmitOpaqueLeaf(std::string callable, const std::string& name, std::string* out);
  absl::Status EmitPersistent(PickleNode node, const std::string& name, int depth, std::string* out, bool* plain);
  absl::Status EmitStorage(PickleNode node, const std::string& name, std::string* out);
  absl::Status AddTensor(PickleNode node, const TorchTensor& tensor, DType dtype, uint32_t storage, uint64_t byte_offset,
                         const std::string& name, std::string* unique);
  absl::StatusOr<uint32_t> BytesStorage(const TorchTensor& tensor);
  std::string Unique(const std::string& name, bool* natural);
  std::string ObjectName(PickleNode node) const;
  absl::Status Charge(uint64_t bytes);
  absl::Status At(const absl::Status& status, const std::string& name) const;

  const PickleGraph& graph_;
  PickleValues values_;
  TorchStorages* storages_;
  ImageMaker* maker_;
  std::string values_text_;
  uint64_t charged_ = 0;  // bytes of tree, names and values so far
  uint64_t nodes_ = 0;
  int opaque_depth_ = 0;  // opaque objects that are being made
  std::unordered_set<std::string> names_;
  std::unordered_map<PickleNode, std::string> tensors_;  // names of those already there
  std::unordered_set<PickleNode> objects_;               // opaque ones already there, or being made
  std::unordered_set<PickleNode> active_;                // containers being made
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_PICKLE_TREE_H_
