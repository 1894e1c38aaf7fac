#include "engine/device_fill.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/obs/log.h"
#include "base/sync/mutex.h"
#include "tensor/box.h"

namespace neve::engine {
namespace {

using tensor::Dims;

constexpr uint64_t kAlignment = 256;   // of each tensor in a buffer: what copy engines like

// Dimensions from the outermost to the innermost in memory; those of extent 1 say nothing and come first.
std::vector<size_t> MemoryOrder(std::span<const int64_t> extent, std::span<const int64_t> strides) {
  std::vector<size_t> order(extent.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if ((extent[a] == 1) != (extent[b] == 1)) return extent[a] == 1;
    return extent[a] != 1 && strides[a] > strides[b];
  });
  return order;
}

class Filler {
 public:
  Filler(const ImageTensors& from, std::shared_ptr<device::Device> device) : from_(from), device_(std::move(device)) {}

  Filler(const Filler&) = delete;
  ~Filler() {
    if (!in_flight_) return;
    // After a failure: what is in flight ends before the buffers go. Where the stream cannot even be asked, they stay for good.
    for (Buffer& buffer : buffers_) {
      if (device_->Record(buffer.done.get(), stream_.get()).ok() && device_->Synchronize(buffer.done.get()).ok()) return;
    }
    if (!device_->Health().ok()) return;   // nothing runs there any more
    obs::Log(obs::Level::kError, absl::StrFormat("event=buffers_lost device=\"%s\" bytes=%u", device_->name(), 2 * buffer_bytes_));
    static auto* const kept = new std::vector<Buffer>;
    static auto* const mutex = new sync::Mutex;
    sync::MutexLock lock(*mutex);
    for (Buffer& buffer : buffers_) kept->push_back(std::move(buffer));
  }

  absl::Status Begin(uint64_t bytes) {
    buffer_bytes_ = std::min(bytes, kFillBufferBytes);
    for (Buffer& buffer : buffers_) {
      NEVE_ASSIGN_OR_RETURN(buffer.done, device::OwnedEvent::Create(device_));
      absl::StatusOr<device::OwnedMemory> memory =
          device::OwnedMemory::Create(device_, device::MemoryKind::kRegistered, buffer_bytes_);
      buffer.registered = memory.ok();
      if (memory.ok()) {
        buffer.memory = *std::move(memory);
        buffer.data = buffer.memory.get();
      } else {
        NEVE_RETURN_IF_ERROR(device_->Health());
        buffer.plain.reset(new (std::nothrow) std::byte[buffer_bytes_]);
        if (buffer.plain == nullptr) return Exhausted(absl::StrFormat("no memory for a buffer of %u bytes", buffer_bytes_), ENOMEM);
        buffer.data = buffer.plain.get();
      }
    }
    NEVE_ASSIGN_OR_RETURN(stream_, device::OwnedStream::Create(device_));
    return absl::OkStatus();
  }

  absl::Status Add(const DeviceTarget& target) {
    const std::vector<size_t> order = MemoryOrder(target.extent, target.strides);
    Dims extent;   // outermost in memory first: a range of its elements in row-major order is a range of the memory
    for (const size_t dimension : order) extent.push_back(target.extent[dimension]);
    NEVE_ASSIGN_OR_RETURN(const uint64_t elements, tensor::ElementCount(extent));
    for (uint64_t first = 0; first < elements;) {
      const uint64_t room = (buffer_bytes_ - used_) / target.item_bytes;
      if (room == 0) {
        NEVE_RETURN_IF_ERROR(Flush());
        continue;
      }
      const uint64_t count = std::min(room, elements - first);
      std::byte* const data = buffers_[turn_].data + used_;
      for (const tensor::LinearBox& part : tensor::LinearBoxes(extent, first, count)) {
        Box box{target.index, Dims(target.offset.begin(), target.offset.end()), Dims(extent.size(), 1), target.strides.data(),
                data + (part.first - first) * target.item_bytes};
        for (size_t i = 0; i < order.size(); ++i) {
          box.offset[order[i]] += part.offset[i];
          box.extent[order[i]] = part.extent[i];
        }
        boxes_.push_back(std::move(box));
      }
      copies_.push_back({static_cast<std::byte*>(target.data) + first * target.item_bytes, data, count * target.item_bytes});
      used_ = std::min(buffer_bytes_, (used_ + count * target.item_bytes + kAlignment - 1) / kAlignment * kAlignment);
      first += count;
    }
    return absl::OkStatus();
  }

