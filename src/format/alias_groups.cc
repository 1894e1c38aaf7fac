#include "format/alias_groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "format/layout.h"

namespace neve::format {
namespace {

// What a view touches, as a pattern: runs of `run` bytes whose distances are multiples of `period` (0: one run only).
struct Footprint {
  uint64_t begin, end;
  uint64_t run, period;
};

struct Interval {
  uint64_t begin;
  uint32_t index;
};

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

uint64_t TouchedBytes(const TensorSpec& spec) {
  uint64_t bytes = ItemBytes(spec.dtype);
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.strides[i] != 0) bytes *= static_cast<uint64_t>(spec.shape[i]);
  }
  return bytes;
}

Footprint FootprintOf(const TensorSpec& spec, uint64_t begin) {
  const uint64_t item = ItemBytes(spec.dtype);
  std::vector<std::pair<uint64_t, uint64_t>> steps;   // (stride in bytes, extent)
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] > 1) steps.emplace_back(static_cast<uint64_t>(spec.strides[i]) * item, spec.shape[i]);
  }
  std::sort(steps.begin(), steps.end());
  Footprint print = {begin, begin + tensor::SpanBytes(spec.shape, spec.strides, item), item, 0};
  for (const auto& [stride, extent] : steps) {
    if (print.period == 0 && stride <= print.run) {
      print.run += stride * (extent - 1);
    } else {
      print.period = std::gcd(print.period, stride);
    }
  }
  return print;
}

// Whether the two surely share no byte. False where it cannot be told.
bool Disjoint(const Footprint& a, const Footprint& b) {
  if (a.end <= b.begin || b.end <= a.begin) return true;
  const uint64_t period = std::gcd(a.period, b.period);
  if (period == 0 || a.run > period || b.run > period) return false;
  // On a circle of `period` bytes each is one arc, wherever its runs lie.
  const uint64_t a_at = a.begin % period, b_at = b.begin % period;
  return (b_at + period - a_at) % period >= a.run && (a_at + period - b_at) % period >= b.run;
}

class Groups {
 public:
  explicit Groups(std::span<const TensorSpec> tensors) : tensors_(tensors) {}

  // `members` are by ascending address.
  void Add(std::span<const Interval> members, uint64_t end) {
    if (members.size() < 2) return;
    const uint64_t begin = members.front().begin;
    uint64_t touched = 0;
    for (const Interval& member : members) touched += TouchedBytes(tensors_[member.index]);
    constexpr size_t kPairsMax = 2048;
    if (end - begin > 2 * touched && members.size() <= kPairsMax) return AddApart(members);
    AliasGroup group;
    group.begin = begin;
    group.end = end;
    for (const Interval& member : members) group.members.push_back(member.index);
    std::sort(group.members.begin(), group.members.end());
    groups_.push_back(std::move(group));
  }

  std::vector<AliasGroup> Take() {
    std::sort(groups_.begin(), groups_.end(),
              [](const AliasGroup& a, const AliasGroup& b) { return a.members.front() < b.members.front(); });
    return std::move(groups_);
  }

 private:
  // Splits into the parts that are connected by pairs which may share an element.
  void AddApart(std::span<const Interval> members) {
    std::vector<Footprint> prints;
    for (const Interval& member : members) prints.push_back(FootprintOf(tensors_[member.index], member.begin));
    std::vector<bool> placed(members.size(), false);
    for (size_t first = 0; first < members.size(); ++first) {
      if (placed[first]) continue;
      placed[first] = true;
      std::vector<size_t> part = {first};
      AliasGroup group;
      group.begin = prints[first].begin;
      group.end = prints[first].end;
      for (size_t next = 0; next < part.size(); ++next) {
        const Footprint& print = prints[part[next]];
        group.begin = std::min(group.begin, print.begin);
        group.end = std::max(group.end, print.end);
        group.members.push_back(members[part[next]].index);
        for (size_t other = first + 1; other < members.size(); ++other) {
          if (placed[other] || Disjoint(print, prints[other])) continue;
          placed[other] = true;
          part.push_back(other);
        }
      }
      if (part.size() < 2) continue;
      std::sort(group.members.begin(), group.members.end());
      groups_.push_back(std::move(group));
    }
  }

  std::span<const TensorSpec> tensors_;
  std::vector<AliasGroup> groups_;
};

}  // namespace

std::vector<AliasGroup> FindAliasGroups(std::span<const TensorSpec> tensors, std::span<const void* const> addresses) {
  std::vector<Interval> intervals;
  std::vector<uint64_t> spans(tensors.size());
  intervals.reserve(tensors.size());
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& spec = tensors[i];
    if (spec.piece != nullptr) continue;   // a piece is stored on its own
    spans[i] = tensor::SpanBytes(spec.shape, spec.strides, ItemBytes(spec.dtype));
    if (spans[i] > 0) intervals.push_back({AddressOf(addresses[i]), i});
  }
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.index < b.index;
  });
  Groups groups(tensors);
  const std::span<const Interval> all(intervals);
  for (size_t first = 0; first < all.size();) {
    uint64_t end = all[first].begin + spans[all[first].index];
    size_t last = first + 1;
    while (last < all.size() && all[last].begin < end) {
      end = std::max(end, all[last].begin + spans[all[last].index]);
      ++last;
    }
    groups.Add(all.subspan(first, last - first), end);
    first = last;
  }
  return groups.Take();
}

std::string AliasSignature(std::span<const AliasGroup> groups, std::span<const void* const> addresses) {
  std::string signature;
  const auto append = [&](uint64_t value) { signature.append(reinterpret_cast<const char*>(&value), sizeof value); };
  for (const AliasGroup& group : groups) {
    append(group.members.size());
    for (const uint32_t member : group.members) {
      append(member);
      append(AddressOf(addresses[member]) - group.begin);
    }
  }
  return signature;
}

}  // namespace neve::format
