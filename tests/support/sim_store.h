// A store of one simulated job: values become visible to others some time after they were set, in any order, and calls fail now
// and then. All times are those of the given executor.
#ifndef NEVE_TESTS_SUPPORT_SIM_STORE_H_
#define NEVE_TESTS_SUPPORT_SIM_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/sync/executor.h"
#include "group/store.h"

namespace neve::testing {

struct SimStoreFaults {
  uint64_t failing_percent = 0;             // of calls
  sync::Nanos visible_after_max = 0;        // how late others see a value
  bool gone = false;                        // every call fails
};

// What all ranks share.
class SimStoreState {
 public:
  SimStoreState(sync::SimExecutor& executor, SimStoreFaults faults) : executor_(executor), faults_(faults) {}
  SimStoreFaults& faults() { return faults_; }
  uint64_t calls() const { return calls_; }

 private:
  friend class SimStore;
  struct Version {
    sync::Nanos visible = 0;                // to the others
    uint32_t writer = 0;
    std::string value;
  };
  bool Fails();

  sync::SimExecutor& executor_;
  SimStoreFaults faults_;
  std::map<std::string, std::map<uint64_t, Version>> values_;   // by name, by number of the Set
  uint64_t calls_ = 0, sets_ = 0;
};

// One process's view of it.
class SimStore : public group::Store {
 public:
  SimStore(std::shared_ptr<SimStoreState> state, uint32_t process) : state_(std::move(state)), process_(process) {}
  std::string place() const override { return "sim:"; }
  absl::Status Set(const std::string& name, std::string_view value) override;
  absl::StatusOr<std::optional<std::string>> Get(const std::string& name) override;
  void Forget(const std::string& prefix) override;

 private:
  const std::shared_ptr<SimStoreState> state_;
  const uint32_t process_;
};

}  // namespace neve::testing

#endif  // NEVE_TESTS_SUPPORT_SIM_STORE_H_
