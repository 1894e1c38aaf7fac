// Torch's files of before 0.1.10: a tar archive of
//
//   sys_info   facts of the machine, pickled
//   pickle     the object, in which whole tensors and storages are persistent ids: numbers written as text
//   tensors    a count; for each (number, number of its storage, type), pickled, then rank (4 bytes, and 4 of no meaning),
//              extents, strides and offset as words of 8 bytes
//   storages   a count; for each (number, location, type), pickled, then its count of elements in 8 bytes and its bytes; at the
//              end a list of (number, root, offset, count) of storages that are parts of others, pickled
//
// Tensors and storages are numbered together. Only headers have checksums; sums of 8 bits each.
#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/pickle_machine.h"
#include "format/pickle_tree.h"
#include "format/readers.h"

namespace neve::format {
namespace {

constexpr uint64_t kBlockBytes = 512, kMembersMax = 1024, kExtendedBytesMax = 64u << 10;
constexpr uint64_t kEntryPickleBytes = 4096;   // of a tensor or a storage: a number, a place and a type
constexpr uint64_t kWordBytes = 8, kSmallPickleBytes = 64u << 10;
constexpr int32_t kRankMax = 64;

// A number of a header: octal text, or big endian behind a byte of 0x80.
std::optional<uint64_t> HeaderNumber(std::string_view field) {
  if (!field.empty() && static_cast<unsigned char>(field[0]) == 0x80) {
    uint64_t value = 0;
    for (const char c : field.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  const size_t first = field.find_first_not_of(' ');
  if (first == std::string_view::npos) return std::nullopt;
  field = field.substr(first, field.find_first_of(std::string_view(" \0", 2), first) - first);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value, 8);
  if (error != std::errc() || end != field.data() + field.size()) return std::nullopt;
  return value;
}

bool ChecksumHolds(std::string_view block) {
  constexpr size_t kAt = 148, kBytes = 8;
  const std::optional<uint64_t> wanted = HeaderNumber(block.substr(kAt, kBytes));
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlockBytes; ++i) sum += i >= kAt && i < kAt + kBytes ? ' ' : static_cast<unsigned char>(block[i]);
  return wanted == sum;
}

std::string_view TextOf(std::string_view field) { return field.substr(0, field.find('\0')); }

struct Member {
  uint64_t begin = 0, end = 0;
};

// The files of a tar archive, by name. Damaged: a header that is none, a name twice, more members than torch ever wrote.
class TarDirectory {
 public:
  static absl::StatusOr<std::map<std::string, Member>> Read(const ByteSource& source) { return TarDirectory(source).Run(); }

 private:
  explicit TarDirectory(const ByteSource& source) : source_(source) {}

