// Headers of .npy files: any bytes are parsed or refused; what was parsed says where the data begins, within what was given.
#include <string_view>

#include "base/error/check.h"
#include "format/npy_header.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {

std::vector<std::string> FuzzSeeds() {
  using std::string_literals::operator""s;
  const auto npy = [](char version, const std::string& header) {
    std::string text = "\x93NUMPY"s + version + '\0' + static_cast<char>(header.size()) + '\0';
    if (version > 1) text += std::string(2, '\0');
    return text + header;
  };
  return {
      npy(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }\n"),
      npy(2, "{'descr': '|S5', 'fortran_order': True, 'shape': (2,), }"),
      npy(1, "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (), }"),
      npy(1, "{'descr': [('a', '<i4'), ('b', '<f4', (2,))], 'fortran_order': False, 'shape': (1L,), }"),
  };
}

}  // namespace neve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto header = format::ParseNpyHeader(text);
  if (!header.ok()) return 0;
  NEVE_CHECK(header->header_bytes <= size && tensor::ElementCount(header->shape).ok());
  NEVE_CHECK(header->dtype.empty() == (header->item_bytes == 0));
  return 0;
}
