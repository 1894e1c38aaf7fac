// Contents whose image is made in memory while its data lies elsewhere: what every reader of a foreign kind ends in.
//
//   ImageMaker maker;
//   const uint32_t storage = maker.AddStorage(bytes, {.file = 0, .offset = data_offset});
//   maker.AddTensor({name, dtype, shape, strides, storage, byte_offset});     // in the order of the tree
//   maker.SetTree(root, values);
//   return maker.Make(kind, sources, origin);
//
// A tensor that is contiguous and all of its storage is stored under its name (of several: the least name), others are aliases
// of that, or of a hidden base that is the storage.
#ifndef NEVE_FORMAT_VIRTUAL_IMAGE_H_
#define NEVE_FORMAT_VIRTUAL_IMAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error/status.h"
#include "format/byte_source.h"
#include "format/contents.h"

namespace neve::format {

// Where the bytes of a storage come from.
struct Backing {
  static constexpr uint32_t kMemory = UINT32_MAX;    // offset: which text of the maker
  static constexpr uint32_t kMade = UINT32_MAX - 1;  // offset: a number that the origin knows them by
  uint32_t file = 0;                                 // into the sources
  uint64_t offset = 0;
  uint32_t swap = 1;  // words of so many bytes are turned around; files only
  bool lies_in_file() const { return file < kMade; }
};

// What stands behind a virtual image: the archive or folder that was opened.
class Origin {
 public:
  virtual ~Origin() = default;
  // Bytes of a storage that lie nowhere as they are.
  virtual absl::Status ReadMade(uint64_t number, uint64_t offset, std::span<std::byte> target) const;
  virtual absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const = 0;
  virtual absl::Status CheckRead() const { return absl::OkStatus(); }   // as Contents::CheckRead
};

using Sources = std::vector<std::shared_ptr<const ByteSource>>;

class ImageMaker {
 public:
  struct Tensor {
    std::string name;  // escaped and unique
    DType dtype;
    tensor::Dims shape, strides;
    uint32_t storage;
    uint64_t byte_offset;  // of its first element in the storage
  };

  uint32_t AddStorage(uint64_t bytes, const Backing& backing);
  uint32_t AddMemory(std::string bytes);  // a storage too
  uint64_t storage_bytes(uint32_t storage) const { return storages_[storage].bytes; }
  // Damaged: it reaches out of its storage (bytes wanted and found), or overflows.
  absl::Status AddTensor(Tensor tensor);
  uint32_t AddBlob(std::string payload);  // the number of `neve.blob.<n>`
  void SetTree(std::string root, std::string values) { root_ = std::move(root), values_ = std::move(values), has_tree_ = true; }
  void AddMetadata(std::string key, std::string value) { metadata_.emplace_back(std::move(key), std::move(value)); }
  // The tree shows one list or dictionary in several places ("shared" of docs/format.md).
  void SetShared() { shared_ = true; }
  void AddOpaque(OpaqueObject object) { opaque_.push_back(std::move(object)); }
  void AddNote(std::string note) { notes_.push_back(std::move(note)); }
  std::vector<std::string>* notes() { return &notes_; }
  std::string FirstTensorOf(uint32_t storage) const;       // "" where none is
  uint64_t memory_bytes() const { return memory_bytes_; }  // of blobs and memory so far

  // Empties the maker. `files`: names; sources[i] is that of files[i], where a backing names it.
  absl::StatusOr<std::unique_ptr<Contents>> Make(ContentsKind kind, std::vector<std::string> files, Sources sources,
                                                 std::shared_ptr<const Origin> origin);

 private:
  struct Storage {
    uint64_t bytes;
    Backing backing;
    uint32_t owner = UINT32_MAX;        // the tensor that it is stored as
    uint32_t base_number = UINT32_MAX;  // of its hidden base, where it has one
    uint32_t alignment = 1;
    uint32_t first = UINT32_MAX;  // the first tensor of it
  };
  struct Entry;
  bool Covers(const Tensor& tensor) const;
  void ChooseOwners();
  std::vector<Entry> MakeEntries();
  static uint64_t Place(std::vector<Entry>* entries);
  std::string TreeText() const;

  std::vector<Storage> storages_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> memory_;
  std::vector<uint32_t> blobs_;  // their storages
  uint64_t memory_bytes_ = 0;
  std::string root_, values_;
  bool has_tree_ = false;
  bool shared_ = false;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<OpaqueObject> opaque_;
  std::vector<std::string> notes_;
};

}  // namespace neve::format

#endif  // NEVE_FORMAT_VIRTUAL_IMAGE_H_
