// Torch's archive: data.pkl says what there is, data/<key> hold the storages, byteorder how their words are written. All lie
// below one root folder, whose name does not matter; archives that were packed again may have none.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/pickle_machine.h"
#include "format/pickle_tree.h"
#include "format/readers.h"
#include "format/zip_origin.h"

namespace neve::format {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
constexpr uint64_t kSmallRecordMax = 4096;

// The entry whose folder is the root: of several, the one least deep.
const ZipEntry* FindPickle(const ZipDirectory& directory) {
  const ZipEntry* found = nullptr;
  auto depth = [](std::string_view name) { return std::count(name.begin(), name.end(), '/'); };
  for (const ZipEntry& entry : directory.entries()) {
    const bool is_pickle = entry.name.ends_with(kPickleName) && (entry.name.size() == kPickleName.size() ||
                                                                 entry.name[entry.name.size() - kPickleName.size() - 1] == '/');
    if (is_pickle && (found == nullptr || depth(entry.name) < depth(found->name))) found = &entry;
  }
  return found;
}

class TorchZip final : public TorchStorages {
 public:
  TorchZip(std::shared_ptr<const ByteSource> source, ZipDirectory directory, std::vector<std::string> notes,
           const ContentsOptions& options)
      : source_(source), origin_(std::make_shared<ZipOrigin>(std::move(source), std::move(directory))), options_(options) {
    for (std::string& note : notes) maker_.AddNote(std::move(note));
  }

  OpenedContents Open() {
    const ZipEntry* pickle_entry = FindPickle(origin_->directory());
    root_ = pickle_entry->name.substr(0, pickle_entry->name.size() - kPickleName.size());
    NEVE_RETURN_IF_ERROR(ReadByteOrder());
    if (origin_->directory().Find(root_ + "constants.pkl") != nullptr) {
      maker_.AddNote("a TorchScript archive: its code is not read, its objects are shown as they were written");
    }
    NEVE_ASSIGN_OR_RETURN(std::string text, ReadZipEntry(*source_, *pickle_entry, PickleLimits().pickle_bytes_max));
    pickle_entry_ = pickle_entry;
    absl::StatusOr<ReadPickleResult> pickle = ReadPickle(std::move(text), Where(*pickle_entry));
    if (!pickle.ok()) return pickle.status();
    if (pickle->end != pickle_entry->bytes) {
      maker_.AddNote(absl::StrFormat("%d bytes follow the pickle in entry %s", pickle_entry->bytes - pickle->end,
                                     Quoted(pickle_entry->name)));
    }
    graph_ = &pickle->graph;
    if (absl::Status status = PickleTree(pickle->graph, this, &maker_).Build(); !status.ok())
      return Annotate(status, source_->name());
    for (const auto& [key, storage] : storages_) {
      if (storage.entry != nullptr) origin_->NameTensor(*storage.entry, maker_.FirstTensorOf(storage.found.storage));
    }
    return maker_.Make(ContentsKind::kTorchZip, {source_->name()}, {origin_->Summed()}, origin_);
  }

  absl::StatusOr<Found> Find(PickleNode persistent, uint32_t word) override {
    NEVE_ASSIGN_OR_RETURN(const TorchStorageId id, ReadStorageId(*graph_, persistent));
    const auto [at, fresh] = storages_.try_emplace(id.key);
    Storage& storage = at->second;
    if (fresh) {
      if (absl::Status status = Locate(id, word, &storage); !status.ok()) {
        storages_.erase(at);
        return status;
      }
    }
    Found found = storage.found;
    found.dtype = id.type.dtype;
    found.untyped = id.type.untyped;
    return found;
  }

  absl::StatusOr<uint32_t> Resolve(const Found& found, const TorchTensor& tensor, DType dtype, uint64_t byte_offset) override {
    const uint64_t item = ItemBytes(dtype), span = tensor::SpanBytes(tensor.shape, tensor.strides, item);
    const uint64_t have = maker_.storage_bytes(found.storage);
    NEVE_RETURN_IF_ERROR(tensor::Classify(tensor.shape, tensor.strides).status());
    if (byte_offset > have || span > have - byte_offset) {
      return Damaged(
          absl::StrFormat("it needs bytes [%d, %d) of its storage, which has %d", byte_offset, byte_offset + span, have));
    }
    NEVE_ASSIGN_OR_RETURN(const uint64_t count, tensor::ElementCount(tensor.shape));
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(count, item, &bytes)) return Damaged("its bytes overflow");
    const Storage& storage = *by_number_.at(found.storage);
    const LazyView view{dtype, tensor.shape, tensor.strides, byte_offset, tensor.conjugated, tensor.negated};
    return maker_.AddStorage(bytes, origin_->AddLazyView(*storage.entry, storage.word, view));
  }

