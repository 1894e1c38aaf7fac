// torch.distributed.checkpoint folders: `.metadata` names the pieces, each of which is a small torch archive somewhere in a
// .distcp file. A tensor of an image is assembled from its pieces as it is read; a piece is opened when it is first needed.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/sync/mutex.h"
#include "format/dcp_metadata.h"
#include "format/json_text.h"
#include "format/key_escapes.h"
#include "format/layout.h"
#include "format/pickle_machine.h"
#include "format/pickle_values.h"
#include "format/read_box.h"
#include "format/readers.h"
#include "format/summed_source.h"
#include "format/virtual_image.h"

namespace neve::format {
namespace {

constexpr uint64_t kMetadataBytesMax = 512u << 20, kBytesEntryMax = 64u << 20, kValueBytesMax = 4096;
constexpr std::string_view kMetadataName = ".metadata";

// A part of a file, as a source of its own.
class SliceSource final : public ByteSource {
 public:
  SliceSource(std::shared_ptr<const ByteSource> whole, uint64_t offset, uint64_t size)
      : whole_(std::move(whole)),
        offset_(offset),
        size_(size),
        name_(absl::StrFormat("%s (from byte %d)", whole_->name(), offset)) {}
  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  absl::Status Read(uint64_t offset, std::span<std::byte> target) const override {
    if (offset > size_ || target.size() > size_ - offset) {
      return Damaged(absl::StrFormat("%s: %d bytes wanted at byte %d of %d", name_, target.size(), offset, size_));
    }
    return whole_->Read(offset_ + offset, target);
  }

 private:
  std::shared_ptr<const ByteSource> whole_;
  uint64_t offset_, size_;
  std::string name_;
};

// Where the elements of a piece come from: row-major from a byte of its file on, or wherever its archive says, strided (a
// transposed or channels-last tensor keeps its strides), inflated, or of another byte order. Checksums are compared by both.
struct OpenedPiece {
  std::unique_ptr<const SummedSource> source;
  uint64_t data_offset = 0;
  std::unique_ptr<const Contents> archive;   // null: `source`

  absl::Status CheckRead() const { return archive != nullptr ? archive->CheckRead() : source->CheckRead(); }
};

class DcpOrigin final : public Origin {
 public:
  struct Tensor {
    DcpEntry entry;
    std::vector<uint32_t> files;                               // of each piece
    mutable std::vector<std::unique_ptr<OpenedPiece>> opened;  // each piece; null: not read yet
  };
  Sources sources;  // of the files of the image
  std::vector<Tensor> tensors;

  absl::Status ReadMade(uint64_t number, uint64_t offset, std::span<std::byte> target) const override {
    const Tensor& tensor = tensors[number];
    for (size_t p = 0; p < tensor.entry.pieces.size(); ++p) {
      if (absl::Status status = ReadPiece(tensor, p, offset, target); !status.ok()) {
        return Annotate(status, "tensor " + Quoted(tensor.entry.name));
      }
    }
    return absl::OkStatus();
  }