  absl::StatusOr<std::map<std::string, Member>> Run() {
    uint64_t headers = 0;
    for (uint64_t at = 0; source_.size() - at >= kBlockBytes;) {
      std::string block;
      NEVE_RETURN_IF_ERROR(source_.ReadText(at, kBlockBytes, &block));
      if (block.find_first_not_of('\0') == std::string::npos) return std::move(members_);   // the end
      if (++headers > kMembersMax) return Wrong(at, absl::StrFormat("more than %d members", kMembersMax));
      if (!ChecksumHolds(block)) return Wrong(at, "the checksum of a header does not hold");
      std::optional<uint64_t> bytes = HeaderNumber(std::string_view(block).substr(124, 12));
      if (next_bytes_) bytes = std::exchange(next_bytes_, std::nullopt);
      if (!bytes) return Wrong(at, "the size of a member is no number");
      const uint64_t begin = at + kBlockBytes;
      if (*bytes > source_.size() - begin) {
        return Wrong(at, absl::StrFormat("truncated: a member of %d bytes, %d are there", *bytes, source_.size() - begin));
      }
      const char type = block[156];
      if (type == 'x' || type == 'g') {
        NEVE_RETURN_IF_ERROR(ReadExtended(at, begin, *bytes));
      } else if (type == '0' || type == '\0') {
        if (!members_.emplace(TextOf(std::string_view(block).substr(0, 100)), Member{begin, begin + *bytes}).second) {
          return Wrong(at, absl::StrFormat("%s is there twice", Quoted(TextOf(std::string_view(block).substr(0, 100)))));
        }
      }   // folders and links have no bytes
      at = begin + (*bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
      if (at > source_.size()) return Wrong(begin, "truncated within the last member's padding");
    }
    return Wrong(source_.size(), "truncated: it has no end");
  }

  // Records "<length> key=value\n", of which a size too large for the header matters here.
  absl::Status ReadExtended(uint64_t at, uint64_t begin, uint64_t bytes) {
    if (bytes > kExtendedBytesMax) return Wrong(at, "an extended header of too many bytes");
    std::string text;
    NEVE_RETURN_IF_ERROR(source_.ReadText(begin, bytes, &text));
    for (std::string_view rest = text; !rest.empty();) {
      uint64_t length = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
      const auto digits = static_cast<size_t>(end - rest.data());
      if (error != std::errc() || length <= digits + 1 || length > rest.size() || rest[digits] != ' ' || rest[length - 1] != '\n') {
        return Wrong(at, "an extended header is malformed");
      }
      const std::string_view record = rest.substr(digits + 1, length - digits - 2);
      rest.remove_prefix(length);
      if (!record.starts_with("size=")) continue;
      uint64_t size = 0;
      const auto [stop, wrong] = std::from_chars(record.data() + 5, record.data() + record.size(), size);
      if (wrong != std::errc() || stop != record.data() + record.size()) return Wrong(at, "the size of a member is no number");
      next_bytes_ = size;
    }
    return absl::OkStatus();
  }

  absl::Status Wrong(uint64_t at, const std::string& what) const {
    return Damaged(absl::StrFormat("%s: the tar archive is malformed at byte %d: %s", source_.name(), at, what));
  }

  const ByteSource& source_;
  std::map<std::string, Member> members_;
  std::optional<uint64_t> next_bytes_;
};

class TarOrigin final : public Origin {
 public:
  explicit TarOrigin(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override {
    return CheckReadable(*source_, progress, problems);
  }

 private:
  std::shared_ptr<const ByteSource> source_;
};

class TorchTar final : public TorchStorages {
 public:
  explicit TorchTar(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}

  OpenedContents Open() {
    absl::StatusOr<std::map<std::string, Member>> members = TarDirectory::Read(*source_);
    if (!members.ok()) return members.status();
    for (const char* name : {"pickle", "tensors", "storages"}) {
      if (members->contains(name)) continue;
      return Unsupported(absl::StrFormat("%s is a tar archive, but has no file named %s, as torch's have", source_->name(), name));
    }
    if (members->contains("sys_info")) NEVE_RETURN_IF_ERROR(ReadFacts(members->at("sys_info")));
    if (absl::Status status = ReadStorages(members->at("storages")); !status.ok()) return Annotate(status, "the storages");
    if (absl::Status status = ReadTensors(members->at("tensors")); !status.ok()) return Annotate(status, "the tensors");
    const Member& object = members->at("pickle");
    absl::StatusOr<ReadPickleResult> pickle = ReadPickle(*source_, object.begin, object.end);
    if (!pickle.ok()) return Annotate(pickle.status(), "the object");
    graph_ = &pickle->graph;
    if (absl::Status status = PickleTree(pickle->graph, this, &maker_).Build(); !status.ok()) {
      return Annotate(status, source_->name());
    }
    return maker_.Make(ContentsKind::kTorchTar, {source_->name()}, {source_}, std::make_shared<TarOrigin>(source_));
  }

  absl::StatusOr<std::optional<Named>> FindTensor(PickleNode persistent) override {
    NEVE_ASSIGN_OR_RETURN(const int64_t number, NumberOf(persistent));
    const auto found = tensors_.find(number);
    if (found == tensors_.end()) return std::nullopt;
    Named named;
    named.node = first_.try_emplace(number, persistent).first->second;
    named.tensor.storage = persistent;
    named.tensor.offset = found->second.offset;
    named.tensor.shape = found->second.shape;
    named.tensor.strides = found->second.strides;
    return named;
  }

  absl::StatusOr<Found> Find(PickleNode persistent, uint32_t) override {
    NEVE_ASSIGN_OR_RETURN(const View view, ViewOf(persistent));
    Storage& storage = storages_[view.storage];
    if (storage.number == UINT32_MAX) {
      if (big_endian_ && storage.bytes % WordBytes(storage.type.dtype) == 0) storage.backing.swap = WordBytes(storage.type.dtype);
      storage.number = maker_.AddStorage(storage.bytes, storage.backing);
    }
    Found found;
    found.storage = storage.number;
    found.dtype = storage.type.dtype;
    found.offset = view.offset;
    found.device = storage.location == "cpu" ? "" : storage.location;
    return found;
  }