  absl::Status ReadSmall(const Found& found, uint64_t bytes_max, std::string* bytes) override {
    const Storage& storage = *by_number_.at(found.storage);
    NEVE_ASSIGN_OR_RETURN(*bytes, ReadZipEntry(*source_, *storage.entry, bytes_max));
    return absl::OkStatus();
  }

  bool LocatePickle(uint64_t offset, Backing* backing) const override {
    if (pickle_entry_->deflated) return false;
    *backing = {0, pickle_entry_->data_offset + offset};
    return true;
  }

 private:
  struct Storage {
    Found found;
    const ZipEntry* entry = nullptr;
    uint32_t word = 1;
  };

  std::string Where(const ZipEntry& entry) const { return absl::StrFormat("%s: entry %s", source_->name(), Quoted(entry.name)); }

  absl::Status ReadByteOrder() {
    const ZipEntry* const entry = origin_->directory().Find(root_ + "byteorder");
    if (entry == nullptr) {
      maker_.AddNote("there is no byteorder record: its words are taken as little endian");
      return absl::OkStatus();
    }
    NEVE_ASSIGN_OR_RETURN(const std::string order, ReadZipEntry(*source_, *entry, kSmallRecordMax));
    if (order != "little" && order != "big") {
      return Damaged(absl::StrFormat("%s says %s, which is no byte order", Where(*entry), Quoted(order)));
    }
    big_endian_ = order == "big";
    if (big_endian_) maker_.AddNote("its words are big endian, and turned around as they are read");
    return absl::OkStatus();
  }

  absl::Status Locate(const TorchStorageId& id, uint32_t word, Storage* storage) {
    storage->found.device = id.location == "cpu" ? "" : id.location;
    storage->found.meta = id.location == "meta";
    if (storage->found.meta) return absl::OkStatus();
    const std::string name = root_ + "data/" + id.key;
    const ZipEntry* const entry = origin_->directory().Find(name);
    const uint64_t bytes = id.count * ItemBytes(id.type.dtype);  // does not overflow: ReadStorageId
    if (entry == nullptr) {
      const std::string what = absl::StrFormat("the record %s is missing from the archive", Quoted(name));
      return options_.lenient ? NotFound(what) : Damaged(what + " (--lenient reads the others)");
    }
    if (entry->bytes < bytes) {
      return Damaged(absl::StrFormat("the record %s is short: %d bytes wanted, %d found", Quoted(name), bytes, entry->bytes));
    }
    if (entry->bytes > bytes) {
      maker_.AddNote(absl::StrFormat("the record %s has %d bytes, of which %d are used", Quoted(name), entry->bytes, bytes));
    }
    storage->entry = entry;
    storage->word = !big_endian_ ? 1 : !id.type.untyped ? WordBytes(id.type.dtype) : std::max(word, 1u);
    if (bytes % storage->word != 0) storage->word = 1;
    storage->found.storage = maker_.AddStorage(bytes, origin_->BackingOf(*entry, 0, bytes, storage->word));
    by_number_[storage->found.storage] = storage;
    return absl::OkStatus();
  }

  std::shared_ptr<const ByteSource> source_;
  std::shared_ptr<ZipOrigin> origin_;
  const ContentsOptions& options_;
  ImageMaker maker_;
  std::string root_;
  const PickleGraph* graph_ = nullptr;
  const ZipEntry* pickle_entry_ = nullptr;
  bool big_endian_ = false;
  std::unordered_map<std::string, Storage> storages_;       // by key; its elements do not move
  std::unordered_map<uint32_t, const Storage*> by_number_;  // of the maker
};

}  // namespace

bool IsTorchZip(const ZipDirectory& directory) { return FindPickle(directory) != nullptr; }

OpenedContents OpenTorchZip(std::shared_ptr<const ByteSource> source, ZipDirectory directory, std::vector<std::string> notes,
                            const ContentsOptions& options) {
  if (directory.ForgetAbsentChecksums()) notes.push_back("it was written without checksums (each is 0): its bytes cannot be checked");
  return TorchZip(std::move(source), std::move(directory), std::move(notes), options).Open();
}

}  // namespace neve::format
