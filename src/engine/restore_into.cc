// Restore into memory that is there: what is wanted of a save, as whole tensors of the rank's own image where it has them, else as boxes
// of the logical tensors that all ranks hold together. Of a box whose bytes are bad in the own image another rank's copy is read.
#include "neve/restore.h"

#include <fnmatch.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "device/device.h"
#include "engine/device_fill.h"
#include "engine/state.h"
#include "format/image_header.h"
#include "format/layout.h"
#include "neve/engine.h"
#include "tensor/box.h"
#include "tensor/view.h"

namespace neve {
namespace {

constexpr size_t kMisfitsTold = 8;

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

bool IsOfTheSave(const absl::Status& status) {   // another save, or another copy of what it holds, may be whole
  return absl::IsDataLoss(status) || status.code() == absl::StatusCode::kOutOfRange;
}

bool Same(std::span<const int64_t> a, std::span<const int64_t> b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

// One tensor of the state and where its bytes come from.
struct Wanted {
  size_t tensor;                // of the state
  const ImageTensors* from;
  size_t index;                 // in `from`
  tensor::Dims offset;          // of the box in the coordinates that ReadBoxes takes
  bool whole;                   // all of it: read as a tensor
};

class Restoration {
 public:
  Restoration(Image& image, const RestoreRequest& request) : image_(image), request_(request) {}

  // Invalid, with what does not fit.
  absl::Status Plan() {
    NEVE_ASSIGN_OR_RETURN(own_, ImageTensors::Of(&image_));
    const auto& tensors = request_.state->structure().tensors;
    std::vector<bool> matched(request_.include.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!Included(tensors[i].name, &matched)) continue;
      NEVE_RETURN_IF_ERROR(PlanTensor(i));
    }
    for (size_t p = 0; p < matched.size(); ++p) {
      if (!matched[p]) return Invalid(absl::StrFormat("include=\"%s\" matches no tensor of the state", request_.include[p]));
    }
    if (misfits_.empty()) return absl::OkStatus();
    std::string text;
    for (size_t i = 0; i < std::min(misfits_.size(), kMisfitsTold); ++i) text += (i == 0 ? "" : "; ") + misfits_[i];
    if (misfits_.size() > kMisfitsTold) text += absl::StrFormat("; and %d more", misfits_.size() - kMisfitsTold);
    return Invalid(absl::StrFormat("the save of step %d does not fit the state, and nothing was written: %s", image_.info().step, text));
  }

  // After Plan: that all of it can be read, without touching a target. Memory: the largest tensor.
  absl::Status Verify() {
    absl::Status status = image_.VerifyAll();
    if (status.ok() && global_ != nullptr) status = global_->VerifyAll();
    if (!IsOfTheSave(status)) return status;
    // Some copy is bad, and another may do.
    for (const Wanted& wanted : wanted_) {
      const format::TensorSpec& spec = request_.state->structure().tensors[wanted.tensor];
      scratch_.resize(std::max<uint64_t>(1, tensor::ElementCount(spec.shape).value_or(0) * ItemBytes(spec.dtype)));
      const Wanted* const one = &wanted;
      NEVE_RETURN_IF_ERROR(ReadAll({&one, 1}));
    }
    scratch_ = {};
    return absl::OkStatus();
  }

  absl::Status Read() {
    std::vector<const Wanted*> all;
    for (const Wanted& wanted : wanted_) all.push_back(&wanted);
    NEVE_RETURN_IF_ERROR(ReadAll(all));
    if (!request_.restored.empty()) {
      std::fill(request_.restored.begin(), request_.restored.end(), 0);
      for (const Wanted& wanted : wanted_) request_.restored[wanted.tensor] = 1;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadAll(std::span<const Wanted* const> all) {
    std::vector<const Wanted*> own, elsewhere;
    for (const Wanted* const wanted : all) (wanted->from == own_.get() ? own : elsewhere).push_back(wanted);
    const absl::Status read = ReadWanted(own);
    if (!read.ok()) NEVE_RETURN_IF_ERROR(ReadOwnFromCopies(own, read));
    return ReadWanted(elsewhere);
  }

  // All of one source.
  absl::Status ReadWanted(std::span<const Wanted* const> all) {
    std::vector<TensorTarget> whole;
    std::vector<BoxTarget> boxes;
    std::map<int32_t, std::vector<engine::DeviceTarget>> on_device;
    for (const Wanted* const wanted : all) {
      const format::TensorSpec& spec = request_.state->structure().tensors[wanted->tensor];
      void* const target = scratch_.empty() ? request_.targets[wanted->tensor] : scratch_.data();
      const int64_t* const strides = scratch_.empty() ? spec.strides.data() : nullptr;   // there row-major
      if (OnDevice(wanted->tensor) && scratch_.empty()) {
        on_device[request_.state->device_of(wanted->tensor)].push_back(
            {wanted->index, wanted->offset, spec.shape, spec.strides, ItemBytes(spec.dtype), target});
      } else if (wanted->whole) {
        whole.push_back({wanted->index, target, strides});
      } else {
        boxes.push_back({wanted->index, wanted->offset.data(), spec.shape.data(), target, strides});
      }
    }
    if (!whole.empty()) NEVE_RETURN_IF_ERROR(all.front()->from->Read(whole));
    if (!boxes.empty()) NEVE_RETURN_IF_ERROR(all.front()->from->ReadBoxes(boxes));
    for (const auto& [ordinal, targets] : on_device) {
      NEVE_ASSIGN_OR_RETURN(const std::shared_ptr<device::Device> device, device::Find(ordinal));
      NEVE_RETURN_IF_ERROR(engine::FillDevice(*all.front()->from, device, targets));
    }
    return absl::OkStatus();
  }

  // Some bytes of the own image are bad (`status`). What is no piece must be good there; of pieces any rank's copy will do.
  absl::Status ReadOwnFromCopies(std::span<const Wanted* const> own, const absl::Status& status) {
    if (!IsOfTheSave(status) || image_.is_global()) return status;
    std::vector<const Wanted*> plain;
    std::vector<Wanted> pieces;
    for (const Wanted* const wanted : own) {
      if (own_->at(wanted->index).piece) {
        pieces.push_back({wanted->tensor, nullptr, 0, wanted->offset, false});
      } else {
        plain.push_back(wanted);
      }
    }
    if (pieces.empty() || !ReadWanted(plain).ok()) return status;
    absl::StatusOr<std::unique_ptr<Image>> copies = image_.Global({request_.find.take_rank0, std::vector<std::string>()});
    if (!copies.ok()) return status;
    NEVE_ASSIGN_OR_RETURN(const std::unique_ptr<ImageTensors> tensors, ImageTensors::Of(copies->get()));
    std::vector<const Wanted*> wanted;
    for (Wanted& piece : pieces) {
      const format::TensorSpec& spec = request_.state->structure().tensors[piece.tensor];
      const std::optional<size_t> found = tensors->Find(spec.piece->logical_name.empty() ? spec.name : spec.piece->logical_name);
      if (!found.has_value()) return status;
      piece.from = tensors.get();
      piece.index = *found;
      wanted.push_back(&piece);
    }
    return ReadWanted(wanted).ok() ? absl::OkStatus() : status;
  }

  bool OnDevice(size_t tensor) const { return !request_.state->devices().empty() && request_.state->device_of(tensor) >= 0; }

  bool Included(const std::string& name, std::vector<bool>* matched) const {
    bool included = request_.include.empty();
    for (size_t p = 0; p < request_.include.size(); ++p) {
      const std::string& pattern = request_.include[p];
      const bool matches = pattern == name || ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
      if (matches) (*matched)[p] = true;
      included |= matches;
    }
    return included;
  }

  absl::Status PlanTensor(size_t i) {
    const format::TensorSpec& spec = request_.state->structure().tensors[i];
    const tensor::Dims origin(spec.shape.size(), 0);
    const std::optional<size_t> own = own_->Find(spec.name);
    if (own.has_value()) {
      const TensorInfo info = own_->at(*own);
      const bool same_piece = info.piece && spec.piece != nullptr && Same(info.offset, spec.piece->offset) &&
                              Same(info.global_shape, spec.piece->global_shape) && Same(info.shape, spec.shape);
      if (same_piece || (!info.piece && spec.piece == nullptr)) {
        Take(i, spec, own_.get(), *own, info.shape, same_piece ? spec.piece->offset : origin, true);
        return absl::OkStatus();
      }
    }
    // A box of a logical tensor, or what another rank has.
    const bool could_be_elsewhere = spec.piece != nullptr || own.has_value() || image_.info().world > 1;
    const std::string& name = spec.piece == nullptr || spec.piece->logical_name.empty() ? spec.name : spec.piece->logical_name;
    if (could_be_elsewhere || image_.is_global()) {
      NEVE_RETURN_IF_ERROR(OpenGlobal());
      if (const std::optional<size_t> found = global_tensors_->Find(name)) {
        const TensorInfo info = global_tensors_->at(*found);
        Take(i, spec, global_tensors_.get(), *found, info.shape, spec.piece == nullptr ? origin : spec.piece->offset, false);
        return absl::OkStatus();
      }
    }
    if (!request_.partial) misfits_.push_back(absl::StrFormat("\"%s\" is not in it", name));
    return absl::OkStatus();
  }

  void Take(size_t i, const format::TensorSpec& spec, const ImageTensors* from, size_t index, std::span<const int64_t> shape,
            tensor::Dims offset, bool whole) {
    const TensorInfo info = from->at(index);
    const std::span<const int64_t> wanted =
        whole || spec.piece == nullptr ? std::span<const int64_t>(spec.shape) : spec.piece->global_shape;
    if (info.dtype != spec.dtype || !Same(shape, wanted)) {
      misfits_.push_back(absl::StrFormat("\"%s\" is %s %s there and %s %s here", info.name, Name(info.dtype), ShapeText(shape),
                                         Name(spec.dtype), ShapeText(wanted)));
      return;
    }
    if (OnDevice(i)) {
      const absl::StatusOr<tensor::Density> density = tensor::Classify(spec.shape, spec.strides);
      if (!density.ok() || (*density != tensor::Density::kContiguous && *density != tensor::Density::kPermuted)) {
        misfits_.push_back(absl::StrFormat("\"%s\" lies on a device, and not dense", spec.name));
        return;
      }
    }
    if (info.bytes != 0 && !tensor::IsEmptyBox(spec.shape) && request_.targets[i] == nullptr) {
      misfits_.push_back(absl::StrFormat("\"%s\" has no target", spec.name));
      return;
    }
    wanted_.push_back({i, from, index, std::move(offset), whole});
  }

  absl::Status OpenGlobal() {
    if (global_tensors_ != nullptr) return absl::OkStatus();
    Image* global = &image_;
    if (!image_.is_global()) {
      NEVE_ASSIGN_OR_RETURN(global_, image_.Global({request_.find.take_rank0, request_.find.include}));
      global = global_.get();
    }
    NEVE_ASSIGN_OR_RETURN(global_tensors_, ImageTensors::Of(global));
    return absl::OkStatus();
  }

  Image& image_;
  const RestoreRequest& request_;
  std::unique_ptr<Image> global_;
  std::unique_ptr<ImageTensors> own_, global_tensors_;
  std::vector<Wanted> wanted_;
  std::vector<std::string> misfits_;
  std::vector<std::byte> scratch_;   // while it only verifies: where one tensor goes
};

// One rank's part of a restore, whose end the other ranks wait to hear of.
absl::Status Do(const std::function<absl::Status()>& part) {
  try {
    return part();
  } catch (const std::bad_alloc&) {
    return Exhausted("no memory to restore with", ENOMEM);
  }
}

// Patterns that match the tensors of the state, by the names under which ranks hold them together.
std::vector<std::string> NamesOf(const State& state) {
  std::vector<std::string> names;
  for (const format::TensorSpec& spec : state.structure().tensors) {
    const std::string& name = spec.piece == nullptr || spec.piece->logical_name.empty() ? spec.name : spec.piece->logical_name;
    std::string pattern;
    for (const char c : name) pattern += c == '*' || c == '?' || c == '[' ? std::string{'[', c, ']'} : std::string{c};
    names.push_back(std::move(pattern));
  }
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Image>> RestoreInto(Engine& engine, const RestoreRequest& request) {
  if (request.state != nullptr) {
    const size_t count = request.state->structure().tensors.size();
    if (request.targets.size() != count) {
      return Invalid(absl::StrFormat("a state of %d tensors needs as many targets, not %d", count, request.targets.size()));
    }
    if (!request.restored.empty() && request.restored.size() != count) return Invalid("`restored` needs one byte a tensor");
  }
  RestoreRequest wanted = request;
  FindRequest& find = wanted.find;
  if (request.only_state && request.state != nullptr && !find.include.has_value()) find.include = NamesOf(*request.state);
  absl::Status first;
  while (true) {
    absl::StatusOr<std::unique_ptr<Image>> image = engine.Find(find);
    if (!image.ok()) {
      const bool none_left = absl::IsNotFound(image.status()) || absl::IsDataLoss(image.status());
      return !first.ok() && none_left ? first : image.status();
    }
    absl::Status status;
    // Ranks go through the same steps whatever happens to one of them: each Agree is all ranks'.
    std::optional<Restoration> restoration;
    if (request.state != nullptr) restoration.emplace(**image, wanted);
    if (request.atomic) {
      status = engine.Agree(Do([&] {
        if (!restoration.has_value()) return (*image)->VerifyAll();
        const absl::Status planned = restoration->Plan();
        return planned.ok() ? restoration->Verify() : planned;
      }));
    }
    if (status.ok()) {
      status = engine.Agree(Do([&]() -> absl::Status {
        if (!restoration.has_value()) return absl::OkStatus();
        if (!request.atomic) NEVE_RETURN_IF_ERROR(restoration->Plan());
        return restoration->Read();
      }));
    }
    restoration.reset();
    if (status.ok()) return image;
    if (!request.find.fallback || !IsOfTheSave(status)) return status;
    const SaveInfo& info = (*image)->info();
    obs::Log(obs::Level::kWarning, absl::StrFormat("event=fallback step=%d save=%s error=\"%s\"", info.step, info.save.ToString(),
                                                   std::string(status.message())));
    if (first.ok()) first = status;
    find.before = info.save;
    find.step.reset();
  }
}

absl::StatusOr<std::string> ValuesOf(const Image& image) {
  NEVE_ASSIGN_OR_RETURN(const format::ImageHeader header, format::ParseImageHeader(image.header(), image.image_bytes()));
  const std::string* values = header.FindMetadata(format::kValuesKey);
  if (values == nullptr) return NotFound("the image holds no values");
  const size_t end = values->find_last_not_of(' ');
  return values->substr(0, end == std::string::npos ? 0 : end + 1);
}

absl::StatusOr<std::string> ReadBlob(Image& image, uint32_t number) {
  NEVE_ASSIGN_OR_RETURN(const format::ImageHeader header, format::ParseImageHeader(image.header(), image.image_bytes()));
  const std::string name = std::string(format::kBlobPrefix) + std::to_string(number);
  const format::HeaderTensor* stored = header.Find(name);
  if (stored == nullptr) return NotFound(absl::StrFormat("the image holds no blob %d", number));
  if (stored->bytes < format::kBlobPrefixBytes) return Damaged(absl::StrFormat("%s is shorter than its length field", name));
  unsigned char prefix[format::kBlobPrefixBytes];
  const ReadRange head{.offset = stored->offset, .bytes = sizeof prefix, .target = prefix};
  NEVE_RETURN_IF_ERROR(image.Read({&head, 1}));
  uint64_t length = 0;
  for (size_t i = sizeof prefix; i-- > 0;) length = length << 8 | prefix[i];
  if (length > stored->bytes - format::kBlobPrefixBytes) {
    return Damaged(
        absl::StrFormat("%s says it holds %d bytes, and has room for %d", name, length, stored->bytes - format::kBlobPrefixBytes));
  }
  std::string payload(length, '\0');
  const ReadRange body{.offset = stored->offset + format::kBlobPrefixBytes, .bytes = length, .target = payload.data()};
  if (length != 0) NEVE_RETURN_IF_ERROR(image.Read({&body, 1}));
  return payload;
}

}  // namespace neve