  // Each piece's own archive has checksums.
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>* problems) const override {
    uint64_t done = 0;
    for (const Tensor& tensor : tensors) {
      for (size_t p = 0; p < tensor.entry.pieces.size(); ++p) {
        const DcpPlace& place = tensor.entry.pieces[p].place;
        const auto report = [&](bool structural, uint64_t at, std::string message) {
          problems->push_back({structural, tensor.files[p], place.offset + at, tensor.entry.name, std::move(message)});
        };
        OpenedContents piece = OpenArchive(tensor, p);
        if (!piece.ok()) {
          if (!IsDamaged(piece.status()) && !absl::IsDataLoss(piece.status())) return piece.status();
          report(IsDamaged(piece.status()), 0, std::string(piece.status().message()));
          continue;
        }
        std::vector<ContentsProblem> inner;
        NEVE_RETURN_IF_ERROR((*piece)->Check(
            [&](uint64_t n) {
              if (progress) progress(done + n);
            },
            &inner));
        for (ContentsProblem& problem : inner) report(problem.structural, problem.offset, std::move(problem.message));
        if (absl::Status status = CheckPiece(tensor, p, **piece); !status.ok()) report(true, 0, std::string(status.message()));
        done += place.bytes;
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckRead() const override {
    for (const Tensor& tensor : tensors) {
      for (size_t p = 0; p < tensor.opened.size(); ++p) {
        const OpenedPiece* piece = nullptr;
        {
          sync::MutexLock lock(mutex_);
          piece = tensor.opened[p].get();
        }
        if (piece != nullptr) NEVE_RETURN_IF_ERROR(piece->CheckRead());
      }
    }
    return absl::OkStatus();
  }

 private:
  // `entries`: of the archive that the piece is.
  OpenedContents OpenArchive(const Tensor& tensor, size_t p, std::vector<ZipEntry>* entries = nullptr) const {
    const DcpPlace& place = tensor.entry.pieces[p].place;
    auto slice = std::make_shared<SliceSource>(sources[tensor.files[p]], place.offset, place.bytes);
    NEVE_ASSIGN_OR_RETURN(ZipDirectory directory, ZipDirectory::Read(*slice));
    if (!IsTorchZip(directory)) return Damaged(slice->name() + ": a piece that is no archive of torch");
    directory.ForgetAbsentChecksums();
    if (entries != nullptr) entries->assign(directory.entries().begin(), directory.entries().end());
    return OpenTorchZip(std::move(slice), std::move(directory), {}, {});
  }

  // A piece has to be what the metadata says.
  static absl::Status CheckPiece(const Tensor& tensor, size_t p, const Contents& piece) {
    const DcpPiece& wanted = tensor.entry.pieces[p];
    if (piece.tensors().size() != 1)
      return Damaged(absl::StrFormat("%s: a piece holds %d tensors", piece.files()[0], piece.tensors().size()));
    const LogicalTensor& found = piece.tensors()[0];
    if (found.dtype == tensor.entry.dtype && found.shape == wanted.sizes) return absl::OkStatus();
    std::string shapes;
    AppendNumbers(found.shape, &shapes);
    shapes += " where the metadata says ";
    AppendNumbers(wanted.sizes, &shapes);
    return Damaged(absl::StrFormat("%s: a piece is %s %s", piece.files()[0], Name(found.dtype), shapes));
  }

  absl::StatusOr<std::unique_ptr<OpenedPiece>> OpenPiece(const Tensor& tensor, size_t p) const {
    std::vector<ZipEntry> entries;
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<const Contents> archive, OpenArchive(tensor, p, &entries));
    NEVE_RETURN_IF_ERROR(CheckPiece(tensor, p, *archive));
    const LogicalTensor& found = archive->tensors()[0];
    const uint64_t begin = tensor.entry.pieces[p].place.offset;
    const absl::StatusOr<tensor::Density> density = tensor::Classify(found.shape, found.strides);
    NEVE_ASSIGN_OR_RETURN(const uint64_t count, StatedElementCount(found.shape));
    const uint64_t bytes = count * ItemBytes(found.dtype);
    const HeaderTensor& stored = archive->header().tensors[found.stored_index];
    const std::vector<Extent> extents = archive->Locate(stored.offset + (found.alias ? found.byte_offset : 0), bytes);
    auto opened = std::make_unique<OpenedPiece>();
    if (!density.ok() || *density != tensor::Density::kContiguous || extents.size() != 1) {
      opened->archive = std::move(archive);
      return opened;
    }
    const uint64_t first = extents[0].file_offset;
    opened->data_offset = begin + first;
    std::vector<SummedRange> ranges;
    for (const ZipEntry& entry : entries) {
      if (!entry.has_crc || first < entry.data_offset || first + bytes > entry.data_offset + entry.bytes) continue;
      ranges.push_back({begin + entry.data_offset, entry.bytes, entry.crc, begin + first, bytes, tensor.entry.name});
    }
    opened->source = std::make_unique<SummedSource>(sources[tensor.files[p]], std::move(ranges));
    return opened;
  }

  absl::StatusOr<const OpenedPiece*> PieceOf(const Tensor& tensor, size_t p) const {
    {
      sync::MutexLock lock(mutex_);
      if (tensor.opened[p] != nullptr) return tensor.opened[p].get();
    }
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<OpenedPiece> piece, OpenPiece(tensor, p));
    sync::MutexLock lock(mutex_);
    if (tensor.opened[p] == nullptr) tensor.opened[p] = std::move(piece);   // else another thread was quicker
    return tensor.opened[p].get();
  }

  // Bytes [offset, offset + target.size()) of a piece's elements, row-major.
  static absl::Status ReadRows(const OpenedPiece& piece, uint64_t offset, std::span<std::byte> target) {
    if (piece.archive == nullptr) return piece.source->Read(piece.data_offset + offset, target);
    const LogicalTensor& tensor = piece.archive->tensors()[0];
    const uint64_t item = ItemBytes(tensor.dtype), first = offset / item, end = (offset + target.size() + item - 1) / item;
    if (offset % item == 0 && target.size() % item == 0) {
      return ReadElements(*piece.archive, tensor, first, end - first, target);
    }
    std::vector<std::byte> elements((end - first) * item);   // cut within elements
    NEVE_RETURN_IF_ERROR(ReadElements(*piece.archive, tensor, first, end - first, elements));
    std::copy_n(elements.begin() + static_cast<ptrdiff_t>(offset - first * item), target.size(), target.begin());
    return absl::OkStatus();
  }

  // Copies what a piece holds of the row-major bytes [offset, offset + target.size()) of the tensor. A piece is rows, each a
  // run of the tensor's bytes; those within a range follow each other in the piece, and are read at once.
  absl::Status ReadPiece(const Tensor& tensor, size_t p, uint64_t offset, std::span<std::byte> target) const {
    const tensor::Dims& shape = tensor.entry.shape;
    const DcpPiece& piece = tensor.entry.pieces[p];
    const uint64_t item = ItemBytes(tensor.entry.dtype);
    size_t outer = shape.size();  // dimensions before the run
    uint64_t run = item;
    while (outer > 0) {
      --outer;
      run *= static_cast<uint64_t>(piece.sizes[outer]);
      if (piece.sizes[outer] != shape[outer]) break;
    }
    std::vector<uint64_t> strides(shape.size());  // bytes in the tensor
    uint64_t step = item;
    for (size_t d = shape.size(); d-- > 0;) {
      strides[d] = step;
      step *= static_cast<uint64_t>(shape[d]);
    }
    uint64_t rows = 1;
    for (size_t d = 0; d < outer; ++d) rows *= static_cast<uint64_t>(piece.sizes[d]);
    const auto begin_of = [&](uint64_t row) {
      uint64_t at = 0;
      for (size_t d = outer; d < shape.size(); ++d) at += static_cast<uint64_t>(piece.offset[d]) * strides[d];
      for (size_t d = outer; d-- > 0;) {
        const auto extent = static_cast<uint64_t>(piece.sizes[d]);
        at += (static_cast<uint64_t>(piece.offset[d]) + row % extent) * strides[d];
        row /= extent;
      }
      return at;
    };
    // Rows ascend in the tensor: the first that ends behind the beginning, the first that begins at or behind the end.
    const uint64_t end = offset + target.size();
    const auto first_with = [&](auto&& reached) {
      uint64_t low = 0, high = rows;
      while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (reached(middle))
          high = middle;
        else
          low = middle + 1;
      }
      return low;
    };
    const uint64_t first = first_with([&](uint64_t row) { return begin_of(row) + run > offset; });
    const uint64_t last = first_with([&](uint64_t row) { return begin_of(row) >= end; });
    if (first >= last) return absl::OkStatus();
    NEVE_ASSIGN_OR_RETURN(const OpenedPiece* const opened, PieceOf(tensor, p));
    std::vector<std::byte> rows_read;
    const uint64_t together = std::max<uint64_t>(1, (8u << 20) / std::max<uint64_t>(run, 1));
    for (uint64_t row = first; row < last; row += together) {
      const uint64_t count = std::min(together, last - row);
      const uint64_t skip = std::max(offset, begin_of(row)) - begin_of(row);
      const uint64_t stop = std::min(end, begin_of(row + count - 1) + run) - begin_of(row + count - 1);
      if (count == 1) {  // straight into place
        NEVE_RETURN_IF_ERROR(ReadRows(*opened, row * run + skip, target.subspan(begin_of(row) + skip - offset, stop - skip)));
        continue;
      }
      rows_read.resize(count * run);
      NEVE_RETURN_IF_ERROR(ReadRows(*opened, row * run, rows_read));
      for (uint64_t r = 0; r < count; ++r) {
        const uint64_t at = begin_of(row + r), from = std::max(at, offset), to = std::min(at + run, end);
        std::copy_n(rows_read.begin() + static_cast<ptrdiff_t>(r * run + from - at), to - from,
                    target.begin() + static_cast<ptrdiff_t>(from - offset));
      }
    }
    return absl::OkStatus();
  }

