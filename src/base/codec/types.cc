// The bodies of include/neve/types.h: the text forms of the values that every part of neve speaks of.
#include "neve/types.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/codec/text.h"

namespace neve {

std::string SaveId::ToString() const { return absl::StrFormat("i%04d.s%06d", incarnation, sequence); }

std::string Uid::ToHex() const { return codec::HexEncode(bytes); }

bool Uid::FromHex(std::string_view hex, Uid* uid) {
  // One text for one uid: capitals are refused, so that texts can be compared.
  if (hex.size() != 2 * uid->bytes.size()) return false;
  if (std::any_of(hex.begin(), hex.end(), [](char c) { return c >= 'A' && c <= 'F'; })) return false;
  const auto decoded = codec::HexDecode(hex);
  if (!decoded.has_value()) return false;
  std::copy(decoded->begin(), decoded->end(), uid->bytes.begin());
  return true;
}

std::string_view Name(TierKind kind) {
  switch (kind) {
    case TierKind::kRam: return "ram";
    case TierKind::kPeer: return "peer";
    case TierKind::kFile: return "file";
    case TierKind::kObject: return "object";
  }
  return "?";
}

std::string_view Name(StageState state) {
  switch (state) {
    case StageState::kPending: return "pending";
    case StageState::kReached: return "reached";
    case StageState::kFailed: return "failed";
    case StageState::kSkipped: return "skipped";
  }
  return "?";
}

}  // namespace neve
