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

void AddTorchArchive(const MakeLayout& make_layout, std::vector<Fill> storages, OutputStream* stream) {
  const auto text = [stream](uint64_t bytes, std::function<std::string()> make) {
    stream->Add(bytes, [make = std::move(make)](uint64_t begin, std::span<std::byte> target) {
      const std::string made = make();
      if (begin + target.size() > made.size()) return Internal("an archive's layout came out shorter the second time");
      std::copy_n(reinterpret_cast<const std::byte*>(made.data()) + begin, target.size(), target.begin());
      return absl::OkStatus();
    });
  };
  const std::shared_ptr<const format::TorchZipLayout> layout = make_layout();
  const int64_t first = stream->records();
  text(layout->head().size(), [make_layout] { return std::string(make_layout()->head()); });
  for (size_t i = 0; i < storages.size(); ++i) {
    const format::TorchZipLayout::Storage storage = layout->storage(i);
    const int64_t record = first + static_cast<int64_t>(i);
    text(storage.data - storage.record, [make_layout, i] {
      std::string header;
      make_layout()->LocalHeader(i, &header);
      return header;
    });
    stream->Add(storage.bytes, std::move(storages[i]), record);
    stream->AddLate(storage.end - storage.descriptor(), [make_layout, stream, record, i] {
      std::string descriptor;
      make_layout()->Descriptor(i, stream->crc(record), &descriptor);
      return descriptor;
    });
  }
  stream->AddLate(layout->archive_bytes() - layout->tail_offset(), [make_layout, stream, first, count = storages.size()] {
    std::vector<uint32_t> crcs;
    for (size_t i = 0; i < count; ++i) crcs.push_back(stream->crc(first + static_cast<int64_t>(i)));
    return make_layout()->Tail(crcs);
  });
}

absl::Status ConvertToTorch(const Conversion& conversion, const Target& target) {
  NEVE_ASSIGN_OR_RETURN(const TorchPickle pickle, PickleOf(conversion));
  std::vector<uint64_t> sizes;
  std::vector<Fill> storages;
  for (const TorchStorage& storage : pickle.storages) {
    sizes.push_back(storage.bytes);
    storages.push_back(StorageBytes(*conversion.contents, storage.entry));
  }
  NEVE_ASSIGN_OR_RETURN(format::TorchZipLayout built,
                        format::TorchZipLayout::Build(format::TorchZipRoot(target.out), format::kTorchZipAlignment, pickle.pickle,
                                                      sizes));
  const auto layout = std::make_shared<const format::TorchZipLayout>(std::move(built));
  OutputStream stream;
  AddTorchArchive([layout] { return layout; }, std::move(storages), &stream);
  conversion.report->bytes = stream.bytes();
  return WriteFileFrom(target, &stream);
}

}  // namespace neve::engine
