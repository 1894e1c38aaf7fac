// The values text and blobs: any bytes are decoded or refused, in bounded time, and what was decoded can be shown.
#include <string_view>

#include "base/error/check.h"
#include "format/values.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {

std::vector<std::string> FuzzSeeds() {
  return {"ntfi-12;d0x1.8p+1;x7ff8000000000001;'plain's4pyT;yAAEC;",
          "[i1;(i2;n){'k'd0x1p-3;}E{'a'[t f]}C{i3;i1;}S(i1;)F()]",
          "N'<f8'yAAAAAAAA8D8;Z(i2;i3;)T'float32'D'cuda:0'@'m.Colour''RED'cd0x1p+0;d-0x1p+0;",
          std::string("v[i1;i2;]"), std::string("y\0\1\2", 4), "s text", std::string("p\x80\x02K\x01.", 6)};
}

}  // namespace neve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  format::ValuesReader reader(text);
  while (!reader.AtEnd()) {
    const size_t before = reader.position();
    const auto value = reader.Next();
    if (!value.ok()) {
      NEVE_CHECK(!reader.Next().ok());   // the first failure sticks
      break;
    }
    NEVE_CHECK(reader.position() > before && reader.position() <= size);
    NEVE_CHECK(format::DescribeValue(*value, 100).size() < 1000);
  }
  format::DescribeBlob(text, 100);
  return 0;
}
