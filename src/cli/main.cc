// The command `neve`: reads the arguments, runs one verb, returns the exit code of docs/operations.md.
#include <CLI/CLI.hpp>

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error/status.h"
#include "cli/console.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "neve/engine.h"

namespace neve::cli {
namespace {

constexpr int kUsage = 2;

constexpr const char* kPlaces = R"(
PLACE is a file, a folder (a save, a job, or a root of jobs), file:PATH or
ram:[JOB].
)";
constexpr const char* kExits = R"(
Exit code, the greatest met: 0 done, 1 data differs from its digest, or diff
found a difference, 2 wrong usage, 3 not a checkpoint or a kind that cannot be
read, 4 truncated or malformed, 5 could not be reached.
)";

// Help that fits 80 columns.
class NarrowFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    constexpr size_t kColumn = 22, kWidth = 78;
    std::string names = "  " + make_option_name(option, is_positional) + make_option_opts(option);
    const std::string description = Wrapped(make_option_desc(option), kColumn, kWidth);
    if (names.size() + 2 > kColumn) return names + "\n" + description;
    names.resize(kColumn, ' ');
    return names + description.substr(std::min(kColumn, description.size()));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();   // with what is checked of it behind a colon
    return type.empty() || option->get_positional() ? "" : " " + type.substr(0, type.find(':'));
  }
};

// Everything the arguments may say. Verbs take what is theirs.
struct Arguments {
  std::vector<std::string> places;
  std::string first, second;   // of the verbs that take two
  int64_t step = -1, rank = -1;
  bool tree = false, lenient = false, dry_run = false, adopt = false;
  std::string to;
  std::vector<std::string> drop;
  uint64_t shard_bytes = ConvertOptions().shard_bytes;
  int64_t keep = -1;
};

CLI::App* AddVerb(CLI::App& app, Console* console, const std::string& name, const std::string& does,
                  const std::string& examples) {
  CLI::App* verb = app.add_subcommand(name, does);
  verb->footer(kPlaces + std::string("\nExamples:\n") + examples + kExits);
  verb->add_flag("--json", console->json, "one JSON document on stdout; text for people goes to stderr");
  verb->add_flag("-q,--quiet", console->quiet, "print nothing but errors and the JSON document");
  return verb;
}

void AddPlaces(CLI::App* verb, Arguments* arguments) {
  verb->add_option("PLACE", arguments->places, "where to look")->required();
}

struct Positional {
  const char *name, *what;
};
void AddTwo(CLI::App* verb, Arguments* arguments, Positional first, Positional second) {
  verb->add_option(first.name, arguments->first, first.what)->required();
  verb->add_option(second.name, arguments->second, second.what)->required();
}

void AddStep(CLI::App* verb, Arguments* arguments, const std::string& what) {
  verb->add_option("--step", arguments->step, what)
      ->check(CLI::Range(int64_t{0}, static_cast<int64_t>(kStepLimit) - 1))->type_name("N");
}

void AddRank(CLI::App* verb, Arguments* arguments) {
  verb->add_option("--rank", arguments->rank, "of a save of several ranks: this rank's image alone, instead of all as one")
      ->check(CLI::Range(int64_t{0}, int64_t{UINT32_MAX}))->type_name("R");
}

void AddLenient(CLI::App* verb, Arguments* arguments) {
  verb->add_flag("--lenient", arguments->lenient, "read past what is merely untidy (trailing bytes), with a note");
}

int Run(CLI::App& app, Console& console, Arguments& arguments) {
  const CLI::App* verb = app.get_subcommands().front();
  const std::string& name = verb->get_name();
  const SourceOptions source = {arguments.step, arguments.lenient, arguments.rank};
  if (name == "ls") return RunLs(console, arguments.places);
  if (name == "inspect") return RunInspect(console, arguments.places, source, arguments.tree);
  if (name == "verify") return RunVerify(console, arguments.places, arguments.step, arguments.rank);
  const std::vector<std::string> two = {arguments.first, arguments.second};
  if (name == "diff") return RunDiff(console, two, source);
  if (name == "stats") return RunStats(console, arguments.places, source);
  if (name == "convert") {
    return RunConvert(console, two, {source, arguments.to, arguments.shard_bytes, arguments.tree, arguments.drop});
  }
  if (name == "cp") return RunCp(console, two, arguments.step);
  if (name == "recover") return RunRecover(console, arguments.places, {arguments.to, arguments.dry_run, arguments.adopt});
  if (name == "gc") {
    const std::optional<uint64_t> keep =
        arguments.keep < 0 ? std::nullopt : std::optional<uint64_t>(static_cast<uint64_t>(arguments.keep));
    return RunGc(console, arguments.places, keep, arguments.dry_run);
  }
  if (name == "doctor") return RunDoctor(console);
  console.Error(Unsupported("`neve " + name + "` is not in this version"));
  return kUsage;
}

