// Pickles: any bytes become a graph or are refused, and any graph becomes an image that can be parsed, or is refused.
#include <string_view>

#include "base/error/check.h"
#include "format/pickle_machine.h"
#include "format/pickle_tree.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {
namespace {

// Storages of 64 bytes, whatever their ids say of where they lie.
class AnyStorages : public format::TorchStorages {
 public:
  AnyStorages(const format::PickleGraph& graph, format::ImageMaker* maker) : graph_(graph), maker_(maker) {}
  absl::StatusOr<Found> Find(format::PickleNode persistent, uint32_t) override {
    NEVE_ASSIGN_OR_RETURN(const format::TorchStorageId id, format::ReadStorageId(graph_, persistent));
    if (id.count > 64) return NotFound("no such storage");
    Found found;
    found.dtype = id.type.dtype;
    found.storage = maker_->AddMemory(std::string(id.count * ItemBytes(id.type.dtype), 'x'));
    return found;
  }
  absl::StatusOr<uint32_t> Resolve(const Found& found, const format::TorchTensor&, DType, uint64_t) override {
    return found.storage;
  }
  absl::Status ReadSmall(const Found&, uint64_t, std::string* bytes) override {
    bytes->assign(16, 'g');
    return absl::OkStatus();
  }
  bool LocatePickle(uint64_t, format::Backing*) const override { return false; }

 private:
  const format::PickleGraph& graph_;
  format::ImageMaker* maker_;
};

class NoOrigin : public format::Origin {
 public:
  absl::Status Check(const std::function<void(uint64_t)>&, std::vector<format::ContentsProblem>*) const override {
    return absl::OkStatus();
  }
};

}  // namespace

void Try(std::string pickle) {
  const auto read = format::ReadPickle(std::move(pickle), "fuzz", {.pickle_bytes_max = 1u << 20, .nodes_max = 1u << 16});
  if (!read.ok()) return;
  format::ImageMaker maker;
  AnyStorages storages(read->graph, &maker);
  if (!format::PickleTree(read->graph, &storages, &maker).Build().ok()) return;
  const auto contents = maker.Make(format::ContentsKind::kTorchZip, {"fuzz"}, {}, std::make_shared<NoOrigin>());
  if (!contents.ok()) return;
  std::string bytes((*contents)->image_bytes(), '\0');
  NEVE_CHECK((*contents)->Read(0, std::as_writable_bytes(std::span(bytes))).ok());
  NEVE_CHECK(std::string_view(bytes).starts_with((*contents)->header_text()));
}

std::vector<std::string> FuzzSeeds() {
  using std::string_literals::operator""s;
  const std::string storage =
      "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"
      "0X\x03\x00\x00\x00"
      "cpuK\x04tQ"s;
  const std::string tensor = "ctorch._utils\n_rebuild_tensor_v2\n("s + storage +
                             "K\x00K\x02K\x02\x86K\x02K\x01\x86\x89"
                             "ccollections\nOrderedDict\n)RtR"s;
  return {
      "\x80\x02}(X\x01\x00\x00\x00"
      "w"s +
          tensor +
          "q\x01X\x01\x00\x00\x00"
          "sh\x01X\x01\x00\x00\x00"
          "nK\x07u."s,
      "\x80\x02ctorch._utils\n_rebuild_parameter\n"s + tensor +
          "\x88"
          "ccollections\nOrderedDict\n)R\x87R."s,
      "\x80\x02"
      "ctrain\nConfig\n)\x81}(X\x01\x00\x00\x00"
      "w"s +
          tensor + "ub."s,
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00"
      "aG\x3f\xf0\x00\x00\x00\x00\x00\x00u}X\x01\x00\x00\x00mNsb."s,
      "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8f(\x8c\x01x\x94K\x05\x90\x8c\x01m\x8c\x01n\x93)\x81\x87."s,
      "(dp0\nVa\np1\nI1\nsS'b'\np2\n(lp3\nL12345678901234567890L\naF1.5\naI01\nas."s,
      "\x80\x02"
      "cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
      "C\x01"
      "b\x87R(K\x01K\x02\x85"
      "cnumpy\ndtype\nX\x02\x00\x00\x00"
      "f4\x89\x88\x87R(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
      "C\x08"
      "01234567tb."s,
  };
}

}  // namespace neve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  neve::fuzz::Try(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
