// Progress: which saves of one life a set of ranks has committed in one tier, small enough to be told upward at every save.
//
// A save stands here by its sequence. Three things are merged over the ranks of a subtree: the end of what they have committed (the
// least), which saves near that end all of them have (and), and which at least one of them will never have (or). Saves stand in a
// window of kWindow sequences that begins kBack before the end that the root last told: what lies before it has been told.
//
// Invariants
//   - Merging is associative, commutative and idempotent, and a later Progress of a rank contains its earlier ones: messages may be
//     lost, doubled and reordered.
//   - Has(s) of a merge: every rank that was merged said that it has committed s.
//   - No more than kEncodedBytesMax bytes, whatever the job does. Decode takes nothing else.
#ifndef NEVE_GROUP_PROGRESS_H_
#define NEVE_GROUP_PROGRESS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace neve::group {

class Progress {
 public:
  static constexpr uint64_t kWindow = 512, kBack = 64;
  static constexpr size_t kEncodedBytesMax = 10 + 5 + 10 + 2 * (1 + kWindow / 8);

  Progress() = default;
  // Of one rank alone, with the window at `base`: what does not fit there is told when the window has moved.
  Progress(uint32_t rank, const std::set<uint64_t>& committed, const std::set<uint64_t>& abandoned, uint64_t base);
  // Of a rank that has said nothing.
  static Progress Unknown(uint32_t rank);
  // What the root found, for a node that stands at `base`.
  static Progress Told(uint64_t end, uint32_t laggard, const std::set<uint64_t>& complete, const std::set<uint64_t>& lost, uint64_t base);

  void Merge(const Progress& other);
  uint64_t end() const { return end_; }             // 1 + the newest sequence that every rank has reached; 0: none
  uint32_t laggard() const { return laggard_; }     // the rank that has the least end
  uint64_t base() const { return base_; }           // of the window
  bool Has(uint64_t sequence) const { return In(have_, sequence); }
  bool Lost(uint64_t sequence) const { return In(lost_, sequence); }   // at least one rank has abandoned it
  // The same news, whoever is last, seen from the later of both windows.
  bool SaysTheSame(const Progress& other) const;

  void EncodeTo(std::string* text) const;
  // Takes one from the front. Nothing: there is none.
  static std::optional<Progress> DecodeFrom(std::string_view* text);
  bool operator==(const Progress&) const = default;

 private:
  using Bits = std::array<uint64_t, kWindow / 64>;
  bool In(const Bits& bits, uint64_t sequence) const {
    if (sequence < base_ || sequence - base_ >= kWindow) return false;
    const uint64_t at = sequence - base_;
    return (bits[at / 64] >> (at % 64) & 1) != 0;
  }
  void MoveTo(uint64_t base);
  void Fill(const std::set<uint64_t>& from, Bits* bits) const;

  uint64_t end_ = 0, base_ = 0;
  uint32_t laggard_ = 0;
  Bits have_{}, lost_{};
};

// Numbers in seven bits a byte, the last one without its highest bit.
void PutVarint(std::string* text, uint64_t number);
std::optional<uint64_t> TakeVarint(std::string_view* text);

}  // namespace neve::group

#endif  // NEVE_GROUP_PROGRESS_H_
