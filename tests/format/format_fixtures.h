// States, headers and files made for the tests of the format.
#ifndef NEVE_TESTS_FORMAT_FORMAT_FIXTURES_H_
#define NEVE_TESTS_FORMAT_FORMAT_FIXTURES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "format/image_header.h"
#include "format/layout.h"

namespace neve::format {

// A state under construction. Addresses are numbers: a layout never reads the memory.
struct State {
  Structure structure;
  std::vector<const void*> addresses;
  Capacities capacities;

  State() { capacities.values_bytes = 64; }
  // Strides: empty means contiguous.
  State& Add(std::string name, DType dtype, tensor::Dims shape, tensor::Dims strides, uint64_t address) {
    if (strides.empty()) strides = tensor::ContiguousStrides(shape);
    structure.tensors.push_back({std::move(name), dtype, std::move(shape), std::move(strides)});
    addresses.push_back(reinterpret_cast<const void*>(address));
    return *this;
  }
  // The last tensor is a box of a logical tensor.
  State& AsPiece(tensor::Dims global_shape, tensor::Dims offset, std::string logical_name = "") {
    structure.tensors.back().piece =
        std::make_shared<Piece>(Piece{std::move(global_shape), std::move(offset), std::move(logical_name)});
    return *this;
  }
  absl::StatusOr<std::shared_ptr<const Layout>> TryBuild() const {
    return Layout::Build(std::make_shared<Structure>(structure), addresses, capacities);
  }
  std::shared_ptr<const Layout> Build() const {
    auto layout = TryBuild();
    EXPECT_TRUE(layout.ok()) << layout.status();
    return layout.ok() ? *layout : nullptr;
  }
};

inline std::string HeaderOf(const Layout& layout, std::string_view values = "") {
  std::string header(layout.header_bytes(), '?');
  const absl::Status status = layout.WriteHeader(values, std::as_writable_bytes(std::span(header)));
  EXPECT_TRUE(status.ok()) << status;
  return header;
}

inline ImageHeader Parsed(const Layout& layout) {
  auto header = ParseImageHeader(HeaderOf(layout), layout.image_bytes());
  EXPECT_TRUE(header.ok()) << header.status();
  return header.value_or(ImageHeader{});
}

inline std::vector<LogicalTensor> Logical(const Layout& layout) {
  auto tensors = LogicalTensors(Parsed(layout));
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  return tensors.value_or(std::vector<LogicalTensor>{});
}

// A file's head from its JSON, unpadded.
inline std::string HeadOf(std::string_view json) {
  std::string head(8, '\0');
  for (size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(json.size() >> (8 * i));
  return head.append(json);
}

inline absl::StatusOr<ImageHeader> ParseJson(std::string_view json, uint64_t data_bytes, const HeaderOptions& options = {}) {
  const std::string head = HeadOf(json);
  return ParseImageHeader(head, head.size() + data_bytes, options);
}

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace neve::format

#endif  // NEVE_TESTS_FORMAT_FORMAT_FIXTURES_H_
