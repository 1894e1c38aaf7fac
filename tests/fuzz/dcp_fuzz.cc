// `.metadata` of DCP folders: any pickle is read or refused; pieces that were taken cover their tensors, and no path leads out.
#include <string_view>

#include "base/error/check.h"
#include "format/dcp_metadata.h"
#include "format/pickle_machine.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {
namespace {

std::string Text(std::string_view text) {
  return std::string("X") + static_cast<char>(text.size()) + std::string(3, '\0') + std::string(text);
}
std::string Object(std::string_view module, std::string_view name, const std::string& state) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n)\x81" + state + "b";
}
std::string Numbers(char a, char b) { return std::string("K") + a + "K" + b + "\x86"; }

}  // namespace

std::vector<std::string> FuzzSeeds() {
  constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
  const auto chunk = [&](char row) {
    return Object(kModule, "ChunkStorageMetadata",
                  "}(" + Text("offsets") + Numbers(row, 0) + Text("sizes") + Numbers(2, 3) + "u");
  };
  const auto place = [&](char row) {
    const std::string index =
        Object(kModule, "MetadataIndex", "}(" + Text("fqn") + Text("w") + Text("offset") + Numbers(row, 0) + "u");
    const std::string where =
        Object("torch.distributed.checkpoint.filesystem", "_StorageInfo",
               "}(" + Text("relative_path") + Text("__0_0.distcp") + Text("offset") + "K\x05" + Text("length") + "K\x09u");
    return index + where;
  };
  const std::string properties = Object(kModule, "TensorProperties", "(ctorch\nfloat32\nN\x88t");
  const std::string tensor = Object(
      kModule, "TensorStorageMetadata",
      "}(" + Text("properties") + properties + Text("size") + Numbers(4, 3) + Text("chunks") + "](" + chunk(0) + chunk(2) + "eu");
  const std::string all = "}(" + Text("state_dict_metadata") + "}" + Text("w") + tensor + "s" + Text("planner_data") + "}" +
                          Text("w") + Text("m") + Text("w") + "\x86s" + Text("storage_data") + "}(" + place(0) + place(2) + "uu";
  return {"\x80\x02" + Object(kModule, "Metadata", all) + "."};
}

}  // namespace neve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  const auto pickle = format::ReadPickle(std::string(reinterpret_cast<const char*>(data), size), "fuzz",
                                         {.pickle_bytes_max = 1u << 20, .nodes_max = 1u << 16});
  if (!pickle.ok()) return 0;
  const auto entries = format::ReadDcpMetadata(pickle->graph);
  if (!entries.ok()) return 0;
  for (const format::DcpEntry& entry : *entries) {
    NEVE_CHECK(!entry.path.empty());
    for (const format::DcpPiece& piece : entry.pieces) {
      NEVE_CHECK(!piece.place.file.starts_with('/') && piece.place.file != "..");
      for (size_t d = 0; d < entry.shape.size(); ++d) NEVE_CHECK(piece.offset[d] + piece.sizes[d] <= entry.shape[d]);
    }
  }
  return 0;
}