  mutable sync::Mutex mutex_;  // of what is opened
};

class DcpFolder {
 public:
  explicit DcpFolder(std::string folder) : folder_(std::move(folder)) {}

  OpenedContents Open() {
    const std::string path = os::JoinPath(folder_, kMetadataName);
    NEVE_ASSIGN_OR_RETURN(std::shared_ptr<const ByteSource> source, OpenFileSource(path));
    absl::StatusOr<ReadPickleResult> pickle = ReadPickle(*source, 0, source->size(), {.pickle_bytes_max = kMetadataBytesMax});
    if (!pickle.ok()) return pickle.status();
    absl::StatusOr<std::vector<DcpEntry>> entries = ReadDcpMetadata(pickle->graph);
    if (!entries.ok()) return Annotate(entries.status(), path);
    files_.push_back(path);
    origin_->sources.push_back(std::move(source));
    Branch root;
    for (DcpEntry& entry : *entries) {
      NEVE_RETURN_IF_ERROR(CheckPlaces(entry));
      if (!Insert(&entry, &root)) {  // two at one place: no nesting then
        root = Branch();
        for (DcpEntry& flat : *entries) {
          flat.path = {{EscapeTextKey(flat.name)}};
          Insert(&flat, &root);
        }
        break;
      }
    }
    std::string tree;
    NEVE_RETURN_IF_ERROR(Emit(root, "", &tree));
    maker_.SetTree(std::move(tree), std::move(values_));
    Sources sources = origin_->sources;
    return maker_.Make(ContentsKind::kDcp, std::move(files_), std::move(sources), origin_);
  }

