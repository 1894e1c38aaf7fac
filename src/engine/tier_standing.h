// TierStanding: which tiers fail now, and why, for health and for the message of a wait that ended.
//
// Invariants
//   - A tier fails from its first failed attempt until a success in it, whatever became of the saves in between.
//   - Shared by an engine and its tickets, which may outlive it. All calls: any thread.
#ifndef NEVE_ENGINE_TIER_STANDING_H_
#define NEVE_ENGINE_TIER_STANDING_H_

#include <map>
#include <string>

#include "base/sync/mutex.h"

namespace neve::engine {

class TierStanding {
 public:
  // `doing`: what was tried, for people ("" when it was nothing that is tried again).
  void Fails(const std::string& tier, const std::string& error, const std::string& doing = "");
  void Works(const std::string& tier);
  void Forget();                                      // of all tiers
  std::string Error(const std::string& tier) const;   // "": it does not fail
  std::string Story(const std::string& tier) const;   // "": the same; else the error after what was tried

 private:
  struct Failure {
    std::string error, doing;
  };
  mutable sync::Mutex mutex_;
  std::map<std::string, Failure> failures_ NEVE_GUARDED_BY(mutex_);
};

}  // namespace neve::engine

#endif  // NEVE_ENGINE_TIER_STANDING_H_
