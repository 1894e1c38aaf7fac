#include "format/dcp_metadata.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/key_escapes.h"
#include "format/layout.h"
#include "format/pickle_values.h"
#include "format/torch_types.h"

namespace neve::format {
namespace {

constexpr size_t kPathPartsMax = 100;

bool LeavesFolder(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != std::string_view::npos ||
      path.find('\\') != std::string_view::npos) {
    return true;
  }
  for (std::string_view rest = path; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (part == "..") return true;
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  return false;
}

class MetadataReader {
 public:
  explicit MetadataReader(const PickleGraph& graph) : graph_(graph), values_(graph) {}

  absl::StatusOr<std::vector<DcpEntry>> Read() {
    const PickleNode root = graph_.root();
    const PickleNode entries = Field(root, "state_dict_metadata"), places = Field(root, "storage_data");
    if (graph_.kind(entries) != PickleKind::kDict || graph_.kind(places) != PickleKind::kDict) {
      return Damaged("it has no state_dict_metadata or storage_data");
    }
    NEVE_RETURN_IF_ERROR(ReadPlaces(places));
    ReadPaths(Field(root, "planner_data"));
    std::vector<DcpEntry> all;
    const std::span<const PickleNode> pairs = graph_.Items(entries);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (graph_.kind(pairs[i]) != PickleKind::kText) return Damaged("the name of an entry is no text");
      DcpEntry entry;
      entry.name = graph_.Bytes(pairs[i]);
      if (absl::Status status = ReadEntry(pairs[i + 1], &entry); !status.ok())
        return Annotate(status, "entry " + Quoted(entry.name));
      all.push_back(std::move(entry));
    }
    return all;
  }

 private:
  // A field of a dataclass; 0, which is None: it has none of that name.
  PickleNode Field(PickleNode object, std::string_view name) const {
    if (graph_.kind(object) != PickleKind::kCall) return 0;
    const PickleNode state = graph_.Call(object).state;
    if (graph_.kind(state) != PickleKind::kDict) return 0;
    const std::span<const PickleNode> pairs = graph_.Items(state);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (graph_.IsText(pairs[i], name)) return pairs[i + 1];
    }
    return 0;
  }
  std::string_view ClassOf(PickleNode object) const {
    if (graph_.kind(object) != PickleKind::kCall || graph_.kind(graph_.Call(object).callable) != PickleKind::kGlobal) return "";
    return graph_.Global(graph_.Call(object).callable).name;
  }
  bool Number(PickleNode node, uint64_t* value) const {
    if (graph_.kind(node) != PickleKind::kInteger || graph_.Integer(node) < 0) return false;
    *value = static_cast<uint64_t>(graph_.Integer(node));
    return true;
  }
  // A torch.Size, or a tuple or list of numbers.
  bool Dims(PickleNode node, tensor::Dims* dims) const {
    if (graph_.IsCallOf(node, "torch", "Size")) {
      const PickleNode args = graph_.Call(node).args;
      if (graph_.kind(args) != PickleKind::kTuple || graph_.Items(args).size() != 1) return false;
      node = graph_.Items(args)[0];
    }
    if (graph_.kind(node) != PickleKind::kTuple && graph_.kind(node) != PickleKind::kList) return false;
    dims->clear();
    for (const PickleNode item : graph_.Items(node)) {
      if (graph_.kind(item) != PickleKind::kInteger || graph_.Integer(item) < 0 || dims->size() == 64) return false;
      dims->push_back(graph_.Integer(item));
    }
    return true;
  }

