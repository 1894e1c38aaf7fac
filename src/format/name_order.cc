// A sort by eight bytes at a time: comparing whole names touches two far strings a comparison and reads their common
// beginning again every time; here each eight bytes are read once into an integer beside the index.
#include "format/name_order.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace neve::format {
namespace {

constexpr size_t kWord = 8;

struct Entry {
  uint64_t word;   // names[index] at the current depth, big endian, zeros past its end
  uint32_t index;
  uint32_t left;   // bytes left at this depth, at most kWord + 1: tells an end from zero bytes
};

class NameSorter {
 public:
  explicit NameSorter(std::span<const std::string_view> names) : names_(names) {}

  void Sort(std::span<Entry> entries, size_t depth) const {
    // Few names, or so deep that the recursion should end: plain comparison.
    constexpr size_t kFew = 16, kDepthMax = 64 * kWord;
    if (entries.size() < kFew || depth >= kDepthMax) {
      std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
        const int order = names_[a.index].substr(depth).compare(names_[b.index].substr(depth));
        return order != 0 ? order < 0 : a.index < b.index;
      });
      return;
    }
    for (Entry& entry : entries) Load(depth, &entry);
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      if (a.word != b.word) return a.word < b.word;
      return a.left != b.left ? a.left < b.left : a.index < b.index;
    });
    for (size_t first = 0; first < entries.size();) {
      size_t last = first + 1;
      while (last < entries.size() && entries[last].word == entries[first].word && entries[last].left == entries[first].left) {
        ++last;
      }
      if (last - first > 1 && entries[first].left > kWord) Sort(entries.subspan(first, last - first), depth + kWord);
      first = last;
    }
  }

 private:
  void Load(size_t depth, Entry* entry) const {
    const std::string_view rest = names_[entry->index].substr(depth);
    unsigned char bytes[kWord] = {};
    std::memcpy(bytes, rest.data(), std::min(rest.size(), kWord));
    uint64_t word = 0;
    for (const unsigned char byte : bytes) word = word << 8 | byte;
    entry->word = word;
    entry->left = static_cast<uint32_t>(std::min(rest.size(), kWord + 1));
  }

  std::span<const std::string_view> names_;
};

}  // namespace

std::vector<uint32_t> NameOrder(std::span<const std::string_view> names) {
  std::vector<Entry> entries(names.size());
  for (uint32_t i = 0; i < names.size(); ++i) entries[i].index = i;
  NameSorter(names).Sort(entries, 0);
  std::vector<uint32_t> order(names.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = entries[i].index;
  return order;
}

}  // namespace neve::format
