#include "format/layout.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

#include "format/alias_groups.h"
#include "format/json_text.h"

namespace neve::format {
namespace {

bool IsNumbered(std::string_view name, std::string_view prefix) {
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

}  // namespace

absl::StatusOr<uint64_t> StatedElementCount(std::span<const int64_t> shape) {
  const absl::StatusOr<uint64_t> count = tensor::ElementCount(shape);
  if (!count.ok()) return Damaged("its shape is none that a tensor can have: " + std::string(count.status().message()));
  return count;
}

bool IsBlobName(std::string_view name) { return IsNumbered(name, kBlobPrefix); }
bool IsBaseName(std::string_view name) { return IsNumbered(name, kBasePrefix); }

Capacities GrowCapacities(const Capacities& now, uint64_t values_bytes, std::span<const uint64_t> blob_bytes) {
  const auto grow = [](uint64_t have, uint64_t need) {
    return have > 0 && have >= need ? have : std::max(kValuesBytesMin, 2 * need);
  };
  Capacities grown;
  grown.values_bytes = grow(now.values_bytes, values_bytes);
  grown.blob_bytes.reserve(blob_bytes.size());
  for (size_t i = 0; i < blob_bytes.size(); ++i) {
    grown.blob_bytes.push_back(grow(i < now.blob_bytes.size() ? now.blob_bytes[i] : 0, blob_bytes[i]));
  }
  return grown;
}

absl::Status Layout::WriteHeader(std::string_view values, std::span<std::byte> target) const {
  if (values.size() > capacities_.values_bytes) {
    return Invalid(absl::StrFormat("the values take %d bytes, the layout has room for %d; it must be built anew", values.size(),
                                   capacities_.values_bytes));
  }
  if (target.size() < header_.size()) {
    return Invalid(absl::StrFormat("the header takes %d bytes, the target has %d", header_.size(), target.size()));
  }
  const auto escaped = [](char c) { return c < 0x20 || c == 0x7f || c == '"' || c == '\\'; };   // bytes over 0x7f are negative
  if (const auto bad = std::find_if(values.begin(), values.end(), escaped); bad != values.end()) {
    return Invalid(absl::StrFormat("byte %d of the values is 0x%02x, which JSON would escape", bad - values.begin(),
                                   static_cast<unsigned char>(*bad)));
  }
  std::memcpy(target.data(), header_.data(), header_.size());
  if (!values.empty()) std::memcpy(target.data() + values_offset_, values.data(), values.size());
  return absl::OkStatus();
}

bool Layout::SameAliases(std::span<const void* const> addresses) const {
  if (addresses.size() != last_addresses_.size()) return false;
  if (addresses.empty() || std::memcmp(addresses.data(), last_addresses_.data(), addresses.size_bytes()) == 0) return true;
  const std::vector<AliasGroup> groups = FindAliasGroups(structure_->tensors, addresses);
  if (AliasSignature(groups, addresses) != alias_signature_) return false;
  last_addresses_.assign(addresses.begin(), addresses.end());
  return true;
}

}  // namespace neve::format