void AddVerbs(CLI::App& app, Console* console, Arguments* arguments) {
  CLI::App* ls = AddVerb(app, console, "ls", "list saves, complete or not: tiers, size, age",
                         "  neve ls runs/gpt\n  neve ls ram:\n  neve ls --json /nvme/ckpt | jq '.saves[0].step'\n");
  AddPlaces(ls, arguments);

  CLI::App* inspect = AddVerb(app, console, "inspect", "show what is inside: tensors, tree, objects; runs nothing",
                              "  neve inspect runs/gpt              the newest complete save\n"
                              "  neve inspect runs/gpt --step 1000 --tree\n  neve inspect model.safetensors --json\n");
  AddPlaces(inspect, arguments);
  AddStep(inspect, arguments, "of a job folder: this step's newest save, instead of the newest complete one");
  AddRank(inspect, arguments);
  inspect->add_flag("--tree", arguments->tree, "the nesting with all values, instead of a list of tensors");
  AddLenient(inspect, arguments);

  CLI::App* verify = AddVerb(app, console, "verify", "check every digest and every structural rule",
                             "  neve verify runs/gpt\n  neve verify runs/gpt --step 1000 --json\n  neve verify ram:gpt\n");
  AddPlaces(verify, arguments);
  AddStep(verify, arguments, "only saves of this step");
  AddRank(verify, arguments);

  CLI::App* diff = AddVerb(app, console, "diff", "what differs between two checkpoints, of any kind and layout",
                           "  neve diff a.pt b.safetensors\n  neve diff runs/gpt runs/gpt-2 --step 1000\n"
                           "  neve diff --json old.pt new.pt | jq '.changed[].name'\n"
                           "\nEqual means equal bits: NaN equals the same NaN, -0.0 differs from 0.0.\n");
  AddTwo(diff, arguments, {"A", "one of the two to compare"}, {"B", "the other"});
  AddStep(diff, arguments, "of job folders: this step's newest save, instead of the newest complete one");
  AddRank(diff, arguments);
  AddLenient(diff, arguments);

  CLI::App* stats = AddVerb(app, console, "stats", "range, mean, deviation, zeros, NaN, Inf, digest of tensors",
                            "  neve stats model.safetensors\n  neve stats runs/gpt --step 1000\n"
                            "  neve stats --json ckpt.pt | jq '.tensors[] | select(.nan > 0).name'\n"
                            "\nNaN and Inf are counted and left out of the rest. The digest is the XXH3-128 of\n"
                            "the elements in row-major order, the same in every format.\n");
  AddPlaces(stats, arguments);
  AddStep(stats, arguments, "of a job folder: this step's newest save, instead of the newest complete one");
  AddRank(stats, arguments);
  AddLenient(stats, arguments);

  CLI::App* convert = AddVerb(app, console, "convert", "write a checkpoint of any kind as another",
                              "  neve convert model.pt model.safetensors\n  neve convert runs/gpt model.pt --step 1000\n"
                              "  neve convert model.pt model-hf --to hf --shard-size 2G\n"
                              "  neve convert ckpt.pt weights.npz --drop 'optimizer*' --drop step\n"
                              "  neve convert old.pt runs/restart --to step --step 1000\n"
                              "\nWhat OUT cannot hold is refused by name before anything is written.\n");
  AddTwo(convert, arguments, {"IN", "what to read"}, {"OUT", "what to write"});
  convert->add_option("--to", arguments->to, "pt, safetensors, hf, dcp, step or npz; without it the name of OUT decides")
      ->type_name("KIND");
  convert->add_option("--shard-size", arguments->shard_bytes, "hf, dcp: most bytes of tensors in one file; K M G T are powers of 1024")
      ->transform(CLI::AsSizeValue(false))->check(CLI::Validator([](const std::string& bytes) {
        return bytes == "0" ? std::string("a file holds at least one byte") : std::string();
      }, ""))->type_name("BYTES");
  AddStep(convert, arguments, "of a job folder: this step's newest save. With --to step, for a file: the step it becomes");
  AddRank(convert, arguments);
  convert->add_flag("--tree", arguments->tree, "also what readers that do not know neve.tree would misread");
  convert->add_option("--drop", arguments->drop, "leave out what has this dotted name, or matches this glob; may be repeated")
      ->allow_extra_args(false)->type_name("NAME");
  AddLenient(convert, arguments);

  CLI::App* cp = AddVerb(app, console, "cp", "copy a save into another job folder, verified on both sides",
                         "  neve cp runs/gpt /archive/gpt            the newest complete save\n"
                         "  neve cp runs/gpt /archive/gpt --step 1000\n"
                         "\nThe copy is the same save: its records come last, as they are. A second copy\nchanges nothing.\n");
  AddTwo(cp, arguments, {"FROM", "a job folder or a save"}, {"TO", "a job folder, made when missing, or a root of some"});
  AddStep(cp, arguments, "of a job folder: this step's newest save, instead of the newest complete one");

  CLI::App* recover = AddVerb(app, console, "recover", "persist what a killed job left in RAM",
                              "  neve recover ram:                      list only\n  neve recover runs/gpt --dry-run\n"
                              "  neve recover runs/gpt\n  neve recover ram:gpt --to /nvme/ckpt\n");
  AddPlaces(recover, arguments);
  recover->add_option("--to", arguments->to, "for ram:[JOB]: the job folder, or the root of job folders, to persist in")
      ->type_name("FOLDER");
  recover->add_flag("--adopt", arguments->adopt, "also images of another job of that name (another uid)");
  recover->add_flag("-n,--dry-run", arguments->dry_run, "say what would be persisted");

  CLI::App* gc = AddVerb(app, console, "gc", "apply retention, remove leftovers, free RAM of dead jobs",
                         "  neve gc --dry-run runs/gpt\n  neve gc runs/gpt --keep 3\n  neve gc ram:\n");
  AddPlaces(gc, arguments);
  gc->add_option("--keep", arguments->keep, "keep this many newest complete saves; pinned ones stay besides")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))->type_name("N");
  gc->add_flag("-n,--dry-run", arguments->dry_run, "say what would be removed");

  AddVerb(app, console, "doctor", "what works on this machine, and why not",
          "  neve doctor\n  cd /nvme/ckpt && neve doctor       O_DIRECT is tried in the current folder\n");

  for (const char* later : {"agent", "status", "bench", "plan"}) {
    CLI::App* verb = app.add_subcommand(later, "not in this version");
    verb->prefix_command();   // whatever follows is taken, and refused with the verb
    verb->group("");
  }
}

