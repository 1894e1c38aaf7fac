// The verbs of the command. Each prints its answer and returns its exit code, the greatest met (ExitCodeOf); what is in a place
// is found by the library (neve/places.h), what is in a file by the format.
#ifndef NEVE_CLI_VERBS_H_
#define NEVE_CLI_VERBS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/console.h"
#include "neve/files.h"
#include "neve/places.h"

namespace neve::cli {

int RunLs(Console& console, const std::vector<std::string>& places);

// show_tree: the nesting with all values, in place of the list of tensors.
int RunInspect(Console& console, const std::vector<std::string>& places, const SourceOptions& options, bool show_tree);

int RunVerify(Console& console, const std::vector<std::string>& places, int64_t step, int64_t rank);

int RunDiff(Console& console, const std::vector<std::string>& places, const SourceOptions& options);
int RunStats(Console& console, const std::vector<std::string>& places, const SourceOptions& options);

int RunConvert(Console& console, const std::vector<std::string>& places, const ConvertOptions& options);
int RunCp(Console& console, const std::vector<std::string>& places, int64_t step);

struct RecoverArguments {
  std::string to;
  bool dry_run = false;
  bool adopt = false;
};
int RunRecover(Console& console, const std::vector<std::string>& places, const RecoverArguments& arguments);

int RunGc(Console& console, const std::vector<std::string>& places, std::optional<uint64_t> keep, bool dry_run);
int RunDoctor(Console& console);

}  // namespace neve::cli

#endif  // NEVE_CLI_VERBS_H_
