"""What every text file of this tree keeps to, so that no review has to say it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = {".cc", ".h", ".c", ".cu", ".py", ".sh", ".cmake"}
LINES_MAX = 700
COLUMNS_MAX = 140
DRAWERS = {"util", "utils", "helper", "helpers", "common", "misc", "manager"}
# Pieced together so that this file does not name what it forbids.
MARKERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "home/[a-z]+")) + r")/")


def tracked() -> list[Path]:
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True)
    if names.returncode != 0:
        pytest.skip("not a git checkout that this user may read")
    files = [ROOT / name for name in names.stdout.split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_relative_to(ROOT / "shared")]


def texts(suffixes=None):
    for file in tracked():
        if suffixes is not None and file.suffix not in suffixes and file.name not in ("CMakeLists.txt", "dev"):
            continue
        try:
            yield file.relative_to(ROOT), file.read_text()
        except UnicodeDecodeError:
            pass          # golden files and other binary inputs


def lines_where(predicate, suffixes=None) -> list[str]:
    return [f"{name}:{number}: {line.strip()[:100]}"
            for name, text in texts(suffixes)
            for number, line in enumerate(text.splitlines(), 1) if predicate(name, line)]


def test_no_leftover_markers():
    assert lines_where(lambda _, line: MARKERS.search(line)) == []


def test_no_path_of_one_machine():
    assert lines_where(lambda _, line: MACHINE_PATHS.search(line)) == []


def test_files_are_short_enough_to_read():
    assert [str(name) for name, text in texts(CODE) if len(text.splitlines()) > LINES_MAX] == []


def test_lines_are_short_enough_to_read():
    assert lines_where(lambda _, line: len(line) > COLUMNS_MAX, CODE) == []


def test_no_trailing_blanks_and_a_newline_at_the_end():
    assert lines_where(lambda _, line: line != line.rstrip(), CODE) == []
    assert [str(name) for name, text in texts(CODE) if text and not text.endswith("\n")] == []


def test_no_drawers():
    named = [file.relative_to(ROOT) for file in tracked()]
    assert [str(name) for name in named if DRAWERS & {part.split(".")[0] for part in name.parts}] == []


def test_headers_are_guarded_by_their_path():
    wrong = []
    for name, text in texts({".h"}):
        if name.suffix != ".h":
            continue
        guard = re.search(r"^#ifndef (\w+)\n#define \1$", text, re.M)
        if guard is None or not guard[1].startswith("NEVE_"):
            wrong.append(str(name))
    assert wrong == []


def test_shell_scripts_pass_shellcheck():
    try:
        subprocess.run(["shellcheck", "--version"], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("shellcheck is not installed (./dev setup installs it on Debian)")
    result = subprocess.run(["shellcheck", "dev", ".ci/run"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_operations_lists_every_metric():
    declared = set(re.findall(r'return "(\w+)";', (ROOT / "src/base/obs/metrics.cc").read_text()))
    assert declared
    text = (ROOT / "docs/operations.md").read_text()
    section = text[text.index("\n## Metrics"):text.index("\n## When")]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == declared


def test_operations_lists_every_environment_variable():
    asked = re.compile(r'(?:getenv|environ(?:\.get)?)\W+"?(NEVE_[A-Z_]+)')
    read = {name for _, text in texts({".cc", ".h", ".py"}) for name in asked.findall(text)}
    text = (ROOT / "docs/operations.md").read_text()
    public = {name for name in read if name not in ("NEVE_LONG", "NEVE_JOBS")}
    assert [name for name in sorted(public) if f"`{name}`" not in text] == []
