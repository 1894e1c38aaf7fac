// Images of real memory, written as files, to be read back through Contents.
#ifndef NEVE_TESTS_FORMAT_CONTENTS_FIXTURE_H_
#define NEVE_TESTS_FORMAT_CONTENTS_FIXTURE_H_

#include <fcntl.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/os/random.h"
#include "base/os/syscalls.h"
#include "format/contents.h"
#include "format/format_fixtures.h"
#include "format/safetensors_contents.h"

namespace neve::format {

// The image of tensors at real addresses.
inline std::string ImageOf(const State& state, std::string_view values = "") {
  const auto layout = state.Build();
  if (layout == nullptr) return "";
  std::string image = HeaderOf(*layout, values);
  image.resize(layout->image_bytes(), '\0');
  auto* const bytes = reinterpret_cast<std::byte*>(image.data());
  for (const StoredTensor& stored : layout->stored()) {
    if (stored.bytes == 0 || stored.source == StoredTensor::Source::kBlob) continue;
    const auto* from = static_cast<const std::byte*>(state.addresses[stored.index]) + stored.address_delta;
    if (stored.contiguous) {
      std::memcpy(bytes + stored.offset, from, stored.bytes);
    } else {
      const tensor::StridedCopy copy(stored.shape, stored.strides, ItemBytes(state.structure.tensors[stored.index].dtype));
      copy.Gather(from, 0, copy.logical_bytes(), bytes + stored.offset);
    }
  }
  return image;
}

inline absl::StatusOr<std::unique_ptr<Contents>> OpenText(std::string_view file, const ContentsOptions& options = {}) {
  const std::string path = os::JoinPath(::testing::TempDir(), "contents-" + os::RandomHex(12) + ".safetensors");   // tests run side by side
  const absl::Status written = os::WriteFileAtomic(path, file);
  if (!written.ok()) return written;
  NEVE_ASSIGN_OR_RETURN(os::File opened, os::Open(path, O_RDONLY));
  NEVE_RETURN_IF_ERROR(os::Unlink(path));
  return OpenSafetensors(std::move(opened), options);
}

}  // namespace neve::format

#endif  // NEVE_TESTS_FORMAT_CONTENTS_FIXTURE_H_
