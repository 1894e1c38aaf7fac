// Asynchronous saves of single files: the thread that writes them, and what becomes of those that cannot begin.
#ifndef NEVE_ENGINE_FILE_WRITER_H_
#define NEVE_ENGINE_FILE_WRITER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/sync/executor.h"
#include "neve/engine.h"

namespace neve {

// One a process, made at the first use and never destroyed: its tasks hold what they need. A forked child, in which no thread of
// the parent lives, gets its own. Null: the system gave no thread. Thread: any.
sync::ThreadExecutor* FileWriter();

// What the caller of an asynchronous save gets: an error where the call itself is wrong or its path can never be written (not
// there, no permission, read-only), else a ticket. A full disk or want of memory is no misuse: the ticket has failed with it, and
// the log says `event=file_save_failed`.
absl::StatusOr<std::shared_ptr<Ticket>> TicketOrMisuse(const std::string& path, absl::StatusOr<std::shared_ptr<Ticket>> begun);

}  // namespace neve

#endif  // NEVE_ENGINE_FILE_WRITER_H_
