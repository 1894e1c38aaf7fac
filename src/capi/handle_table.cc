#include "capi/handle_table.h"

#include <pthread.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/sync/mutex.h"

namespace neve::capi {
namespace {

constexpr uintptr_t kKinds = 16;
constexpr std::string_view kNames[] = {"handle", "engine", "state", "ticket", "image", "torch stream"};

struct Entry {
  std::shared_ptr<void> object;
  pid_t owner;
};

struct Table {
  sync::Mutex mutex;
  std::unordered_map<uintptr_t, Entry> entries NEVE_GUARDED_BY(mutex);
  uintptr_t last NEVE_GUARDED_BY(mutex) = 0;
};

Table& TheTable();

void LockTable() { TheTable().mutex.Lock(); }
void UnlockTable() { TheTable().mutex.Unlock(); }

Table& TheTable() {
  static Table* const table = [] {
    auto* made = new Table;
    ::pthread_atfork(LockTable, UnlockTable, UnlockTable);
    return made;
  }();
  return *table;
}

std::string NameOf(HandleKind kind) { return std::string(kNames[static_cast<size_t>(kind)]); }

}  // namespace

void* AddHandle(HandleKind kind, std::shared_ptr<void> object) {
  Table& table = TheTable();
  const pid_t owner = ::getpid();
  sync::MutexLock lock(table.mutex);
  const uintptr_t handle = ++table.last * kKinds + static_cast<uintptr_t>(kind);
  table.entries.emplace(handle, Entry{std::move(object), owner});
  return reinterpret_cast<void*>(handle);
}

absl::StatusOr<std::shared_ptr<void>> FindHandle(HandleKind kind, const void* handle) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  if (value == 0) return Invalid("the " + NameOf(kind) + " is null");
  Table& table = TheTable();
  sync::MutexLock lock(table.mutex);
  const auto found = table.entries.find(value);
  if (found == table.entries.end()) {
    const bool was_given = value % kKinds == static_cast<uintptr_t>(kind) && value / kKinds <= table.last && value >= kKinds;
    return Invalid(was_given ? "the " + NameOf(kind) + " was destroyed before this call"
                             : "what was given as the " + NameOf(kind) + " is no handle of neve");
  }
  if (value % kKinds != static_cast<uintptr_t>(kind)) {
    return Invalid("the handle that was given as " + NameOf(kind) + " is of another kind: " +
                   NameOf(static_cast<HandleKind>(value % kKinds)));
  }
  if (found->second.owner != ::getpid()) {
    return Closed("the " + NameOf(kind) + " belongs to the parent of this forked process: make one of this process's own");
  }
  return found->second.object;
}

std::shared_ptr<void> TakeHandle(HandleKind kind, const void* handle) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  if (value % kKinds != static_cast<uintptr_t>(kind)) return nullptr;
  Table& table = TheTable();
  sync::MutexLock lock(table.mutex);
  const auto found = table.entries.find(value);
  if (found == table.entries.end() || found->second.owner != ::getpid()) return nullptr;
  std::shared_ptr<void> object = std::move(found->second.object);
  table.entries.erase(found);
  return object;
}

}  // namespace neve::capi
