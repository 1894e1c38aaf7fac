// Images of the C API over the C++ one: conversions only.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error/status.h"
#include "capi/handles.h"
#include "neve/engine.h"
#include "neve/neve.h"
#include "neve/restore.h"

using neve::capi::Adopt;
using neve::capi::Dump;
using neve::capi::Find;
using neve::capi::Give;
using neve::capi::GiveString;
using neve::capi::Guarded;
using neve::capi::Json;
using neve::capi::OpenImage;
using neve::capi::Take;

extern "C" {

neve_code neve_image_open(const char* path, neve_image** image, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (path == nullptr || image == nullptr) return neve::Invalid("the path or the place for the image is null");
    *image = nullptr;
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::Image> opened, neve::OpenImageFile(path));
    *image = Give(std::make_shared<OpenImage>(std::move(opened)));
    return absl::OkStatus();
  });
}

void neve_image_destroy(neve_image** image) {
  Guarded(nullptr, [&]() -> absl::Status {
    Take<OpenImage>(image);
    return absl::OkStatus();
  });
}

uint64_t neve_image_step(const neve_image* image) {
  uint64_t step = UINT64_MAX;
  Guarded(nullptr, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    step = open->image->info().step;
    return absl::OkStatus();
  });
  return step;
}

neve_code neve_image_describe(const neve_image* image, neve_string** json, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (json == nullptr) return neve::Invalid("the place for the text is null");
    *json = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    Json document = Json::parse(neve::ToJson(open->image->info()));
    document["image_bytes"] = open->image->image_bytes();
    document["has_digests"] = open->image->has_digests();
    document["sources"] = open->image->Sources();
    GiveString(json, Dump(document));
    return absl::OkStatus();
  });
}

const void* neve_image_header(const neve_image* image, size_t* bytes) {
  std::string_view header;
  Guarded(nullptr, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    header = open->image->header();
    return absl::OkStatus();
  });
  if (bytes != nullptr) *bytes = header.size();
  return header.data();
}

neve_code neve_image_read(neve_image* image, const neve_ranges* given, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(const neve_ranges adopted, Adopt(given, sizeof(neve_ranges), "NEVE_RANGES_INIT"));
    const neve_ranges* const ranges = &adopted;
    if (ranges->count != 0 && (ranges->offsets == nullptr || ranges->bytes == nullptr || ranges->targets == nullptr)) {
      return neve::Invalid("offsets, bytes and targets are needed");
    }
    std::vector<neve::ReadRange> list(ranges->count);
    size_t at = 0;
    for (size_t i = 0; i < ranges->count; ++i) {
      neve::ReadRange& range = list[i];
      range.offset = ranges->offsets[i];
      range.bytes = ranges->bytes[i];
      range.target = ranges->targets[i];
      if (ranges->ranks == nullptr || ranges->ranks[i] < 0) continue;
      if (ranges->item_bytes == nullptr || (ranges->ranks[i] > 0 && (ranges->extents == nullptr || ranges->strides == nullptr))) {
        return neve::Invalid("strided ranges need extents, strides and item_bytes");
      }
      range.rank = ranges->ranks[i];
      range.extents = ranges->extents + at;
      range.strides = ranges->strides + at;
      range.item_bytes = ranges->item_bytes[i];
      at += static_cast<size_t>(ranges->ranks[i]);
    }
    return open->image->Read(list, {ranges->written, ranges->written == nullptr ? 0 : ranges->count});
  });
}

size_t neve_image_tensor_count(neve_image* image) {
  size_t count = 0;
  Guarded(nullptr, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(const neve::ImageTensors* tensors, open->Tensors());
    count = tensors->count();
    return absl::OkStatus();
  });
  return count;
}

neve_code neve_image_tensor_describe(neve_image* image, size_t index, neve_tensor_info* given, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(neve_tensor_info adopted, Adopt(given, sizeof(neve_tensor_info), "NEVE_TENSOR_INFO_INIT"));
    neve_tensor_info* const info = &adopted;
    NEVE_ASSIGN_OR_RETURN(const neve::ImageTensors* tensors, open->Tensors());
    if (index >= tensors->count()) {
      return neve::Invalid("tensor " + std::to_string(index) + " of " + std::to_string(tensors->count()));
    }
    const neve::TensorInfo found = tensors->at(index);
    info->name = found.name.data();
    info->name_bytes = found.name.size();
    info->dtype = static_cast<uint8_t>(found.dtype);
    info->rank = static_cast<uint8_t>(found.shape.size());
    info->extents = found.shape.data();
    info->strides = found.strides.data();
    info->bytes = found.bytes;
    static constexpr int64_t kNoDimension = 0;   // so that a piece without dimensions is told from what is none
    const auto dims_of = [&](std::span<const int64_t> dims) { return dims.data() == nullptr ? &kNoDimension : dims.data(); };
    info->global_extents = found.piece ? dims_of(found.global_shape) : nullptr;
    info->offsets = found.piece ? dims_of(found.offset) : nullptr;
    info->logical_name = found.piece ? found.logical_name.data() : nullptr;
    info->logical_name_bytes = found.logical_name.size();
    adopted.struct_size = given->struct_size;
    std::memcpy(static_cast<void*>(given), &adopted, std::min(given->struct_size, sizeof(adopted)));
    return absl::OkStatus();
  });
}