  absl::Status ReadPlaces(PickleNode places) {
    const std::span<const PickleNode> pairs = graph_.Items(places);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const PickleNode fqn = Field(pairs[i], "fqn"), offset = Field(pairs[i], "offset"),
                       path = Field(pairs[i + 1], "relative_path");
      std::pair<std::string, tensor::Dims> key;
      DcpPlace place;
      const bool good = graph_.kind(fqn) == PickleKind::kText && graph_.kind(path) == PickleKind::kText &&
                        (offset == 0 || Dims(offset, &key.second)) && Number(Field(pairs[i + 1], "offset"), &place.offset) &&
                        Number(Field(pairs[i + 1], "length"), &place.bytes);
      if (!good)
        return Damaged(absl::StrFormat("place %d of storage_data has other fields than fqn, path, offset and length", i / 2));
      if (graph_.kind(Field(pairs[i + 1], "transform_descriptors")) != PickleKind::kNone) {
        return Unsupported(absl::StrFormat("%s is stored transformed", Quoted(graph_.Bytes(fqn))));
      }
      place.file = graph_.Bytes(path);
      if (LeavesFolder(place.file)) {
        return Damaged(absl::StrFormat("%s is said to lie in %s, which is outside of the folder", Quoted(graph_.Bytes(fqn)),
                                       Quoted(place.file)));
      }
      key.first = graph_.Bytes(fqn);
      places_[std::move(key)] = std::move(place);
    }
    return absl::OkStatus();
  }

  // {name: (part, ..)}; anything else is no way to nest, and names then stay as they are.
  void ReadPaths(PickleNode planner) {
    if (graph_.kind(planner) != PickleKind::kDict) return;
    const std::span<const PickleNode> pairs = graph_.Items(planner);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (graph_.kind(pairs[i]) != PickleKind::kText || graph_.kind(pairs[i + 1]) != PickleKind::kTuple) continue;
      std::vector<DcpPathPart> path;
      bool good = graph_.Items(pairs[i + 1]).size() <= kPathPartsMax;
      for (const PickleNode part : graph_.Items(pairs[i + 1])) {
        if (!good) break;
        if (graph_.kind(part) == PickleKind::kInteger && graph_.Integer(part) >= 0) {
          path.push_back({absl::StrFormat("~i%d", graph_.Integer(part)), graph_.Integer(part)});
        } else if (const auto key = values_.EscapeKey(part)) {
          path.push_back({*key});
        } else {
          good = false;
        }
      }
      if (good && !path.empty()) paths_[std::string(graph_.Bytes(pairs[i]))] = std::move(path);
    }
  }

  absl::Status ReadEntry(PickleNode node, DcpEntry* entry) {
    const auto path = paths_.find(entry->name);
    entry->path = path != paths_.end() ? path->second : std::vector<DcpPathPart>{{EscapeTextKey(entry->name)}};
    const std::string_view type = ClassOf(node);
    if (type == "BytesStorageMetadata") {
      const auto place = places_.find({entry->name, {}});
      if (place == places_.end()) return Damaged("storage_data does not say where it lies");
      entry->place = place->second;
      return absl::OkStatus();
    }
    if (type != "TensorStorageMetadata") return Unsupported(absl::StrFormat("it is of the unknown kind %s", Quoted(type)));
    entry->is_tensor = true;
    NEVE_RETURN_IF_ERROR(ReadProperties(Field(node, "properties"), entry));
    if (!Dims(Field(node, "size"), &entry->shape)) return Damaged("its size is no shape");
    const PickleNode chunks = Field(node, "chunks");
    if (graph_.kind(chunks) != PickleKind::kList) return Damaged("its chunks are no list");
    for (const PickleNode chunk : graph_.Items(chunks)) {
      DcpPiece piece;
      if (!Dims(Field(chunk, "offsets"), &piece.offset) || !Dims(Field(chunk, "sizes"), &piece.sizes) ||
          piece.offset.size() != entry->shape.size() || piece.sizes.size() != entry->shape.size()) {
        return Damaged("a chunk's offsets or sizes do not fit its shape");
      }
      if (std::find(piece.sizes.begin(), piece.sizes.end(), 0) != piece.sizes.end()) continue;  // of a rank without rows
      const auto place = places_.find({entry->name, piece.offset});
      if (place == places_.end()) return Damaged("storage_data does not say where a piece of it lies");
      piece.place = place->second;
      entry->pieces.push_back(std::move(piece));
    }
    return CheckCover(*entry);
  }

  // Its state is (dtype, layout, requires_grad, ..) or, in old files, the fields.
  absl::Status ReadProperties(PickleNode properties, DcpEntry* entry) {
    if (graph_.kind(properties) != PickleKind::kCall) return Damaged("it has no properties");
    const PickleNode state = graph_.Call(properties).state;
    PickleNode dtype = Field(properties, "dtype"), gradient = Field(properties, "requires_grad");
    if (graph_.kind(state) == PickleKind::kTuple && graph_.Items(state).size() >= 3) {
      dtype = graph_.Items(state)[0];
      gradient = graph_.Items(state)[2];
    }
    if (graph_.kind(dtype) != PickleKind::kGlobal || graph_.Global(dtype).module != "torch")
      return Damaged("its dtype is none of torch");
    const std::optional<DType> known = TorchDType(graph_.Global(dtype).name);
    if (!known) return Unsupported(absl::StrFormat("its dtype is %s, which neve has not", graph_.Global(dtype).FullName()));
    entry->dtype = *known;
    entry->gradient = graph_.kind(gradient) == PickleKind::kTrue;
    return absl::OkStatus();
  }

  static std::string Box(const DcpPiece& piece) {
    std::string text = "offset ";
    AppendNumbers(piece.offset, &text);
    text += " sizes ";
    AppendNumbers(piece.sizes, &text);
    return text;
  }

  // Every piece inside, none over another, and together as many elements as the tensor: then there is no hole either.
  static absl::Status CheckCover(const DcpEntry& entry) {
    NEVE_ASSIGN_OR_RETURN(const uint64_t wanted, StatedElementCount(entry.shape));
    uint64_t covered = 0;
    for (const DcpPiece& piece : entry.pieces) {
      for (size_t d = 0; d < entry.shape.size(); ++d) {
        if (piece.offset[d] > entry.shape[d] || piece.sizes[d] > entry.shape[d] - piece.offset[d]) {
          return Damaged(absl::StrFormat("its piece at %s reaches out of its shape", Box(piece)));
        }
      }
      NEVE_ASSIGN_OR_RETURN(const uint64_t elements, StatedElementCount(piece.sizes));
      covered += elements;  // at most as many as the shape has, each: overflow would take 2^20 pieces of 2^44
      if (covered > wanted) break;
    }
    NEVE_RETURN_IF_ERROR(CheckOverlap(entry));
    if (covered != wanted)
      return Damaged(absl::StrFormat("its pieces leave a hole: they hold %d elements of %d", covered, wanted));
    return absl::OkStatus();
  }

  static absl::Status CheckOverlap(const DcpEntry& entry) {
    if (entry.pieces.size() < 2 || entry.shape.empty()) {
      return entry.pieces.size() > 1 ? Damaged("a scalar of several pieces") : absl::OkStatus();
    }
    // Along the dimension that tells most pieces apart, only those that are open at one time are compared.
    size_t axis = 0, most = 0;
    for (size_t d = 0; d < entry.shape.size(); ++d) {
      std::vector<int64_t> begins;
      for (const DcpPiece& piece : entry.pieces) begins.push_back(piece.offset[d]);
      std::sort(begins.begin(), begins.end());
      const size_t count = static_cast<size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
      if (count > most) axis = d, most = count;
    }
    std::vector<const DcpPiece*> order, open;
    for (const DcpPiece& piece : entry.pieces) order.push_back(&piece);
    std::sort(order.begin(), order.end(),
              [&](const DcpPiece* a, const DcpPiece* b) { return a->offset[axis] < b->offset[axis]; });
    uint64_t compared = 0;
    for (const DcpPiece* piece : order) {
      std::erase_if(open, [&](const DcpPiece* other) { return other->offset[axis] + other->sizes[axis] <= piece->offset[axis]; });
      compared += open.size();
      if (compared > (1u << 26)) return Damaged("its pieces are cut in too many ways to be compared");
      for (const DcpPiece* other : open) {
        bool apart = false;
        for (size_t d = 0; d < entry.shape.size() && !apart; ++d) {
          apart =
              piece->offset[d] + piece->sizes[d] <= other->offset[d] || other->offset[d] + other->sizes[d] <= piece->offset[d];
        }
        if (!apart) return Damaged(absl::StrFormat("its pieces overlap: %s and %s", Box(*other), Box(*piece)));
      }
      open.push_back(piece);
    }
    return absl::OkStatus();
  }

  const PickleGraph& graph_;
  PickleValues values_;
  std::map<std::pair<std::string, tensor::Dims>, DcpPlace> places_;  // by name and offset
  std::map<std::string, std::vector<DcpPathPart>> paths_;
};

}  // namespace

absl::StatusOr<std::vector<DcpEntry>> ReadDcpMetadata(const PickleGraph& graph) { return MetadataReader(graph).Read(); }

}  // namespace neve::format
