// NumPy's arrays: one in a .npy file, many in the zip archive that .npz is.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "format/json_text.h"
#include "format/key_escapes.h"
#include "format/layout.h"
#include "format/npy_header.h"
#include "format/pickle_values.h"
#include "format/readers.h"
#include "format/torch_types.h"
#include "format/zip_origin.h"

namespace neve::format {
namespace {

constexpr std::string_view kSuffix = ".npy";

// Reads the beginning of an array: `read` may be asked for [0, available).
absl::StatusOr<NpyHeader> ReadHeader(const ReadBytes& read, uint64_t available) {
  std::string head(std::min(available, kNpyFixedBytes), '\0');
  NEVE_RETURN_IF_ERROR(read(0, std::as_writable_bytes(std::span(head))));
  NEVE_ASSIGN_OR_RETURN(const uint64_t bytes, NpyHeaderBytes(head));
  if (bytes > available)
    return Damaged(absl::StrFormat("truncated: the header of an array has %d bytes, %d are there", bytes, available));
  head.resize(bytes);
  NEVE_RETURN_IF_ERROR(read(0, std::as_writable_bytes(std::span(head))));
  return ParseNpyHeader(head);
}

// Bytes of an array's data; Damaged when they are not there.
absl::StatusOr<uint64_t> DataBytes(const NpyHeader& header, uint64_t available) {
  NEVE_ASSIGN_OR_RETURN(const uint64_t count, StatedElementCount(header.shape));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, header.item_bytes, &bytes)) return Damaged("the size of an array overflows");
  if (bytes > available - header.header_bytes) {
    return Damaged(absl::StrFormat("truncated: an array needs %d bytes behind its header, %d are there", bytes,
                                   available - header.header_bytes));
  }
  return bytes;
}

// What an image says of it: a node of the tree, and the tensor.
absl::Status AddArray(const NpyHeader& header, std::string name, uint32_t storage, ImageMaker* maker, std::string* node) {
  ImageMaker::Tensor tensor{std::move(name), DType::kU8, header.shape, tensor::ContiguousStrides(header.shape), storage, 0};
  if (header.fortran) {
    int64_t step = 1;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      tensor.strides[i] = step;
      step *= std::max<int64_t>(tensor.shape[i], 1);  // ElementCount has bounded the product; of an empty array nothing is read
    }
  }
  if (const std::optional<DType> dtype = NumpyDType(header.dtype)) {
    tensor.dtype = *dtype;
    *node = "{\"T\":1,\"np\":1}";
  } else {
    for (int64_t& stride : tensor.strides) {
      if (__builtin_mul_overflow(stride, static_cast<int64_t>(header.item_bytes), &stride))
        return Damaged("its strides overflow");
    }
    tensor.shape.push_back(static_cast<int64_t>(header.item_bytes));
    tensor.strides.push_back(1);
    *node = "{\"T\":1,\"np\":";
    AppendJsonString(header.dtype, node);
    node->push_back('}');
  }
  return maker->AddTensor(std::move(tensor));
}

std::string WhyNot(const NpyHeader& header) {
  if (header.has_objects) return "a NumPy array of pickled objects";
  return header.dtype.empty() ? "a NumPy array of records" : "";
}

