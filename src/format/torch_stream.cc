// Torch's stream of before its archives: a magic number, a protocol number, facts of the machine, the object and a list of
// keys, each a pickle; then for each key the storage's count of elements, in 8 bytes, and its bytes. There is no checksum.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/lazy_view.h"
#include "format/pickle_machine.h"
#include "format/pickle_tree.h"
#include "format/readers.h"

namespace neve::format {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kMagic =
    "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;                           // a number, as pickles of protocol 2 on write it
constexpr std::string_view kMagicLine = "L119547037146038801333356L\n."sv;  // as older ones do
constexpr int64_t kProtocol = 1001;
constexpr uint64_t kMagicSearchBytes = 32, kSmallPickleBytes = 64u << 10, kCountBytes = 8;
constexpr uint64_t kCheckBytes = 4u << 20;

class StreamOrigin final : public Origin {
 public:
  explicit StreamOrigin(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}

  Backing AddLazyView(const Backing& storage, LazyView view) {
    views_.emplace_back(storage, std::move(view));
    return {Backing::kMade, views_.size() - 1};
  }
  absl::Status ReadMade(uint64_t number, uint64_t offset, std::span<std::byte> target) const override {
    const auto& [storage, view] = views_[number];
    const ReadBytes plain = [&, &storage = storage](uint64_t at, std::span<std::byte> to) {
      return source_->Read(storage.offset + at, to);
    };
    const ReadBytes swapped = [&, &storage = storage](uint64_t at, std::span<std::byte> to) {
      return ReadSwapped(plain, storage.swap, at, to);
    };
    return ReadLazyView(swapped, view, offset, target);
  }
  // All that can be wrong was found when it was opened: what is left is whether the bytes can be read.
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override {
    return CheckReadable(*source_, progress, problems);
  }

 private:
  std::shared_ptr<const ByteSource> source_;
  std::vector<std::pair<Backing, LazyView>> views_;
};

class TorchStream final : public TorchStorages {
 public:
  TorchStream(std::shared_ptr<const ByteSource> source, const ContentsOptions& options)
      : source_(source), origin_(std::make_shared<StreamOrigin>(std::move(source))), options_(options) {}

  OpenedContents Open() {
    uint64_t at = 0;
    NEVE_RETURN_IF_ERROR(ReadBeginning(&at));
    absl::StatusOr<ReadPickleResult> object = ReadPickle(*source_, at, source_->size());
    if (!object.ok()) return Annotate(object.status(), "the object");
    graph_ = &object->graph;
    NEVE_RETURN_IF_ERROR(ReadStorages(object->end));
    if (absl::Status status = PickleTree(object->graph, this, &maker_).Build(); !status.ok())
      return Annotate(status, source_->name());
    return maker_.Make(ContentsKind::kTorchLegacy, {source_->name()}, {source_}, origin_);
  }

  absl::StatusOr<Found> Find(PickleNode persistent, uint32_t word) override {
    NEVE_ASSIGN_OR_RETURN(const TorchStorageId id, ReadStorageId(*graph_, persistent));
    const auto at = storages_.find(id.key);
    if (at == storages_.end()) {
      return Damaged(absl::StrFormat("the storage %s is missing from the list behind the object", Quoted(id.key)));
    }
    Storage& storage = at->second;
    if (storage.number == UINT32_MAX) {
      storage.backing.swap = !big_endian_ ? 1 : !id.type.untyped ? WordBytes(id.type.dtype) : std::max(word, 1u);
      if (storage.bytes % storage.backing.swap != 0) storage.backing.swap = 1;
      storage.number = maker_.AddStorage(storage.bytes, storage.backing);
      by_number_[storage.number] = &storage;
    }
    Found found;
    found.storage = storage.number;
    found.dtype = id.type.dtype;
    found.untyped = id.type.untyped;
    found.device = id.location == "cpu" ? "" : id.location;
    if (id.view != 0) {  // (key, offset, count): a part of the storage
      const bool tuple = graph_->kind(id.view) == PickleKind::kTuple && graph_->Items(id.view).size() == 3;
      const PickleNode offset = tuple ? graph_->Items(id.view)[1] : 0;
      if (!tuple || graph_->kind(offset) != PickleKind::kInteger || graph_->Integer(offset) < 0 ||
          static_cast<uint64_t>(graph_->Integer(offset)) > id.count) {
        return Damaged(absl::StrFormat("the view of storage %s is malformed", Quoted(id.key)));
      }
      found.offset = static_cast<uint64_t>(graph_->Integer(offset)) * ItemBytes(id.type.dtype);
    }
    return found;
  }