  // What was added is on its way to the device; the other buffer is free to be read into.
  absl::Status Flush() {
    Buffer& buffer = buffers_[turn_];
    std::vector<BoxTarget> targets;
    targets.reserve(boxes_.size());
    for (const Box& box : boxes_) targets.push_back({box.index, box.offset.data(), box.extent.data(), box.data, box.strides});
    if (!targets.empty()) NEVE_RETURN_IF_ERROR(from_.ReadBoxes(targets));
    in_flight_ = true;
    if (buffer.registered && copies_.size() > 1 && device_->batch_form() != device::BatchForm::kNone) {
      NEVE_RETURN_IF_ERROR(device_->CopyBatch(stream_.get(), copies_));
    } else {
      for (const device::CopyRange& copy : copies_) NEVE_RETURN_IF_ERROR(device_->Copy(stream_.get(), copy));
    }
    NEVE_RETURN_IF_ERROR(device_->Record(buffer.done.get(), stream_.get()));
    boxes_.clear();
    copies_.clear();
    used_ = 0;
    turn_ ^= 1;
    return device_->Synchronize(buffers_[turn_].done.get());   // of an event never recorded: nothing to wait for
  }

  absl::Status End() {
    NEVE_RETURN_IF_ERROR(Flush());
    NEVE_RETURN_IF_ERROR(device_->Synchronize(buffers_[turn_ ^ 1].done.get()));
    in_flight_ = false;
    return absl::OkStatus();
  }

 private:
  struct Buffer {
    device::OwnedMemory memory;
    std::unique_ptr<std::byte[]> plain;
    std::byte* data = nullptr;
    bool registered = false;
    device::OwnedEvent done;   // the copies out of it
  };
  struct Box {
    size_t index;
    Dims offset, extent;
    const int64_t* strides;
    std::byte* data;
  };

  const ImageTensors& from_;
  const std::shared_ptr<device::Device> device_;
  Buffer buffers_[2];
  device::OwnedStream stream_;
  bool in_flight_ = false;       // copies may be
  uint64_t buffer_bytes_ = 0, used_ = 0;
  int turn_ = 0;
  std::vector<Box> boxes_;       // to be read into the buffer whose turn it is
  std::vector<device::CopyRange> copies_;
};

uint64_t BytesOf(const DeviceTarget& target) { return tensor::ElementCount(target.extent).value_or(0) * target.item_bytes; }

}  // namespace

absl::Status FillDevice(const ImageTensors& from, const std::shared_ptr<device::Device>& device,
                        std::span<const DeviceTarget> targets) {
  std::vector<const DeviceTarget*> order;
  uint64_t bytes = 0;
  for (const DeviceTarget& target : targets) {
    if (tensor::IsEmptyBox(target.extent)) continue;
    order.push_back(&target);
    bytes += (BytesOf(target) + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (order.empty()) return absl::OkStatus();
  // As images are laid out: whole pages first, the rest by name.
  std::sort(order.begin(), order.end(), [&](const DeviceTarget* a, const DeviceTarget* b) {
    const bool a_pages = from.at(a->index).bytes % 4096 == 0, b_pages = from.at(b->index).bytes % 4096 == 0;
    return a_pages != b_pages ? a_pages : from.at(a->index).name < from.at(b->index).name;
  });
  Filler filler(from, device);
  NEVE_RETURN_IF_ERROR(filler.Begin(bytes));
  for (const DeviceTarget* const target : order) NEVE_RETURN_IF_ERROR(filler.Add(*target));
  return filler.End();
}

}  // namespace neve::engine