int Main(int argc, char** argv) {
  Console console;
  Arguments arguments;
  CLI::App app("neve: look at checkpoints, verify, compare and convert them, recover what a\nkilled job left in RAM.", "neve");
  app.footer(kPlaces + std::string("`neve VERB -h` shows the options of a verb, with examples.\n"
                                   "Not in this version: agent, status, bench, plan.\n") + kExits);
  app.set_version_flag("--version", "neve " + std::string(Version()));
  const auto formatter = std::make_shared<NarrowFormatter>();   // verbs inherit it
  formatter->column_width(14);
  app.formatter(formatter);
  app.require_subcommand(1);
  app.fallthrough(false);
  AddVerbs(app, &console, &arguments);
  for (CLI::App* verb : app.get_subcommands({})) verb->set_version_flag("--version", "neve " + std::string(Version()));
  if (argc == 1) {
    console.quiet = false;
    console.Out(app.help());
    console.Flush().IgnoreError();   // the exit code says usage either way
    return kUsage;
  }
  const std::string first = argv[1];
  const std::vector<CLI::App*> verbs = app.get_subcommands({});
  const bool known = std::any_of(verbs.begin(), verbs.end(), [&](const CLI::App* verb) { return verb->get_name() == first; });
  if (!known && !first.starts_with('-')) {
    console.Error(Invalid("there is no verb " + first + "; `neve -h` lists them"));
    return kUsage;
  }
  int code = 0;
  try {
    app.parse(argc, argv);
    code = Run(app, console, arguments);
  } catch (const CLI::Success& success) {   // help and version
    console.json = console.quiet = false;
    console.Out(dynamic_cast<const CLI::CallForVersion*>(&success) != nullptr ? std::string(success.what()) + "\n"
                                                                             : app.help());
  } catch (const CLI::ParseError& error) {
    console.Error(Invalid(error.what()));
    code = kUsage;
  }
  if (absl::Status status = console.Flush(); !status.ok()) {
    console.Error(status);
    code = std::max(code, ExitCodeOf(status));
  }
  return code;
}

}  // namespace
}  // namespace neve::cli

int main(int argc, char** argv) {
  try {
    return neve::cli::Main(argc, argv);
  } catch (const std::exception& error) {   // out of memory, most likely
    const std::string text = std::string("neve: ") + error.what() + "\n";
    if (::write(2, text.data(), text.size()) < 0) return 5;
    return 5;
  }
}
