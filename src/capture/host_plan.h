// The part of a state that lies in host memory, where the rest lies on a device: header, blobs and the host's tensors, copied
// into the image without digests. Those are made of the whole image once the device's part is there.
#ifndef NEVE_CAPTURE_HOST_PLAN_H_
#define NEVE_CAPTURE_HOST_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error/status.h"
#include "base/sync/crew.h"
#include "capture/capture.h"
#include "format/layout.h"
#include "tensor/view.h"

namespace neve::capture {

class HostPlan {
 public:
  // `devices`: one a tensor, < 0 for host memory.
  HostPlan(std::shared_ptr<const format::Layout> layout, std::span<const int32_t> devices);

  // The header alone, first: it can still refuse the values.
  absl::Status WriteHeader(const CaptureInput& input, std::span<std::byte> image) const;
  // Everything else; when it returns, the host's tensors may change. Allocates nothing.
  void Run(const CaptureInput& input, std::span<std::byte> image, sync::Crew& crew) const;

 private:
  struct Part {
    uint32_t stored;
    int32_t strided;  // into strided_; -1: contiguous
    uint64_t from, to;
  };
  void Copy(const Part& part, const CaptureInput& input, std::byte* image) const;

  std::shared_ptr<const format::Layout> layout_;
  std::vector<Part> parts_;
  std::vector<uint32_t> groups_;  // first part of each share of the crew's work, and one past the last
  std::vector<tensor::StridedCopy> strided_;
  uint64_t bytes_ = 0;
};

}  // namespace neve::capture

#endif  // NEVE_CAPTURE_HOST_PLAN_H_
