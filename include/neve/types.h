// Plain values that every part of neve speaks of.
#ifndef NEVE_TYPES_H_
#define NEVE_TYPES_H_

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace neve {

// (incarnation, sequence). Incarnation counts the lives of the job, sequence counts the `Save` calls of one life, skipped
// ones too. The newest save is the greatest complete SaveId, never the greatest step and never a clock.
struct SaveId {
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  auto operator<=>(const SaveId&) const = default;
  std::string ToString() const;  // "i0003.s000017"
};

// Random 128 bits that tell one job from another of the same name. All zero: not known yet.
struct Uid {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const Uid&) const = default;
  bool known() const { return *this != Uid{}; }
  std::string ToHex() const;                     // 32 lower-case digits
  static bool FromHex(std::string_view hex, Uid* uid);
};

// One save of one rank: what the names in a tier say.
struct ImageKey {
  SaveId save;
  uint64_t step = 0;    // 0 <= step < 10^12
  uint32_t rank = 0;    // < world
  uint32_t world = 1;   // >= 1
  auto operator<=>(const ImageKey&) const = default;
};

enum class TierKind : uint8_t { kRam, kPeer, kFile, kObject };
std::string_view Name(TierKind kind);  // "ram", "peer", "file", "object"

enum class StageState : uint8_t { kPending, kReached, kFailed, kSkipped };
std::string_view Name(StageState state);  // "pending", "reached", "failed", "skipped"

// A stream of the program's on a device: a CUstream (cudaStream_t), null for the default stream.
struct DeviceStream {
  int32_t device = 0;   // as CUDA counts them
  void* handle = nullptr;
};

// A tag's value: what `tags=` of a save may hold.
using TagValue = std::variant<bool, int64_t, double, std::string>;
using Tags = std::map<std::string, TagValue>;

inline constexpr uint64_t kStepLimit = 1'000'000'000'000;   // steps are below this: twelve digits in a folder name
inline constexpr uint64_t kDefaultChunkBytes = 4u << 20;    // 4 MiB: the unit of digest, progress, transfer and delta
inline constexpr uint64_t kPageBytes = 4096;                // data of an image begins at a multiple of this

}  // namespace neve

#endif  // NEVE_TYPES_H_