  absl::StatusOr<uint32_t> Resolve(const Found& found, const TorchTensor& tensor, DType dtype, uint64_t byte_offset) override {
    const uint64_t item = ItemBytes(dtype), have = maker_.storage_bytes(found.storage);
    NEVE_RETURN_IF_ERROR(tensor::Classify(tensor.shape, tensor.strides).status());
    const uint64_t span = tensor::SpanBytes(tensor.shape, tensor.strides, item);
    if (byte_offset > have || span > have - byte_offset) {
      return Damaged(
          absl::StrFormat("it needs bytes [%d, %d) of its storage, which has %d", byte_offset, byte_offset + span, have));
    }
    NEVE_ASSIGN_OR_RETURN(const uint64_t count, tensor::ElementCount(tensor.shape));
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(count, item, &bytes)) return Damaged("its bytes overflow");
    const LazyView view{dtype, tensor.shape, tensor.strides, byte_offset, tensor.conjugated, tensor.negated};
    return maker_.AddStorage(bytes, origin_->AddLazyView(by_number_.at(found.storage)->backing, view));
  }

  absl::Status ReadSmall(const Found& found, uint64_t bytes_max, std::string* bytes) override {
    const Storage& storage = *by_number_.at(found.storage);
    if (storage.bytes > bytes_max) return Damaged("it is larger than makes sense");
    return source_->ReadText(storage.backing.offset, storage.bytes, bytes);
  }

  bool LocatePickle(uint64_t offset, Backing* backing) const override {
    *backing = {0, offset};
    return true;
  }

 private:
  struct Storage {
    Backing backing;
    uint64_t bytes = 0;
    uint32_t number = UINT32_MAX;  // of the maker
  };

