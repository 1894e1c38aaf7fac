#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/convert.h"
#include "engine/convert_pickle.h"
#include "format/read_box.h"
#include "format/torch_zip_layout.h"

namespace neve::engine {
namespace {

// A storage holds an entry's elements as they lay in memory: so strides and aliases mean what they meant.
Fill StorageBytes(const format::Contents& contents, uint32_t entry) {
  const format::LogicalTensor* const owner = format::OwnerOf(contents, entry);
  if (owner == nullptr || format::LiesAsInMemory(*owner)) {
    return [&contents, begin_of = contents.header().tensors[entry].offset](uint64_t begin, std::span<std::byte> target) {
      return contents.Read(begin_of + begin, target);
    };
  }
  return [&contents, owner](uint64_t begin, std::span<std::byte> target) {
    const uint64_t item = ItemBytes(owner->dtype), first = begin / item, end = (begin + target.size() + item - 1) / item;
    std::vector<std::byte> whole((end - first) * item);
    NEVE_RETURN_IF_ERROR(format::ReadMemoryOrder(contents, *owner, first, end - first, whole));
    std::copy_n(whole.begin() + static_cast<ptrdiff_t>(begin - first * item), target.size(), target.begin());
    return absl::OkStatus();
  };
}

}  // namespace

absl::Status ConvertToTorch(const Conversion& conversion, const Target& target) {
  NEVE_ASSIGN_OR_RETURN(const TorchPickle pickle, PickleOf(conversion));
  std::vector<uint64_t> sizes;
  for (const TorchStorage& storage : pickle.storages) sizes.push_back(storage.bytes);
  NEVE_ASSIGN_OR_RETURN(const format::TorchZipLayout layout,
                        format::TorchZipLayout::Build(format::TorchZipRoot(target.out), format::kTorchZipAlignment, pickle.pickle,
                                                      sizes));
  OutputStream stream;
  stream.AddText(std::string(layout.head()));
  for (size_t i = 0; i < layout.storage_count(); ++i) {
    const format::TorchZipLayout::Storage storage = layout.storage(i);
    std::string header;
    layout.LocalHeader(i, &header);
    stream.AddText(std::move(header));
    stream.Add(storage.bytes, StorageBytes(*conversion.contents, pickle.storages[i].entry), static_cast<int64_t>(i));
    stream.AddLate(storage.end - storage.descriptor(), [&layout, &stream, i] {
      std::string descriptor;
      layout.Descriptor(i, stream.crc(static_cast<int64_t>(i)), &descriptor);
      return descriptor;
    });
  }
  stream.AddLate(layout.archive_bytes() - layout.tail_offset(), [&] {
    std::vector<uint32_t> crcs;
    for (size_t i = 0; i < layout.storage_count(); ++i) crcs.push_back(stream.crc(static_cast<int64_t>(i)));
    return layout.Tail(crcs);
  });
  conversion.report->bytes = stream.bytes();
  return WriteFileFrom(target, &stream);
}

}  // namespace neve::engine