 private:
  // The state as it was before it was flattened.
  struct Branch {
    DcpEntry* leaf = nullptr;
    std::vector<std::pair<DcpPathPart, std::unique_ptr<Branch>>> children;
    std::map<std::string, Branch*> by_key;
  };

  static bool Insert(DcpEntry* entry, Branch* root) {
    Branch* at = root;
    for (const DcpPathPart& part : entry->path) {
      if (at->leaf != nullptr) return false;
      Branch*& child = at->by_key[part.key];
      if (child == nullptr) {
        at->children.emplace_back(part, std::make_unique<Branch>());
        child = at->children.back().second.get();
      }
      at = child;
    }
    if (at->leaf != nullptr || !at->children.empty()) return false;
    at->leaf = entry;
    return true;
  }

  absl::StatusOr<uint32_t> FileOf(const DcpPlace& place) {
    const auto [known, fresh] = numbers_.emplace(place.file, static_cast<uint32_t>(files_.size()));
    if (fresh) {
      const std::string path = os::JoinPath(folder_, place.file);
      absl::StatusOr<std::unique_ptr<ByteSource>> source = OpenFileSource(path);
      if (!source.ok()) {
        if (absl::IsNotFound(source.status())) return Damaged(absl::StrFormat("%s is missing, which the metadata names", path));
        return source.status();
      }
      files_.push_back(path);
      origin_->sources.push_back(*std::move(source));
    }
    const ByteSource& source = *origin_->sources[known->second];
    if (place.offset > source.size() || place.bytes > source.size() - place.offset) {
      return Damaged(absl::StrFormat("%s: truncated: bytes [%d, %d) wanted, the file has %d", source.name(), place.offset,
                                     place.offset + place.bytes, source.size()));
    }
    return known->second;
  }

  absl::Status CheckPlaces(const DcpEntry& entry) {
    if (!entry.is_tensor) return FileOf(entry.place).status();
    for (const DcpPiece& piece : entry.pieces) NEVE_RETURN_IF_ERROR(FileOf(piece.place).status());
    return absl::OkStatus();
  }

  absl::Status Emit(const Branch& branch, const std::string& name, std::string* out) {
    if (branch.leaf != nullptr)
      return branch.leaf->is_tensor ? EmitTensor(branch.leaf, name, out) : EmitBytes(*branch.leaf, name, out);
    bool list = !branch.children.empty();
    for (size_t i = 0; i < branch.children.size(); ++i) list = list && branch.children[i].first.index == static_cast<int64_t>(i);
    out->append(list ? "{\"l\":[" : "{\"d\":[");
    bool first = true;
    for (const auto& [part, child] : branch.children) {
      const std::string key = list ? std::to_string(part.index) : part.key;
      if (!std::exchange(first, false)) out->push_back(',');
      if (!list) {
        out->push_back('[');
        AppendJsonString(key, out);
        out->push_back(',');
      }
      NEVE_RETURN_IF_ERROR(Emit(*child, name.empty() ? key : name + "." + key, out));
      if (!list) out->push_back(']');
    }
    out->append("]}");
    return absl::OkStatus();
  }