  absl::Status ReadBeginning(uint64_t* at) {
    const PickleLimits small{kSmallPickleBytes, kSmallPickleBytes};
    absl::StatusOr<ReadPickleResult> magic = ReadPickle(*source_, *at, source_->size(), small);
    if (!magic.ok()) return Annotate(magic.status(), "the magic number");
    absl::StatusOr<ReadPickleResult> protocol = ReadPickle(*source_, magic->end, source_->size(), small);
    if (!protocol.ok()) return Annotate(protocol.status(), "the protocol number");
    const PickleGraph& number = protocol->graph;
    if (number.kind(number.root()) != PickleKind::kInteger || number.Integer(number.root()) != kProtocol) {
      return Unsupported(absl::StrFormat("%s: a stream of torch whose protocol is not %d", source_->name(), kProtocol));
    }
    absl::StatusOr<ReadPickleResult> facts = ReadPickle(*source_, protocol->end, source_->size(), small);
    if (!facts.ok()) return Annotate(facts.status(), "the facts of the machine");
    const PickleGraph& graph = facts->graph;
    if (graph.kind(graph.root()) == PickleKind::kDict) {
      const std::span<const PickleNode> pairs = graph.Items(graph.root());
      for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
        if (graph.IsText(pairs[i], "little_endian")) big_endian_ = graph.kind(pairs[i + 1]) == PickleKind::kFalse;
      }
    }
    if (big_endian_) maker_.AddNote("its words are big endian, and turned around as they are read");
    *at = facts->end;
    return absl::OkStatus();
  }

  // The list of keys, and where the bytes of each lie.
  absl::Status ReadStorages(uint64_t at) {
    absl::StatusOr<ReadPickleResult> keys = ReadPickle(*source_, at, source_->size());
    if (!keys.ok()) return Annotate(keys.status(), "the list of storages");
    std::unordered_map<std::string, TorchStorageId> declared;
    for (PickleNode node = 0; node < graph_->size(); ++node) {
      if (graph_->kind(node) != PickleKind::kPersistent) continue;
      absl::StatusOr<TorchStorageId> id = ReadStorageId(*graph_, node);
      if (id.ok()) declared.emplace(id->key, *std::move(id));  // others are told where they are met
    }
    const PickleGraph& list = keys->graph;
    if (list.kind(list.root()) != PickleKind::kList) return Damaged(source_->name() + ": the list of storages is no list");
    at = keys->end;
    for (const PickleNode key_node : list.Items(list.root())) {
      if (list.kind(key_node) != PickleKind::kText) return Damaged(source_->name() + ": a key of a storage is no text");
      const std::string key(list.Bytes(key_node));
      const auto id = declared.find(key);
      if (id == declared.end()) {
        return Damaged(absl::StrFormat("%s: no tensor uses storage %s, so its size is not known", source_->name(), Quoted(key)));
      }
      std::string text;
      NEVE_RETURN_IF_ERROR(source_->ReadText(at, kCountBytes, &text));
      uint64_t count = 0;
      for (size_t i = kCountBytes; i-- > 0;) count = count << 8 | static_cast<unsigned char>(text[i]);
      if (big_endian_) count = __builtin_bswap64(count);
      const uint64_t item = ItemBytes(id->second.type.dtype), bytes = id->second.count * item;
      if (count != id->second.count) {
        return Damaged(absl::StrFormat("%s: storage %s at byte %d has %d elements, the object says %d", source_->name(),
                                       Quoted(key), at, count, id->second.count));
      }
      at += kCountBytes;
      if (bytes > source_->size() - at) {
        return Damaged(absl::StrFormat("%s: truncated: storage %s needs %d bytes at byte %d, %d are there", source_->name(),
                                       Quoted(key), bytes, at, source_->size() - at));
      }
      if (!storages_.emplace(key, Storage{{0, at}, bytes}).second) {
        return Damaged(absl::StrFormat("%s: storage %s is listed twice", source_->name(), Quoted(key)));
      }
      at += bytes;
    }
    if (at == source_->size()) return absl::OkStatus();
    const std::string rest =
        absl::StrFormat("trailing data: %d bytes follow the last storage at byte %d", source_->size() - at, at);
    if (!options_.lenient) return Damaged(source_->name() + ": " + rest);
    maker_.AddNote(rest);
    return absl::OkStatus();
  }

  std::shared_ptr<const ByteSource> source_;
  std::shared_ptr<StreamOrigin> origin_;
  const ContentsOptions& options_;
  ImageMaker maker_;
  const PickleGraph* graph_ = nullptr;
  bool big_endian_ = false;
  std::unordered_map<std::string, Storage> storages_;  // by key
  std::unordered_map<uint32_t, const Storage*> by_number_;
};

}  // namespace

absl::Status CheckReadable(const ByteSource& source, const std::function<void(uint64_t)>& progress,
                           std::vector<ContentsProblem>* problems) {
  std::vector<std::byte> block(std::min(kCheckBytes, source.size()));
  for (uint64_t at = 0; at < source.size(); at += kCheckBytes) {
    const std::span<std::byte> part = std::span(block).first(std::min(kCheckBytes, source.size() - at));
    const absl::Status status = source.Read(at, part);
    if (IsDamaged(status)) {
      problems->push_back({true, 0, at, "", std::string(status.message())});
      return absl::OkStatus();
    }
    NEVE_RETURN_IF_ERROR(status);
    if (progress) progress(at + part.size());
  }
  return absl::OkStatus();
}

bool IsTorchStream(std::string_view head) {
  return head.starts_with(kMagicLine) || head.substr(0, kMagicSearchBytes).find(kMagic) != std::string_view::npos;
}

OpenedContents OpenTorchStream(std::shared_ptr<const ByteSource> source, const ContentsOptions& options) {
  return TorchStream(std::move(source), options).Open();
}

}  // namespace neve::format
