"""The C ABI of libneve.so against its description in `tests/capi/abi/`: what a program that was built earlier relies on.

    functions.txt   each exported function with its symbol version and its prototype
    structs.txt     size of each struct, offset, size and type of each field, and what the INIT macro sets
    enums.txt       each constant and its value
    types.txt       callbacks

What was there must stay as it is; what is added at the ends is recorded by `python tests/capi/stable_abi_test.py --record`, which
refuses to record anything else.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "neve" / "neve.h"
STORED = Path(__file__).resolve().parent / "abi"
LIBRARY = ROOT / "build" / "release" / "lib" / "libneve.so"
KINDS = ("functions", "structs", "enums", "types")

WHAT_TO_DO = """
A program that was built against an earlier neve.h would break. Do one of these:
  - undo it: append struct fields (0 asks for nothing) and enum constants, give a changed function a new name;
  - if it has to be, it is a new ABI: raise SOVERSION in CMakeLists.txt and the node in src/capi/neve.map, say so in docs/c-api.md
    ("The ABI"), delete tests/capi/abi/*.txt and record them anew."""


def plain(text: str) -> str:
    return " ".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.S).split())


def header() -> str:
    text = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.S)
    return re.sub(r"\\\n", " ", text)


def struct_fields(text: str) -> dict[str, list[tuple[str, str]]]:
    """Of each struct its fields: type and name."""
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S):
        fields = []
        for declaration in filter(None, (plain(part) for part in body.split(";"))):
            kind, first = re.fullmatch(r"(.*?)(\w+)", declaration.split(",")[0].strip()).groups()
            fields += [(kind.strip(), field) for field in [first, *(part.strip() for part in declaration.split(",")[1:])]]
        structs[name] = fields
    return structs


def ask_compiler(structs: dict, constants: list[str]) -> dict[str, int]:
    """Sizes, offsets and values, by what they are called."""
    lines = []
    for name, fields in structs.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for _, field in fields:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            lines.append(f'printf("{name}.{field}:size %zu\\n", sizeof((({name}*)0)->{field}));')
    lines += [f'printf("{constant} %lld\\n", (long long){constant});' for constant in constants]
    program = '#include <neve/neve.h>\n#include <stdio.h>\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "layout"
        strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        subprocess.run(["cc", *strict, "-x", "c", "-", f"-I{ROOT / 'include'}", "-o", binary], input=program, text=True, check=True)
        output = subprocess.run([binary], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def found() -> dict[str, list[str]]:
    """The description of what is there now, as lines of each file."""
    text = header()
    structs = struct_fields(text)
    enums = {name: re.findall(r"NEVE_\w+", re.sub(r"=[^,]*", "", body))
             for name, body in re.findall(r"typedef enum (\w+) \{(.*?)\} \1;", text, re.S)}
    numbers = ask_compiler(structs, [constant for constants in enums.values() for constant in constants])
    lines = {kind: [] for kind in KINDS}
    for name, fields in structs.items():
        initial = [part.strip() for part in re.search(rf"#define {name.upper()}_INIT\s+\{{(.*?)\}}", text)[1].split(",")]
        assert len(initial) == len(fields), f"{name.upper()}_INIT does not set every field"
        lines["structs"].append(f"{name} size={numbers[name]}")
        for (kind, field), value in zip(fields, initial):
            at = f"{name}.{field}"
            lines["structs"].append(f"{at} offset={numbers[at]} size={numbers[at + ':size']} type={plain(kind)} initial={value}")
    lines["enums"] = [f"{name} {constant} = {numbers[constant]}" for name, constants in enums.items() for constant in constants]
    prototypes = {name: plain(f"{result}{name}({arguments})")
                  for result, name, arguments in re.findall(r"NEVE_API\s+([\w\s*]+?)(neve_\w+)\(([^;]*)\);", text)}
    for line in subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", LIBRARY], capture_output=True, text=True,
                               check=True).stdout.splitlines():
        symbol = line.split()[-1]
        if line.split()[-2] == "A":
            continue
        name, _, version = symbol.partition("@@")
        lines["functions"].append(f"{name} {version} {prototypes.get(name, 'not in neve.h')}")
    lines["functions"].sort()
    for callback in re.findall(r"typedef [^;{]*\(\*neve_\w+\)\([^;]*\);", text):
        lines["types"].append(plain(callback))
    return lines


def stored(kind: str) -> list[str]:
    file = STORED / f"{kind}.txt"
    return file.read_text().splitlines() if file.exists() else []


def broken(kind: str, then: list[str], now: list[str]) -> list[str]:
    """What an earlier program relied on and does not find any more."""
    if kind == "structs":   # a struct may grow
        size = re.compile(r"(\w+) size=(\d+)$")
        sizes = {match[1]: int(match[2]) for match in map(size.match, now) if match}
        gone = []
        for line in then:
            match = size.match(line)
            if match is None:
                if line not in now:
                    gone.append(line)
            elif sizes.get(match[1], -1) < int(match[2]):
                gone.append(line)
        return gone
    return [line for line in then if line not in now]


def not_recorded(kind: str, then: list[str], now: list[str]) -> list[str]:
    return [line for line in now if line not in then]


def appended_fields_ask_for_nothing(then: list[str], now: list[str]) -> list[str]:
    """New fields of a struct that was there: neither between the old ones nor with a value of their own."""
    structs_then = {line.split()[0].split(".")[0] for line in then}
    wrong = []
    for line in now:
        name = line.split()[0]
        if "." not in name or line in then or name.split(".")[0] not in structs_then:
            continue
        ends = [int(re.search(r"offset=(\d+)", old)[1]) for old in then if old.startswith(name.split(".")[0] + ".")]
        if int(re.search(r"offset=(\d+)", line)[1]) <= max(ends) or not re.search(r"initial=(NULL|0|0\.0)$", line):
            wrong.append(line)
    return wrong


@pytest.fixture(scope="module")
def now() -> dict[str, list[str]]:
    return found()


@pytest.mark.parametrize("kind", KINDS)
def test_what_earlier_programs_rely_on_is_still_there(now, kind):
    gone = broken(kind, stored(kind), now[kind])
    assert not gone, f"changed or gone, of tests/capi/abi/{kind}.txt:\n  " + "\n  ".join(gone) + WHAT_TO_DO


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_added_is_recorded(now, kind):
    new = not_recorded(kind, stored(kind), now[kind])
    assert not new, (f"not in tests/capi/abi/{kind}.txt:\n  " + "\n  ".join(new) +
                     "\nIf this is meant to stay: python tests/capi/stable_abi_test.py --record, and commit the file.")


def test_fields_are_appended_and_zero_asks_for_nothing(now):
    wrong = appended_fields_ask_for_nothing(stored("structs"), now["structs"])
    assert not wrong, "new fields that an older program would not leave at rest:\n  " + "\n  ".join(wrong) + WHAT_TO_DO


def test_only_what_the_header_declares_is_exported(now):
    assert now["functions"] and not [line for line in now["functions"] if "not in neve.h" in line or not line.startswith("neve_")]
    names = {line.split()[0] for line in now["functions"]}
    assert names == set(re.findall(r"(neve_\w+)\(", "".join(re.findall(r"NEVE_API[^;]*;", header()))))


# What the comparison itself would say of a change.

@pytest.mark.parametrize("kind, change", [
    ("functions", lambda lines: lines[1:]),
    ("functions", lambda lines: [lines[0].replace("(", "(int more, "), *lines[1:]]),
    ("structs", lambda lines: [re.sub(r"size=(\d+)$", "size=8", lines[0]), *lines[1:]]),
    ("structs", lambda lines: [line.replace("offset=16 ", "offset=24 ") for line in lines]),
    ("structs", lambda lines: [line.replace("type=double", "type=float") for line in lines]),
    ("enums", lambda lines: [re.sub(r"= (\d+)$", lambda m: f"= {int(m[1]) + 1}", line) for line in lines]),
    ("types", lambda lines: lines[1:]),
])
def test_a_change_that_breaks_is_seen(kind, change):
    then = stored(kind)
    assert then and broken(kind, then, change(then)) and not broken(kind, then, then)


def test_a_struct_may_grow_at_its_end_alone():
    then = ["s size=16", "s.struct_size offset=0 size=8 type=size_t initial=sizeof(s)", "s.a offset=8 size=8 type=double initial=0.0"]
    grown = ["s size=24", *then[1:], "s.b offset=16 size=4 type=int initial=0"]
    assert not broken("structs", then, grown) and not appended_fields_ask_for_nothing(then, grown)
    assert not_recorded("structs", then, grown) == [grown[0], grown[-1]]
    assert appended_fields_ask_for_nothing(then, [*grown[:-1], "s.b offset=16 size=4 type=int initial=-1"])
    assert appended_fields_ask_for_nothing(then, [*grown[:-1], "s.b offset=4 size=4 type=int initial=0"])


def record() -> None:
    lines = found()
    for kind in KINDS:
        gone = broken(kind, stored(kind), lines[kind])
        if kind == "structs":
            gone += appended_fields_ask_for_nothing(stored(kind), lines[kind])
        if gone:
            sys.exit(f"not recorded, of {kind}:\n  " + "\n  ".join(gone) + WHAT_TO_DO)
    STORED.mkdir(exist_ok=True)
    for kind in KINDS:
        (STORED / f"{kind}.txt").write_text("\n".join(lines[kind]) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        sys.exit("usage: python tests/capi/stable_abi_test.py --record")
    record()
