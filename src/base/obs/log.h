// Log lines: one per event, `key=value`, rank and step where known. The sink is the caller's; the default writes to stderr.
// NEVE_LOG sets the level: debug, info, warning (default), error, off. Nothing per chunk above debug.
#ifndef NEVE_BASE_OBS_LOG_H_
#define NEVE_BASE_OBS_LOG_H_

#include <functional>
#include <string>

namespace neve::obs {

enum class Level : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Message is one line without a newline at its end; line breaks inside become spaces. Thread: any; the sink must be thread
// safe.
void Log(Level level, const std::string& message);
bool Enabled(Level level);
void SetLevel(Level level);
// Replaces the sink of the process (null: stderr again). A thread that is logging at that moment may still be in the old
// sink, so what a sink refers to has to outlive the threads of neve.
using Sink = std::function<void(Level, const std::string&)>;
void SetSink(Sink sink);

}  // namespace neve::obs

#endif  // NEVE_BASE_OBS_LOG_H_
