#include "engine/file_writer.h"

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/error/status.h"
#include "base/obs/log.h"
#include "base/os/thread.h"
#include "base/sync/mutex.h"
#include "engine/ticket.h"

namespace neve {

sync::ThreadExecutor* FileWriter() {
  struct Writer {
    sync::Mutex mutex;
    uint64_t fork_generation NEVE_GUARDED_BY(mutex) = 0;
    sync::ThreadExecutor* executor NEVE_GUARDED_BY(mutex) = nullptr;
  };
  static Writer* const writer = new Writer;
  sync::MutexLock lock(writer->mutex);
  if (writer->executor == nullptr || writer->fork_generation != os::ForkGeneration()) {
    writer->fork_generation = os::ForkGeneration();
    writer->executor = sync::ThreadExecutor::Create({.name = "neve-files"}).release();
  }
  return writer->executor;
}

absl::StatusOr<std::shared_ptr<Ticket>> TicketOrMisuse(const std::string& path, absl::StatusOr<std::shared_ptr<Ticket>> begun) {
  const absl::Status status = begun.status();
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return begun;
  if (NeedsAHand(status) || ErrnoOf(status) == ENOENT) return begun;
  obs::Log(obs::Level::kWarning,
           absl::StrFormat("event=file_save_failed path=\"%s\" error=\"%s\"", path, std::string(status.message())));
  auto ticket = std::make_shared<TicketImpl>(0, SaveId{}, std::vector<std::string>{"file"});
  ticket->FailRest(status);
  return std::static_pointer_cast<Ticket>(ticket);
}

}  // namespace neve