  absl::Status EmitTensor(DcpEntry* entry, const std::string& name, std::string* out) {
    NEVE_ASSIGN_OR_RETURN(uint64_t bytes, StatedElementCount(entry->shape));
    if (__builtin_mul_overflow(bytes, ItemBytes(entry->dtype), &bytes))
      return Damaged(Quoted(entry->name) + ": its bytes overflow");
    DcpOrigin::Tensor made;
    for (const DcpPiece& piece : entry->pieces) {
      NEVE_ASSIGN_OR_RETURN(const uint32_t file, FileOf(piece.place));
      made.files.push_back(file);
    }
    made.opened.resize(made.files.size());
    const uint32_t storage = maker_.AddStorage(bytes, {Backing::kMade, origin_->tensors.size()});
    std::string unique = name;
    for (int number = 2; !names_.insert({unique, true}).second || unique == "__metadata__" || unique.starts_with("neve.");
         ++number) {
      unique = absl::StrFormat("%s~#%d", name, number);
    }
    out->append(entry->gradient ? "{\"T\":1,\"grad\":1}" : "{\"T\":1}");
    NEVE_RETURN_IF_ERROR(
        maker_.AddTensor({unique, entry->dtype, entry->shape, tensor::ContiguousStrides(entry->shape), storage, 0}));
    made.entry = std::move(*entry);
    origin_->tensors.push_back(std::move(made));
    return absl::OkStatus();
  }

  // What is no tensor was pickled, mostly numbers and texts; an old writer put bytes as they were.
  absl::Status EmitBytes(const DcpEntry& entry, const std::string& name, std::string* out) {
    NEVE_ASSIGN_OR_RETURN(const uint32_t file, FileOf(entry.place));
    const auto opaque = [&](std::string callable) {
      out->append("{\"o\":\"opaque\",\"q\":");
      AppendJsonText(callable, out);
      out->append(",\"c\":[]}");
      maker_.AddOpaque({name, std::move(callable)});
      return absl::OkStatus();
    };
    if (entry.place.bytes > kBytesEntryMax) return opaque("an object of many bytes");
    const auto slice = std::make_shared<SliceSource>(origin_->sources[file], entry.place.offset, entry.place.bytes);
    std::string text;
    NEVE_RETURN_IF_ERROR(slice->ReadText(0, slice->size(), &text));
    if (!ZipDirectory::Looks(text)) return EmitBlob("y" + text, out);
    NEVE_ASSIGN_OR_RETURN(ZipDirectory directory, ZipDirectory::Read(*slice));
    directory.ForgetAbsentChecksums();
    const auto found = std::find_if(directory.entries().begin(), directory.entries().end(),
                                    [](const ZipEntry& each) { return each.name.ends_with("data.pkl"); });
    if (found == directory.entries().end()) return opaque("a zip archive");
    NEVE_ASSIGN_OR_RETURN(std::string pickled, ReadZipEntry(*slice, *found, kBytesEntryMax));
    NEVE_ASSIGN_OR_RETURN(const ReadPickleResult pickle, ReadPickle(std::move(pickled), slice->name()));
    const PickleGraph& graph = pickle.graph;
    PickleValues values(graph);
    if (!values.IsValue(graph.root())) {
      return opaque(graph.kind(graph.root()) == PickleKind::kCall ? graph.CallableName(graph.root()) : "a container of objects");
    }
    std::string value;
    NEVE_RETURN_IF_ERROR(values.Encode(graph.root(), kBytesEntryMax, &value));
    if (value.size() > kValueBytesMax) return EmitBlob("v" + value, out);
    values_ += value;
    out->append("\"v\"");
    return absl::OkStatus();
  }

  absl::Status EmitBlob(std::string payload, std::string* out) {
    if (maker_.memory_bytes() + payload.size() > kBytesEntryMax) {
      return Exhausted(absl::StrFormat("%s: what is no tensor takes more than %d bytes", folder_, kBytesEntryMax));
    }
    *out += absl::StrFormat("{\"b\":%d}", maker_.AddBlob(std::move(payload)));
    return absl::OkStatus();
  }

  std::string folder_;
  ImageMaker maker_;
  std::shared_ptr<DcpOrigin> origin_ = std::make_shared<DcpOrigin>();
  std::vector<std::string> files_;
  std::map<std::string, uint32_t> numbers_;  // of files
  std::map<std::string, bool> names_;        // of tensors
  std::string values_;
};

}  // namespace

OpenedContents OpenDcp(const std::string& path, const ContentsOptions&) { return DcpFolder(path).Open(); }

}  // namespace neve::format
