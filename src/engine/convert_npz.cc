// An .npz as numpy.savez writes it: a zip archive of stored (not compressed) .npy files, each an array's header and its elements.
// Sizes and CRC-32 stand in descriptors behind the elements and in the directory, zip64 where a number does not fit 32 bits.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/convert.h"

namespace neve::engine {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDescriptor = 0x08074b50, kDirectoryEntry = 0x02014b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50, kEnd = 0x06054b50;
constexpr uint64_t kMax32 = 0xFFFFFFFF, kMax16 = 0xFFFF;
constexpr uint16_t kFlags = 0x0008 | 0x0800;   // a descriptor follows; the name is UTF-8
constexpr uint16_t kNeeded = 45;
constexpr uint32_t kDosDate = 33u << 16;       // the first day that zip knows: equal states make equal files

template <typename Number>
void Put(std::string* out, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}
uint32_t Low32(uint64_t number) { return static_cast<uint32_t>(std::min(number, kMax32)); }

struct Entry {
  std::string name;
  uint64_t offset, bytes;
};

std::string LocalHeader(const Entry& entry) {
  const bool large = entry.bytes >= kMax32;
  std::string out;
  Put(&out, kLocalHeader);
  Put(&out, kNeeded);
  Put(&out, kFlags);
  Put(&out, uint16_t{0});   // stored
  Put(&out, kDosDate);
  Put(&out, uint32_t{0});   // CRC and sizes: in the descriptor
  Put(&out, large ? uint32_t{0xFFFFFFFF} : uint32_t{0});
  Put(&out, large ? uint32_t{0xFFFFFFFF} : uint32_t{0});
  Put(&out, static_cast<uint16_t>(entry.name.size()));
  Put(&out, static_cast<uint16_t>(large ? 20 : 0));
  out += entry.name;
  if (large) {
    Put(&out, uint16_t{1});
    Put(&out, uint16_t{16});
    Put(&out, uint64_t{0});
    Put(&out, uint64_t{0});
  }
  return out;
}

std::string Descriptor(const Entry& entry, uint32_t crc) {
  std::string out;
  Put(&out, kDescriptor);
  Put(&out, crc);
  for (int i = 0; i < 2; ++i) {   // compressed and plain
    if (entry.bytes >= kMax32) {
      Put(&out, entry.bytes);
    } else {
      Put(&out, static_cast<uint32_t>(entry.bytes));
    }
  }
  return out;
}

void PutDirectoryEntry(const Entry& entry, uint32_t crc, std::string* out) {
  std::string extra;
  if (entry.bytes >= kMax32) {
    Put(&extra, entry.bytes);
    Put(&extra, entry.bytes);
  }
  if (entry.offset >= kMax32) Put(&extra, entry.offset);
  Put(out, kDirectoryEntry);
  Put(out, static_cast<uint16_t>(0x0300 | kNeeded));   // made on Unix
  Put(out, kNeeded);
  Put(out, kFlags);
  Put(out, uint16_t{0});
  Put(out, kDosDate);
  Put(out, crc);
  Put(out, Low32(entry.bytes));
  Put(out, Low32(entry.bytes));
  Put(out, static_cast<uint16_t>(entry.name.size()));
  Put(out, static_cast<uint16_t>(extra.empty() ? 0 : extra.size() + 4));
  Put(out, uint16_t{0});            // comment
  Put(out, uint16_t{0});            // disk
  Put(out, uint16_t{0});
  Put(out, uint32_t{0100600u << 16});   // a file, its owner's
  Put(out, Low32(entry.offset));
  *out += entry.name;
  if (!extra.empty()) {
    Put(out, uint16_t{1});
    Put(out, static_cast<uint16_t>(extra.size()));
    *out += extra;
  }
}

std::string Directory(const std::vector<Entry>& entries, uint64_t offset, const std::function<uint32_t(size_t)>& crc) {
  std::string out;
  for (size_t i = 0; i < entries.size(); ++i) PutDirectoryEntry(entries[i], crc(i), &out);
  const uint64_t bytes = out.size(), count = entries.size();
  if (count >= kMax16 || bytes >= kMax32 || offset >= kMax32) {
    Put(&out, kEnd64);
    Put(&out, uint64_t{44});
    Put(&out, kNeeded);
    Put(&out, kNeeded);
    Put(&out, uint64_t{0});   // disks
    Put(&out, count);
    Put(&out, count);
    Put(&out, bytes);
    Put(&out, offset);
    Put(&out, kLocator64);
    Put(&out, uint32_t{0});
    Put(&out, offset + bytes);
    Put(&out, uint32_t{1});
  }
  Put(&out, kEnd);
  Put(&out, uint32_t{0});
  Put(&out, static_cast<uint16_t>(std::min(count, kMax16)));
  Put(&out, static_cast<uint16_t>(std::min(count, kMax16)));
  Put(&out, Low32(bytes));
  Put(&out, Low32(offset));
  Put(&out, uint16_t{0});
  return out;
}

const char* NumpyType(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "|b1";
    case DType::kU8: return "|u1";
    case DType::kI8: return "|i1";
    case DType::kU16: return "<u2";
    case DType::kI16: return "<i2";
    case DType::kU32: return "<u4";
    case DType::kI32: return "<i4";
    case DType::kU64: return "<u8";
    case DType::kI64: return "<i8";
    case DType::kF16: return "<f2";
    case DType::kF32: return "<f4";
    case DType::kF64: return "<f8";
    case DType::kC64: return "<c8";
    case DType::kC128: return "<c16";
    default: return nullptr;
  }
}