neve_code neve_image_tensor_find(neve_image* image, const char* name, size_t* index, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (name == nullptr || index == nullptr) return neve::Invalid("neve_image_tensor_find needs a name and a place for the index");
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(const neve::ImageTensors* tensors, open->Tensors());
    const std::optional<size_t> found = tensors->Find(name);
    if (!found.has_value()) return neve::NotFound(std::string("the image holds no tensor \"") + name + "\"");
    *index = *found;
    return absl::OkStatus();
  });
}

neve_code neve_image_tensors_read(neve_image* image, size_t count, const size_t* indexes, void* const* targets,
                                  const int64_t* const* strides, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (count != 0 && (indexes == nullptr || targets == nullptr)) {
      return neve::Invalid("neve_image_tensors_read needs indexes and targets");
    }
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(const neve::ImageTensors* tensors, open->Tensors());
    std::vector<neve::TensorTarget> wanted(count);
    for (size_t i = 0; i < count; ++i) wanted[i] = {indexes[i], targets[i], strides == nullptr ? nullptr : strides[i]};
    return tensors->Read(wanted);
  });
}

neve_code neve_image_tensor_data(neve_image* image, size_t index, const void** data, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (data == nullptr) return neve::Invalid("the place for the data is null");
    *data = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(*data, open->Data(index));
    return absl::OkStatus();
  });
}

neve_code neve_image_values(neve_image* image, neve_string** values, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (values == nullptr) return neve::Invalid("the place for the values is null");
    *values = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(std::string text, neve::ValuesOf(*open->image));
    GiveString(values, std::move(text));
    return absl::OkStatus();
  });
}

neve_code neve_image_blob(neve_image* image, uint32_t number, neve_string** payload, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (payload == nullptr) return neve::Invalid("the place for the payload is null");
    *payload = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(std::string bytes, neve::ReadBlob(*open->image, number));
    GiveString(payload, std::move(bytes));
    return absl::OkStatus();
  });
}

neve_code neve_image_global(neve_image* image, const char* take_rank0, neve_image** global, neve_error** error) {
  return neve_image_global_part(image, take_rank0, nullptr, global, error);
}

neve_code neve_image_global_part(neve_image* image, const char* take_rank0, const char* include, neve_image** global,
                                 neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    if (global == nullptr) return neve::Invalid("the place for the global image is null");
    *global = nullptr;
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    const neve::GlobalOptions options{neve::capi::SplitLines(take_rank0), neve::capi::SplitLinesIfAny(include)};
    NEVE_ASSIGN_OR_RETURN(std::unique_ptr<neve::Image> made, open->image->Global(options));
    *global = Give(std::make_shared<OpenImage>(std::move(made)));
    return absl::OkStatus();
  });
}

int neve_image_is_global(const neve_image* image) {
  bool is_global = false;
  Guarded(nullptr, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    is_global = open->image->is_global();
    return absl::OkStatus();
  });
  return is_global ? 1 : 0;
}

neve_code neve_image_boxes_read(neve_image* image, const neve_boxes* given, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    NEVE_ASSIGN_OR_RETURN(const neve_boxes adopted, Adopt(given, sizeof(neve_boxes), "NEVE_BOXES_INIT"));
    const neve_boxes* const boxes = &adopted;
    if (boxes->count != 0 && (boxes->tensors == nullptr || boxes->targets == nullptr)) {
      return neve::Invalid("tensors and targets are needed");
    }
    NEVE_ASSIGN_OR_RETURN(const neve::ImageTensors* tensors, open->Tensors());
    std::vector<neve::BoxTarget> wanted(boxes->count);
    size_t at = 0;
    for (size_t i = 0; i < boxes->count; ++i) {
      if (boxes->tensors[i] >= tensors->count()) {
        return neve::Invalid("tensor " + std::to_string(boxes->tensors[i]) + " of " + std::to_string(tensors->count()));
      }
      const size_t rank = tensors->at(boxes->tensors[i]).shape.size();
      if (rank != 0 && (boxes->offsets == nullptr || boxes->extents == nullptr)) {
        return neve::Invalid("offsets and extents are needed");
      }
      wanted[i].index = boxes->tensors[i];
      wanted[i].offset = rank == 0 ? nullptr : boxes->offsets + at;
      wanted[i].extent = rank == 0 ? nullptr : boxes->extents + at;
      wanted[i].data = boxes->targets[i];
      wanted[i].strides = boxes->strides == nullptr ? nullptr : boxes->strides[i];
      at += rank;
    }
    return tensors->ReadBoxes(wanted, {boxes->written, boxes->written == nullptr ? 0 : boxes->count});
  });
}

neve_code neve_image_verify(neve_image* image, neve_error** error) {
  return Guarded(error, [&]() -> absl::Status {
    NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<OpenImage> open, Find<OpenImage>(image));
    return open->image->VerifyAll();
  });
}

}  // extern "C"