  absl::StatusOr<TorchStorageId> IdOf(const PickleGraph&, PickleNode persistent) override {
    NEVE_ASSIGN_OR_RETURN(const View view, ViewOf(persistent));
    const Storage& storage = storages_[view.storage];
    return TorchStorageId{storage.type, storage.type_name, "", storage.location, view.count, 0};
  }

  absl::StatusOr<uint32_t> Resolve(const Found&, const TorchTensor&, DType, uint64_t) override {
    return Unsupported("a lazily conjugated or negated tensor, in a file of an age that had none");
  }

  absl::Status ReadSmall(const Found& found, uint64_t bytes_max, std::string* bytes) override {
    const auto at = std::find_if(storages_.begin(), storages_.end(), [&](const Storage& each) { return each.number == found.storage; });
    if (at == storages_.end() || at->bytes > bytes_max) return Damaged("it is larger than makes sense");
    return source_->ReadText(at->backing.offset, at->bytes, bytes);
  }

  bool LocatePickle(uint64_t offset, Backing* backing) const override {
    *backing = {0, offset};
    return true;
  }

 private:
  struct Storage {
    Backing backing;
    uint64_t bytes = 0;
    TorchStorageType type;
    std::string type_name, location;
    uint32_t number = UINT32_MAX;   // of the maker
  };
  struct View {                     // a storage, or a part of one
    size_t storage = 0;             // in storages_
    uint64_t offset = 0, count = 0; // bytes; elements
  };
  struct Tensor {
    View view;
    tensor::Dims shape, strides;
    uint64_t offset = 0;
  };

  absl::Status ReadFacts(const Member& member) {
    absl::StatusOr<ReadPickleResult> facts =
        ReadPickle(*source_, member.begin, std::min(member.end, member.begin + kSmallPickleBytes), {kSmallPickleBytes, kSmallPickleBytes});
    if (!facts.ok()) return Annotate(facts.status(), "the facts of the machine");
    const PickleGraph& graph = facts->graph;
    if (graph.kind(graph.root()) != PickleKind::kDict) return absl::OkStatus();
    const std::span<const PickleNode> pairs = graph.Items(graph.root());
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (graph.IsText(pairs[i], "little_endian")) big_endian_ = graph.kind(pairs[i + 1]) == PickleKind::kFalse;
    }
    if (big_endian_) maker_.AddNote("its words are big endian, and turned around as they are read");
    return absl::OkStatus();
  }

  // One of the pickles between the data; `at` moves behind it.
  absl::StatusOr<ReadPickleResult> Next(const Member& member, uint64_t* at) const {
    const PickleLimits limits{kEntryPickleBytes, kEntryPickleBytes};
    absl::StatusOr<ReadPickleResult> pickle = ReadPickle(*source_, *at, std::min(member.end, *at + kEntryPickleBytes), limits);
    if (pickle.ok()) *at = pickle->end;
    return pickle;
  }

  // `count` words of 8 bytes, or halves of one.
  absl::Status Words(const Member& member, uint64_t* at, size_t count, std::vector<int64_t>* words) const {
    std::string text;
    if (count * kWordBytes > member.end - *at) return Damaged(absl::StrFormat("%s: truncated at byte %d", source_->name(), *at));
    NEVE_RETURN_IF_ERROR(source_->ReadText(*at, count * kWordBytes, &text));
    *at += text.size();
    words->assign(count, 0);
    for (size_t i = 0; i < text.size(); ++i) {
      const size_t place = big_endian_ ? kWordBytes - 1 - i % kWordBytes : i % kWordBytes;
      (*words)[i / kWordBytes] |= static_cast<int64_t>(uint64_t{static_cast<unsigned char>(text[i])} << (8 * place));
    }
    return absl::OkStatus();
  }

  // How many there are; each takes a pickle and a word at least.
  absl::StatusOr<uint64_t> Count(const Member& member, uint64_t* at) const {
    NEVE_ASSIGN_OR_RETURN(const ReadPickleResult pickle, Next(member, at));
    const PickleGraph& graph = pickle.graph;
    const bool number = graph.kind(graph.root()) == PickleKind::kInteger && graph.Integer(graph.root()) >= 0;
    if (!number || static_cast<uint64_t>(graph.Integer(graph.root())) > (member.end - *at) / kWordBytes) {
      return Damaged(absl::StrFormat("%s: the count before byte %d is none, or too great", source_->name(), *at));
    }
    return static_cast<uint64_t>(graph.Integer(graph.root()));
  }

