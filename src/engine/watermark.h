// Watermark: what all ranks have in each tier, as the control connections tell it (group/control_node.h), in the engine's words:
// tiers by name ("" for any of them), saves by their ids. Only saves of this life are told of.
//
// Without connections (one rank, NEVE_CONTROL=off, no libcrypto, a port that cannot be had on some rank) nothing is ever told, and the
// listings are all there is.
//
// Thread: any, but Open and Join, which come before all others.
#ifndef NEVE_ENGINE_WATERMARK_H_
#define NEVE_ENGINE_WATERMARK_H_

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "group/agreement.h"
#include "group/control_node.h"
#include "neve/types.h"
#include "nlohmann/json.hpp"

namespace neve::engine {

class Watermark {
 public:
  // What is said and found at open, between the two gathers: takes a port at `address` (port 0 where none is wanted). The status says
  // why there is none; it is no error of the open.
  absl::Status Listen(const std::string& place);
  std::string place() const { return node_ == nullptr ? "" : node_->place(); }
  // `told` runs on a thread that must not wait, whenever more is told.
  struct Terms {
    uint32_t rank = 0, world = 1, incarnation = 0;
    Uid uid;
    std::string key;
    std::vector<std::string> tiers;               // names; the same on all ranks
    std::vector<group::ControlPlace> places;      // by rank
  };
  void Join(Terms terms, std::function<void()> told);
  void Leave(double linger_s);

  bool on() const { return on_; }                 // ranks are told of each other, as long as their connections live
  void Committed(std::string_view tier, const SaveId& save);
  void Abandoned(std::string_view tier, const SaveId& save);
  void AbandonedEverywhere(const SaveId& save);

  bool Complete(std::string_view tier, const SaveId& save) const;
  bool Lost(std::string_view tier, const SaveId& save) const;          // some rank will never have it there
  std::set<SaveId> Complete(std::string_view tier) const;
  std::optional<SaveId> Newest(std::string_view tier) const;
  std::string WaitsFor(std::string_view tier) const;                   // for messages
  nlohmann::ordered_json Health() const;

 private:
  std::optional<size_t> ColumnOf(std::string_view tier, const SaveId& save) const;

  bool on_ = false;
  std::string off_;                               // why
  uint32_t incarnation_ = 0;
  std::vector<std::string> columns_;
  std::unique_ptr<group::ControlNode> node_;
};

// Where this rank's port is to be: on the loopback when all ranks are on one host, else at the address by which `other`, the address
// of a rank elsewhere, is reached. NEVE_CONTROL: "off", or the address.
absl::StatusOr<std::string> ControlAddress(bool one_host, const std::string& other);

}  // namespace neve::engine

#endif  // NEVE_ENGINE_WATERMARK_H_