class NpyOrigin final : public Origin {
 public:
  explicit NpyOrigin(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  absl::Status Check(const std::function<void(uint64_t)>& progress, std::vector<ContentsProblem>*) const override {
    constexpr uint64_t kBlockBytes = 4u << 20;
    std::vector<std::byte> block(std::min(kBlockBytes, source_->size()));
    for (uint64_t at = 0; at < source_->size(); at += kBlockBytes) {
      const uint64_t bytes = std::min(kBlockBytes, source_->size() - at);
      NEVE_RETURN_IF_ERROR(source_->Read(at, std::span(block).first(bytes)));
      if (progress) progress(at + bytes);
    }
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<const ByteSource> source_;
};

}  // namespace

bool IsNpy(std::string_view head) { return head.starts_with(kNpyMagic); }

OpenedContents OpenNpy(std::shared_ptr<const ByteSource> source, const ContentsOptions& options) {
  const std::string& path = source->name();
  const ReadBytes read = [&](uint64_t at, std::span<std::byte> to) { return source->Read(at, to); };
  absl::StatusOr<NpyHeader> header = ReadHeader(read, source->size());
  if (!header.ok()) return Annotate(header.status(), path);
  if (const std::string why = WhyNot(*header); !why.empty()) return Unsupported(path + ": " + why);
  absl::StatusOr<uint64_t> bytes = DataBytes(*header, source->size());
  if (!bytes.ok()) return Annotate(bytes.status(), path);
  ImageMaker maker;
  if (const uint64_t rest = source->size() - header->header_bytes - *bytes; rest > 0) {
    const std::string what = absl::StrFormat("trailing data: %d bytes follow the array", rest);
    if (!options.lenient) return Damaged(path + ": " + what);
    maker.AddNote(what);
  }
  std::string root;
  const uint32_t storage = maker.AddStorage(*bytes, {0, header->header_bytes});
  if (absl::Status status = AddArray(*header, "~tensor", storage, &maker, &root); !status.ok()) return Annotate(status, path);
  maker.SetTree(std::move(root), "");
  return maker.Make(ContentsKind::kNpy, {path}, {source}, std::make_shared<NpyOrigin>(source));
}

bool IsNpz(const ZipDirectory& directory) {
  return !directory.entries().empty() && std::all_of(directory.entries().begin(), directory.entries().end(),
                                                     [](const ZipEntry& entry) { return entry.name.ends_with(kSuffix); });
}

OpenedContents OpenNpz(std::shared_ptr<const ByteSource> source, ZipDirectory directory, std::vector<std::string> notes,
                       const ContentsOptions&) {
  const auto origin = std::make_shared<ZipOrigin>(source, std::move(directory));
  ImageMaker maker;
  for (std::string& note : notes) maker.AddNote(std::move(note));
  std::string root = "{\"d\":[";
  for (const ZipEntry& entry : origin->directory().entries()) {
    const std::string where = absl::StrFormat("%s: entry %s", source->name(), Quoted(entry.name));
    const ReadBytes read = [&](uint64_t at, std::span<std::byte> to) { return origin->ReadEntry(entry, at, to); };
    absl::StatusOr<NpyHeader> header = ReadHeader(read, entry.bytes);
    if (!header.ok()) return Annotate(header.status(), where);
    std::string text(entry.name.substr(0, entry.name.size() - kSuffix.size()));
    std::string name = EscapeTextKey(text), node;
    if (name == "__metadata__" || name.starts_with("neve.")) name += "~#2";  // reserved
    if (const std::string why = WhyNot(*header); !why.empty()) {
      maker.AddOpaque({name, why});
      node = "{\"o\":\"opaque\",\"q\":\"" + why + "\",\"c\":[]}";
    } else {
      absl::StatusOr<uint64_t> bytes = DataBytes(*header, entry.bytes);
      if (!bytes.ok()) return Annotate(bytes.status(), where);
      if (entry.bytes != header->header_bytes + *bytes) {
        maker.AddNote(absl::StrFormat("%s: %d bytes follow the array", where, entry.bytes - header->header_bytes - *bytes));
      }
      const uint32_t storage = maker.AddStorage(*bytes, origin->BackingOf(entry, header->header_bytes, *bytes, 1));
      if (absl::Status status = AddArray(*header, name, storage, &maker, &node); !status.ok()) return Annotate(status, where);
      origin->NameTensor(entry, name);
    }
    root += root.size() > 6 ? ",[" : "[";
    AppendJsonString(EscapeTextKey(text), &root);
    root += "," + node + "]";
  }
  maker.SetTree(root + "]}", "");
  return maker.Make(ContentsKind::kNpz, {source->name()}, {origin->Summed()}, origin);
}

}  // namespace neve::format
