// Directories of zip archives: any bytes are read or refused; what an entry claims lies in the file, and is inflated within its
// bounds.
#include <string_view>

#include "base/error/check.h"
#include "format/zip_directory.h"
#include "format/zip_text.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {

std::vector<std::string> FuzzSeeds() {
  using format::ZipText;
  return {
      ZipText({{"a/data.pkl", "pickle", false, true}, {"a/data/0", "01234567"}}),
      ZipText({{"d", std::string(300, 'x') + "end", true}, {"e", "", false}}, "a comment"),
      ZipText({{"a", "1"}, {"b", "22"}, {"c", "333", true, true}}, "", true),
  };
}

}  // namespace neve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  constexpr uint64_t kInflatedMax = 1u << 20;
  const auto source = format::MakeMemorySource(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  for (const bool lenient : {false, true}) {
    std::vector<std::string> notes;
    const auto zip = format::ZipDirectory::Read(*source, {.lenient = lenient, .notes = &notes});
    if (!zip.ok()) continue;
    for (const format::ZipEntry& entry : zip->entries()) {
      NEVE_CHECK(entry.data_offset + entry.stored_bytes <= size);
      NEVE_CHECK(zip->Find(entry.name) == &entry);
      if (const auto text = format::ReadZipEntry(*source, entry, kInflatedMax); text.ok())
        NEVE_CHECK(text->size() == entry.bytes);
      format::CheckZipDescriptor(*source, entry).IgnoreError();  // either answer is right
    }
  }
  return 0;
}
