// The pickle (protocol 2) of a state, as torch.save would have made it: containers, numbers, text, bytes, tensors of every layout,
// Parameters, namedtuples and dataclasses by the names of their classes. An object that was saved by its state_dict is written as that.
// Storages are named by the keys "0", "1", .. of the archive.
#ifndef NEVE_ENGINE_CONVERT_PICKLE_H_
#define NEVE_ENGINE_CONVERT_PICKLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "engine/convert.h"
#include "format/torch_zip_layout.h"
#include "format/values.h"

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

// The same of one part of the state: a node, or a value where that is given. tensors: all tensor nodes by name, for those that
// the part holds again. What cannot be expressed is added to `refusals`; the pickle is then of no use.
using TensorNodes = std::map<std::string, const format::TreeNode*>;
absl::StatusOr<TorchPickle> PickleOfPart(const Conversion& conversion, const format::TreeNode& node, const format::Value* value,
                                         const TensorNodes& tensors, Refusals* refusals);
// Of one dense tensor without gaps, row-major; its one storage is "0". dtype_name: where torch's is another than the type's own.
// "": torch has no such type without a scale.
std::string PickleOfTensor(DType dtype, const std::string& dtype_name, const tensor::Dims& shape, uint64_t bytes);
// "torch.<this>"; "": as above.
std::string TorchTypeName(DType dtype);

// The bytes of a storage, as the elements lay in memory.
Fill StorageBytes(const format::Contents& contents, uint32_t entry);

// Appends a torch archive to a stream: its head, the storages and its tail. make_layout: the same layout each time that it is
// called; storages: one Fill a storage of it.
using MakeLayout = std::function<std::shared_ptr<const format::TorchZipLayout>()>;
void AddTorchArchive(const MakeLayout& make_layout, std::vector<Fill> storages, OutputStream* stream);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_CONVERT_PICKLE_H_
