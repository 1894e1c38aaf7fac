// Headers of safetensors files, ours and others': any bytes are parsed or refused; what is accepted keeps to the file.
#include <cstring>
#include <string_view>

#include "base/error/check.h"
#include "format/image_header.h"
#include "format/tree_walk.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {
namespace {

std::string WithLength(const std::string& json) {
  const uint64_t length = json.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + json;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  return {
      WithLength(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})"),
      WithLength(R"({"__metadata__":{"format":"pt","neve.tree":"{\"d\":[[\"a\",\"t\"]]}","neve.values":"1 2.5   "},)"
                 R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}     )"),
      WithLength(R"({"__metadata__":{"neve.format":"1","neve.values":"i7;{'k't}","neve.tree":"{\"v\":1,\"root\":{\"d\":[1,[\"x\",)"
                 R"({\"l\":[\"v\",{\"r\":\"a\"}],\"t\":\"tuple\"}],[\"~i5\",{\"T\":1,\"meta\":1,\"dt\":\"f\",\"sh\":[2],\"st\":[1]}],)"
                 R"([\"o\",{\"o\":\"state\",\"c\":[{\"d\":[],\"a\":\"v\",\"t\":\"O\"}]}]]}}"},)"
                 R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
      WithLength("{}"),
      "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
      "PK\x03\x04",
  };
}

}  // namespace neve::fuzz

// The input is a header; the data behind it is as long as the header's last tensor wants, or not.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  const std::string_view head(reinterpret_cast<const char*>(data), size);
  for (const uint64_t data_bytes : {0, 4, 24, 26, 1000}) {
    const uint64_t file_bytes = size + data_bytes;
    const auto needed = format::HeaderBytesNeeded(head.substr(0, 8), file_bytes);
    if (!needed.ok() || *needed > size) continue;
    const auto header = format::ParseImageHeader(head, file_bytes);
    if (!header.ok()) continue;
    for (const format::HeaderTensor& tensor : header->tensors) {
      NEVE_CHECK(tensor.offset >= header->header_bytes && tensor.offset <= file_bytes && tensor.bytes <= file_bytes - tensor.offset);
    }
    const auto logical = format::LogicalTensors(*header);
    if (!logical.ok()) continue;
    (void)format::WalkTree(*header, *logical, nullptr).ok();
    for (const format::LogicalTensor& tensor : *logical) NEVE_CHECK(header->Find(tensor.stored) != nullptr);
  }
  return 0;
}