std::string ArrayHeader(const format::LogicalTensor& tensor) {
  std::string shape;
  for (const int64_t extent : tensor.shape) shape += std::to_string(extent) + ", ";
  if (tensor.shape.size() > 1) shape.resize(shape.size() - 2);
  if (tensor.shape.size() == 1) shape.pop_back();   // "(3,)"
  std::string text = absl::StrFormat("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", NumpyType(tensor.dtype), shape);
  constexpr size_t kBefore = 10, kAlignment = 64;
  text.append((kAlignment - (kBefore + text.size() + 1) % kAlignment) % kAlignment, ' ').push_back('\n');
  std::string out("\x93NUMPY\x01\x00", 8);
  Put(&out, static_cast<uint16_t>(text.size()));
  return out + text;
}

}  // namespace

absl::Status ConvertToNpz(const Conversion& conversion, const Target& target) {
  NEVE_RETURN_IF_ERROR(CheckLogicalSize(*conversion.source));
  Refusals refusals;
  RefuseMisread(conversion, /*keys_only=*/true, &refusals);
  RefuseObjects(conversion.tree.root, &refusals);
  for (const SourceTensor* tensor : conversion.names) {
    if (NumpyType(tensor->tensor->dtype) == nullptr) {
      refusals.Add(tensor->name, absl::StrFormat("NumPy has no type %s", Name(tensor->tensor->dtype)));
    } else if (tensor->name.size() > kMax16 - 4 || tensor->tensor->shape.size() > 64 || tensor->name.find('\0') != std::string::npos) {
      refusals.Add(tensor->name, "NumPy has no arrays of such a name, or of so many dimensions");
    }
  }
  NEVE_RETURN_IF_ERROR(refusals.ToStatus("an .npz file"));
  conversion.report->tensors = conversion.names.size();
  OutputStream stream;
  std::vector<Entry> entries;
  for (size_t i = 0; i < conversion.names.size(); ++i) {
    const SourceTensor& tensor = *conversion.names[i];
    std::string header = ArrayHeader(*tensor.tensor);
    entries.push_back({tensor.name + ".npy", stream.bytes(), header.size() + tensor.bytes});
    stream.AddText(LocalHeader(entries.back()));
    const auto record = static_cast<int64_t>(i);
    stream.AddText(std::move(header), record);
    stream.Add(tensor.bytes, LogicalBytes(*conversion.contents, *tensor.tensor), record);
    stream.AddLate(Descriptor(entries.back(), 0).size(), [&stream, &entries, i] {
      return Descriptor(entries[i], stream.crc(static_cast<int64_t>(i)));
    });
  }
  const uint64_t directory = stream.bytes();
  const uint64_t directory_bytes = Directory(entries, directory, [](size_t) { return 0u; }).size();
  stream.AddLate(directory_bytes, [&stream, &entries, directory] {
    return Directory(entries, directory, [&](size_t i) { return stream.crc(static_cast<int64_t>(i)); });
  });
  conversion.report->bytes = stream.bytes();
  return WriteFileFrom(target, &stream);
}

}  // namespace neve::engine