  // The members of a tuple of a number and two more.
  absl::StatusOr<std::span<const PickleNode>> Three(const PickleGraph& graph, uint64_t at) const {
    const PickleNode root = graph.root();
    if (graph.kind(root) != PickleKind::kTuple || graph.Items(root).size() != 3 ||
        graph.kind(graph.Items(root)[0]) != PickleKind::kInteger) {
      return Damaged(absl::StrFormat("%s: the entry before byte %d is no number with a place and a type", source_->name(), at));
    }
    return graph.Items(root);
  }

  absl::Status ReadStorages(const Member& member) {
    uint64_t at = member.begin;
    NEVE_ASSIGN_OR_RETURN(const uint64_t count, Count(member, &at));
    for (uint64_t i = 0; i < count; ++i) {
      NEVE_ASSIGN_OR_RETURN(const ReadPickleResult pickle, Next(member, &at));
      const PickleGraph& graph = pickle.graph;
      NEVE_ASSIGN_OR_RETURN(const std::span<const PickleNode> entry, Three(graph, at));
      if (graph.kind(entry[1]) != PickleKind::kText || graph.kind(entry[2]) != PickleKind::kGlobal) {
        return Damaged(absl::StrFormat("%s: the storage before byte %d has no place or no type", source_->name(), at));
      }
      const PickleGlobal type = graph.Global(entry[2]);
      const std::optional<TorchStorageType> known = TorchStorage(type.module, type.name);
      if (!known || known->untyped) return Unsupported(absl::StrFormat("a storage of the type %s", type.FullName()));
      std::vector<int64_t> elements;
      NEVE_RETURN_IF_ERROR(Words(member, &at, 1, &elements));
      const uint64_t item = ItemBytes(known->dtype);
      if (elements[0] < 0 || static_cast<uint64_t>(elements[0]) > (member.end - at) / item) {
        return Damaged(absl::StrFormat("%s: truncated: a storage of %d elements at byte %d, %d bytes are there", source_->name(),
                                       elements[0], at, member.end - at));
      }
      Storage storage{{0, at}, static_cast<uint64_t>(elements[0]) * item, *known, type.FullName(), std::string(graph.Bytes(entry[1]))};
      NEVE_RETURN_IF_ERROR(AddView(graph.Integer(entry[0]), {storages_.size(), 0, static_cast<uint64_t>(elements[0])}));
      at += storage.bytes;
      storages_.push_back(std::move(storage));
    }
    absl::StatusOr<ReadPickleResult> views = ReadPickle(*source_, at, member.end);
    if (!views.ok()) return Annotate(views.status(), "the list of their parts");
    return ReadViews(views->graph, at);
  }

  // [(number, root, offset, count), ..]
  absl::Status ReadViews(const PickleGraph& graph, uint64_t at) {
    const auto wrong = [&](const char* what) {
      return Damaged(absl::StrFormat("%s: in the list of parts at byte %d %s", source_->name(), at, what));
    };
    if (graph.kind(graph.root()) != PickleKind::kList) return wrong("is no list");
    for (const PickleNode node : graph.Items(graph.root())) {
      if (graph.kind(node) != PickleKind::kTuple || graph.Items(node).size() != 4) return wrong("one has not four numbers");
      int64_t numbers[4];
      for (size_t i = 0; i < 4; ++i) {
        if (graph.kind(graph.Items(node)[i]) != PickleKind::kInteger) return wrong("one has not four numbers");
        numbers[i] = graph.Integer(graph.Items(node)[i]);
      }
      const auto root = views_.find(numbers[1]);
      if (root == views_.end()) return wrong("one is of a storage that is not there");
      const uint64_t have = root->second.count, item = ItemBytes(storages_[root->second.storage].type.dtype);
      if (numbers[2] < 0 || numbers[3] < 0 || static_cast<uint64_t>(numbers[2]) > have ||
          static_cast<uint64_t>(numbers[3]) > have - static_cast<uint64_t>(numbers[2])) {
        return wrong("one reaches out of its storage");
      }
      const View view{root->second.storage, root->second.offset + static_cast<uint64_t>(numbers[2]) * item,
                      static_cast<uint64_t>(numbers[3])};
      NEVE_RETURN_IF_ERROR(AddView(numbers[0], view));
    }
    return absl::OkStatus();
  }

  absl::Status AddView(int64_t number, const View& view) {
    if (views_.emplace(number, view).second) return absl::OkStatus();
    return Damaged(absl::StrFormat("%s: the storage %d is there twice", source_->name(), number));
  }

