// Torch's tar archives: any bytes are read or refused, and what was read is an image all of whose bytes can be read. The sums of the
// headers are put right first: few changed archives would be looked at otherwise.
#include <cstdio>
#include <string_view>

#include "base/error/check.h"
#include "format/readers.h"
#include "fuzz/fuzz.h"

namespace neve::fuzz {
namespace {

constexpr size_t kBlockBytes = 512, kSizeAt = 124, kSumAt = 148, kSumBytes = 8, kMembers = 16;

void PutSum(char* block) {
  unsigned sum = 0;
  for (size_t i = 0; i < kBlockBytes; ++i) sum += i >= kSumAt && i < kSumAt + kSumBytes ? ' ' : static_cast<unsigned char>(block[i]);
  char text[kSumBytes + 1];
  std::snprintf(text, sizeof(text), "%06o", sum);
  std::copy_n(text, kSumBytes - 1, block + kSumAt);
  block[kSumAt + kSumBytes - 1] = ' ';
}

std::string Member(const std::string& name, const std::string& content, char type = '0') {
  std::string block(kBlockBytes, '\0');
  block.replace(0, name.size(), name);
  char size[12];
  std::snprintf(size, sizeof(size), "%011zo", content.size());
  block.replace(kSizeAt, sizeof(size) - 1, size);
  block[156] = type;
  block.replace(257, 8, std::string("ustar\0" "00", 8));
  PutSum(block.data());
  block += content;
  block.resize((block.size() + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  return block;
}

std::string Words(std::initializer_list<char> words, bool is_big = false) {
  std::string text;
  for (const char word : words) text += is_big ? std::string(7, '\0') + word : word + std::string(7, '\0');
  return text;
}

std::string Storages(const std::string& parts, bool is_big = false) {
  using std::string_literals::operator""s;
  return "\x80\x02K\x01.\x80\x02K\x07X\x03\0\0\0cpuctorch\nFloatStorage\n\x87."s + Words({4}, is_big) + std::string(16, 'f') +
         "\x80\x02"s + parts + ".";
}

std::string Tensors(bool is_big = false) {
  using std::string_literals::operator""s;
  // The rank has 4 bytes of its own, which stand first in either order.
  return "\x80\x02K\x01.\x80\x02K\x09K\x07" "ctorch\nFloatTensor\n\x87."s + (is_big ? "\0\0\0\2\0\0\0\0"s : Words({2})) +
         Words({2, 2, 2, 1, 0}, is_big);
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  using std::string_literals::operator""s;
  const std::string object = "\x80\x02}(X\x01\0\0\0wX\x01\0\0\0" "9QX\x01\0\0\0sX\x01\0\0\0" "7QX\x01\0\0\0vX\x01\0\0\0" "9Qu."s;
  const std::string facts = "\x80\x02}X\x0d\0\0\0little_endian\x88s."s, big = "\x80\x02}X\x0d\0\0\0little_endian\x89s."s;
  const std::string end(2 * kBlockBytes, '\0');
  const auto whole = [&](const std::string& info, const std::string& tensors, const std::string& storages) {
    return Member("sys_info", info) + Member("pickle", object) + Member("tensors", tensors) + Member("storages", storages) + end;
  };
  return {whole(facts, Tensors(), Storages("]")), whole(facts, Tensors(), Storages("](K\x08K\x07K\x01K\x02ta")),
          whole(big, Tensors(true), Storages("]", true)),
          Member("x", "11 size=" + std::to_string(facts.size()) + "\n", 'x') + whole(facts, Tensors(), Storages("]"))};
}

}  // namespace neve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neve;
  std::string archive(reinterpret_cast<const char*>(data), size);
  size_t at = 0;
  for (size_t member = 0; member < fuzz::kMembers && at + fuzz::kBlockBytes <= archive.size(); ++member) {
    if (archive.find_first_not_of('\0', at) >= at + fuzz::kBlockBytes) break;
    fuzz::PutSum(archive.data() + at);
    size_t bytes = 0;
    for (size_t i = fuzz::kSizeAt; i < fuzz::kSizeAt + 11 && archive[at + i] >= '0' && archive[at + i] <= '7'; ++i) {
      bytes = bytes * 8 + static_cast<size_t>(archive[at + i] - '0');
    }
    if (bytes > archive.size()) break;
    at += fuzz::kBlockBytes + (bytes + fuzz::kBlockBytes - 1) / fuzz::kBlockBytes * fuzz::kBlockBytes;
  }
  const auto contents = format::OpenTorchTar(format::MakeMemorySource(std::move(archive), "fuzz"), {});
  if (!contents.ok() || (*contents)->image_bytes() > (16u << 20)) return 0;
  std::string bytes((*contents)->image_bytes(), '\0');
  NEVE_CHECK((*contents)->Read(0, std::as_writable_bytes(std::span(bytes))).ok());
  NEVE_CHECK(std::string_view(bytes).starts_with((*contents)->header_text()));
  std::vector<format::ContentsProblem> problems;
  NEVE_CHECK((*contents)->Check({}, &problems).ok() && problems.empty());
  return 0;
}
