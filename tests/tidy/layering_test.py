"""Who may include whom, and where threads, clocks and the like may appear: docs/architecture.md, checked by file."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE_FOLDERS = ("src", "storage", "kernels", "include")
SUFFIXES = {".h", ".cc", ".c", ".cu", ".cuh"}

# The parts of src/base, each open to those after it and all of them to every module.
BASE = ("error", "os", "sync", "obs", "codec")

# Module -> the modules that its files may include directly, besides base and itself. "storage" is storage/tier.h.
# In the order of the data: a module never includes one that stands below it.
BELOW_NODE = {
    "kernels": set(),
    "device": {"kernels"},
    "ring": set(),
    "fabric": set(),
    "tensor": set(),
    "format": {"tensor"},
    "slot": {"format"},
    "capture": {"device", "slot", "format", "tensor"},
    "storage": {"slot", "format"},
    "flush": {"storage", "slot", "format"},
    "catalog": {"storage", "format"},
    "group": {"format"},
    "restore": {"catalog", "group", "storage", "slot", "format", "tensor", "device"},
}
TIERS = {
    "storage/ram": {"storage", "slot", "format"},          # its images are the slots themselves
    "storage/file": {"storage", "slot", "format", "ring"},
    "storage/peer": {"storage", "slot", "format", "fabric"},
    "storage/object": {"storage", "slot", "format", "ring"},
}
MAY_INCLUDE = {
    **BELOW_NODE,
    **TIERS,
    "node": set(BELOW_NODE),                               # no concrete tier
    "engine": {*BELOW_NODE, *TIERS, "node"},
    "capi": {"engine"},
    "cli": {"format"},
}
# Public headers of plain values are open to all; the others to those that implement or use the public interface.
VALUE_HEADERS = {"neve/types.h", "neve/dtype.h"}
PUBLIC_USERS = {"include/neve", "engine", "capi", "cli"}
EXTERNAL = ("absl/", "nlohmann/", "CLI/")
EXTERNAL_OF_PUBLIC = ("absl/status/",)

# What makes a run depend on more than its inputs: only these modules may use it, so that the rest can be simulated.
REAL_WORLD = {"base/sync", "base/os", "ring", "fabric", "device"}


def call(names: str) -> str:
    """A free function of one of these names, called: no method, no member of another namespace."""
    return rf"(?<![\w:.>])(?:::)?(?:{names})\s*\("


FORBIDDEN = {
    "threads": re.compile(r"std::(?:jthread|thread|async)\b|\bpthread_(?:create|detach)\b|#\s*include\s*<thread>|"
                          + call("fork|vfork|clone")),
    "sleeps": re.compile(r"\bsleep_(?:for|until)\b|" + call("sleep|usleep|nanosleep|clock_nanosleep")),
    "clocks": re.compile(r"\b(?:steady|system|high_resolution)_clock\b|(?:\bstd)::time\s*\(|"
                         + call("time|clock_gettime|gettimeofday|clock")),
    "random numbers": re.compile(r"\brandom_device\b|\bmt19937|#\s*include\s*<random>|"
                                 + call("rand|srand|random|drand48|getrandom|getentropy")),
    "sockets": re.compile(r"#\s*include\s*<(?:sys/socket|netinet/\w+|arpa/inet)\.h>|"
                          + call("socket|socketpair|connect|accept4?|bind|listen")),
    "signals": re.compile(r"(?:\bstd)::signal\s*\(|\bpthread_sigmask\b|\bstruct\s+sigaction\b|"
                          + call("signal|sigaction|sigprocmask|raise|kill")),
}
# (file, kind): why it may all the same.
ALLOWED = {
    ("storage/file/kernel_file.cc", "signals"): "the thread that holds a write lease blocks the signal of its break",
    ("src/cli/console.cc", "signals"): "a reader of the command's output that has gone shows as EPIPE",
}

# What a document means by a path: these first folders, or this file name at the top.
PATH_IN_TEXT = re.compile(r"`((?:src|storage|kernels|include|python|bench|tests|docs|cmake)/[\w./-]*|CMakeLists\.txt|"
                          r"CMakePresets\.json|CONTRIBUTING\.md|README\.md)`")


def module_of(name: str) -> str:
    """The module of a file, or of what an include names once it is found."""
    parts = name.split("/")
    if parts[0] == "include":
        return "include/neve"
    if parts[0] == "storage":
        return "storage" if len(parts) == 2 else "/".join(parts[:2])
    if parts[0] == "src":
        return "/".join(parts[1:3]) if parts[1] == "base" else parts[1]
    return parts[0]


def code_of(text: str) -> str:
    """The text without comments and the insides of its literals; line breaks stay."""
    literal = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''

    def replace(match):
        found = match[0]
        if found.startswith("/"):
            return "\n" * found.count("\n")
        return found[0] + found[-1]

    # Digit separators are no literals.
    text = re.sub(r"(?<=\d)'(?=\d)", "", text)
    return re.sub(r"//[^\n]*|/\*.*?\*/|" + literal, replace, text, flags=re.S)


def include_fault(name: str, included: str) -> str | None:
    """Why this file may not include that, or None. `included` is as written between its quotes."""
    module = module_of(name)
    if included.startswith(EXTERNAL):
        if module == "include/neve" and not included.startswith(EXTERNAL_OF_PUBLIC):
            return "public headers use only std and absl/status"
        return None
    places = (f"include/{included}", f"src/{included}", included)
    found = next((place for place in places if (ROOT / place).is_file()), None)
    if found is None:
        return "no such file from include/, src/ or the top; paths are not relative"
    target = module_of(found)
    if target == module:
        return None
    if included in VALUE_HEADERS:
        return None
    if target == "include/neve":
        return None if module in PUBLIC_USERS else "only plain values of the public headers are for the inner modules"
    if module == "include/neve":
        return "public headers include no inner one"
    if target.startswith("base/"):
        if not module.startswith("base/"):
            return None
        earlier = BASE[:BASE.index(module.removeprefix("base/"))]
        return None if target.removeprefix("base/") in earlier else f"{module} comes before {target}"
    if module.startswith("base/"):
        return "base includes only base"
    if module not in MAY_INCLUDE:
        return f"module {module} has no row in the table"
    allowed = MAY_INCLUDE[module]
    return None if target in allowed else f"{module} may include {sorted(allowed)}, not {target}"


def call_faults(name: str, text: str) -> list[str]:
    if module_of(name) in REAL_WORLD:
        return []
    return [f"{name}:{number}: {kind}: {line.strip()[:100]}"
            for number, line in enumerate(code_of(text).split("\n"), 1)
            for kind, pattern in FORBIDDEN.items() if pattern.search(line) and (name, kind) not in ALLOWED]


def code_files() -> list[str]:
    return sorted(str(file.relative_to(ROOT)) for folder in CODE_FOLDERS
                  for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES)


def test_every_include_is_in_the_table():
    faults = []
    for name in code_files():
        for number, line in enumerate((ROOT / name).read_text().split("\n"), 1):
            included = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if included and (fault := include_fault(name, included[1])):
                faults.append(f'{name}:{number}: "{included[1]}": {fault}')
    assert faults == []


def test_own_headers_are_included_by_quotes():
    """In angle brackets they would slip past the table."""
    folders = "|".join(["neve", "base", *(module for module in MAY_INCLUDE if "/" not in module)])
    own = re.compile(rf"\s*#\s*include\s*<((?:{folders})/[^>]+)>")
    assert [f"{name}: {found[1]}" for name in code_files()
            for line in (ROOT / name).read_text().split("\n") if (found := own.match(line))] == []


def test_the_real_world_is_met_only_in_its_modules():
    assert [fault for name in code_files() for fault in call_faults(name, (ROOT / name).read_text())] == []


def test_every_exception_is_still_needed():
    unneeded = []
    for name, kind in ALLOWED:
        file = ROOT / name
        lines = code_of(file.read_text()).split("\n") if file.is_file() else []
        if not any(FORBIDDEN[kind].search(line) for line in lines):
            unneeded.append((name, kind))
    assert unneeded == []


def test_every_module_has_a_row():
    modules = {module_of(name) for name in code_files()}
    known = {"include/neve", *(f"base/{part}" for part in BASE), *MAY_INCLUDE}
    assert modules - known == set()


def test_the_build_links_only_what_the_table_allows():
    """A unit test links its module and the DEPS of that, so a DEPS too many would hide a missing include rule."""
    text = (ROOT / "CMakeLists.txt").read_text()
    modules = re.findall(r"^neve_module\((\w+)\s+(\S+)([^)]*)\)", text, re.M)
    assert len(modules) > 10
    target_module = {target: module_of(f"{folder}/x.cc") for target, folder, _ in modules}
    faults = []
    for target, folder, rest in modules:
        module = target_module[target]
        found = re.search(r"DEPS\s+(.*?)(?:LIBS|$)", rest, re.S)
        for dep in found[1].split() if found else []:
            if dep == "base" or module.startswith("base/"):
                continue
            if target_module[dep] not in MAY_INCLUDE[module]:
                faults.append(f"{target} links {dep}")
    assert faults == []


def test_documents_name_no_missing_file():
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "README.md", "CONTRIBUTING.md", "docs"],
                           capture_output=True, text=True)
    if names.returncode != 0:
        pytest.skip("not a git checkout that this user may read")
    missing = []
    for name in names.stdout.split("\0"):
        if name.endswith(".md") and (ROOT / name).is_file():
            text = (ROOT / name).read_text()
            missing += [f"{name}: {path}" for path in PATH_IN_TEXT.findall(text) if not (ROOT / path).exists()]
    assert missing == []


# A check that never finds anything looks like one that always passes: each rule is shown what it must refuse.


@pytest.mark.parametrize(("name", "included"), [
    ("src/format/layout.cc", "slot/slot.h"),
    ("src/format/layout.cc", "neve/engine.h"),
    ("src/flush/tier_flush.cc", "storage/file/file_tier.h"),
    ("storage/ram/ram_tier.cc", "storage/file/file_tier.h"),
    ("storage/tier.h", "storage/ram/ram_tier.h"),
    ("src/base/os/syscalls.cc", "base/sync/crew.h"),
    ("src/base/codec/digest.cc", "tensor/view.h"),
    ("src/node/slot_pool.cc", "storage/ram/ram_tier.h"),
    ("src/cli/main.cc", "slot/slot.h"),
    ("include/neve/engine.h", "base/error/status.h"),
    ("include/neve/engine.h", "absl/strings/str_format.h"),
    ("src/slot/slot.cc", "slot.h"),
    ("src/drawer/x.cc", "slot/slot.h"),
])
def test_wrong_include_is_found(name, included):
    assert include_fault(name, included)


@pytest.mark.parametrize(("name", "included"), [
    ("src/format/layout.cc", "tensor/view.h"),
    ("src/format/layout.cc", "neve/types.h"),
    ("src/flush/tier_flush.cc", "storage/tier.h"),
    ("storage/file/file_tier.cc", "ring/ring.h"),
    ("src/base/codec/types.cc", "base/error/status.h"),
    ("src/engine/engine.cc", "storage/ram/ram_tier.h"),
    ("include/neve/engine.h", "absl/status/statusor.h"),
])
def test_right_include_passes(name, included):
    assert include_fault(name, included) is None


@pytest.mark.parametrize(("kind", "line"), [
    ("threads", "std::thread worker([] {});"),
    ("threads", "pthread_create(&thread, nullptr, main, nullptr);"),
    ("threads", "const pid_t child = ::fork();"),
    ("sleeps", "std::this_thread::sleep_for(1ms);"),
    ("sleeps", "usleep(10);"),
    ("clocks", "auto now = std::chrono::steady_clock::now();"),
    ("clocks", "time_t t = std::time(nullptr);"),
    ("clocks", "::clock_gettime(CLOCK_REALTIME, &t);"),
    ("random numbers", "std::mt19937_64 generator;"),
    ("random numbers", "int r = rand();"),
    ("sockets", "int fd = ::socket(AF_INET, SOCK_STREAM, 0);"),
    ("sockets", "#include <sys/socket.h>"),
    ("signals", "std::signal(SIGPIPE, SIG_IGN);"),
    ("signals", "::kill(pid, SIGTERM);"),
])
def test_forbidden_call_is_found(kind, line):
    faults = call_faults("src/flush/tier_flush.cc", f"void F() {{\n  {line}\n}}\n")
    assert len(faults) == 1
    assert f":2: {kind}:" in faults[0]
    assert call_faults("src/base/os/x.cc", line) == []


@pytest.mark.parametrize("line", [
    "// std::thread and rand() are not for us",
    "/* usleep(1)\n   rand() */",
    'Log("call rand() and sleep(1)");',
    "auto f = std::bind(g, 1);",
    "executor.time(1); engine->connect(2); uint64_t total_time(3);",
    "const int64_t seconds = 1'700'000'000; const char quote = '\"';  // std::thread",
])
def test_harmless_text_passes(line):
    assert call_faults("src/flush/tier_flush.cc", line) == []