  absl::Status ReadTensors(const Member& member) {
    uint64_t at = member.begin;
    NEVE_ASSIGN_OR_RETURN(const uint64_t count, Count(member, &at));
    for (uint64_t i = 0; i < count; ++i) {
      NEVE_ASSIGN_OR_RETURN(const ReadPickleResult pickle, Next(member, &at));
      const PickleGraph& graph = pickle.graph;
      NEVE_ASSIGN_OR_RETURN(const std::span<const PickleNode> entry, Three(graph, at));
      const auto view = graph.kind(entry[1]) == PickleKind::kInteger ? views_.find(graph.Integer(entry[1])) : views_.end();
      if (view == views_.end()) {
        return Damaged(absl::StrFormat("%s: the tensor before byte %d is of a storage that is not there", source_->name(), at));
      }
      Tensor tensor{.view = view->second};
      NEVE_RETURN_IF_ERROR(ReadGeometry(member, &at, &tensor));
      const int64_t number = graph.Integer(entry[0]);
      if (views_.contains(number) || !tensors_.emplace(number, std::move(tensor)).second) {
        return Damaged(absl::StrFormat("%s: the number %d stands for two things", source_->name(), number));
      }
    }
    if (at == member.end) return absl::OkStatus();
    return Damaged(absl::StrFormat("%s: %d bytes follow the last tensor at byte %d", source_->name(), member.end - at, at));
  }

  absl::Status ReadGeometry(const Member& member, uint64_t* at, Tensor* tensor) const {
    std::vector<int64_t> words;
    NEVE_RETURN_IF_ERROR(Words(member, at, 1, &words));
    const auto rank = static_cast<int32_t>(static_cast<uint32_t>(big_endian_ ? words[0] >> 32 : words[0]));
    if (rank < 0 || rank > kRankMax) return Damaged(absl::StrFormat("%s: a tensor of %d dimensions", source_->name(), rank));
    const auto dims = static_cast<size_t>(rank);
    NEVE_RETURN_IF_ERROR(Words(member, at, 2 * dims + 1, &words));
    if (std::any_of(words.begin(), words.end(), [](int64_t word) { return word < 0; })) {
      return Damaged(absl::StrFormat("%s: an extent, a stride or an offset before byte %d is negative", source_->name(), *at));
    }
    tensor->shape.assign(words.begin(), words.begin() + rank);
    tensor->strides.assign(words.begin() + rank, words.begin() + 2 * rank);
    tensor->offset = static_cast<uint64_t>(words.back());
    // There were no scalars then: without dimensions, a tensor was empty. Torch reads what has an element as a scalar.
    if (rank == 0 && tensor->offset >= tensor->view.count) tensor->shape = {0}, tensor->strides = {1}, tensor->offset = 0;
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> NumberOf(PickleNode persistent) const {
    const PickleNode id = graph_->PersistentId(persistent);
    int64_t number = 0;
    if (graph_->kind(id) == PickleKind::kInteger) return graph_->Integer(id);
    const std::string_view text = graph_->kind(id) == PickleKind::kText ? graph_->Bytes(id) : std::string_view();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) return Damaged("a persistent id that is no number");
    return number;
  }

  absl::StatusOr<View> ViewOf(PickleNode persistent) const {
    NEVE_ASSIGN_OR_RETURN(const int64_t number, NumberOf(persistent));
    if (const auto tensor = tensors_.find(number); tensor != tensors_.end()) return tensor->second.view;
    if (const auto view = views_.find(number); view != views_.end()) return view->second;
    return Damaged(absl::StrFormat("there is neither a tensor nor a storage %d", number));
  }

  std::shared_ptr<const ByteSource> source_;
  ImageMaker maker_;
  const PickleGraph* graph_ = nullptr;
  bool big_endian_ = false;
  std::vector<Storage> storages_;
  std::unordered_map<int64_t, View> views_;          // storages by number, parts of them too
  std::unordered_map<int64_t, Tensor> tensors_;      // by number
  std::unordered_map<int64_t, PickleNode> first_;    // the first node that names a tensor
};

}  // namespace

bool IsTar(std::string_view head) {
  return head.size() >= kBlockBytes && head.substr(257, 5) == "ustar" && ChecksumHolds(head.substr(0, kBlockBytes));
}

OpenedContents OpenTorchTar(std::shared_ptr<const ByteSource> source, const ContentsOptions&) {
  return TorchTar(std::move(source)).Open();
}

}  // namespace neve::format
