"""Completion and the manual page name every verb and every option that the command has."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH, ZSH, MANUAL = ROOT / "src/cli/completion/neve.bash", ROOT / "src/cli/completion/_neve", ROOT / "docs/neve.1"
LATER = {"agent", "status", "bench", "plan"}


@pytest.fixture
def options(neve):
    """Verb -> its options, from the help."""
    verbs = re.findall(r"^  (\w+)  +\w", neve("-h").out.split("ubcommands:", 1)[-1].split("SUBCOMMANDS:", 1)[-1], re.M)
    found = {verb: set(re.findall(r"(?<![\w'-])--[a-z][a-z-]+", neve(verb, "-h").out.split("Examples:")[0])) for verb in verbs}
    assert {"ls", "inspect", "verify", "diff", "stats", "convert", "cp", "recover", "gc", "doctor"} <= set(found)
    return found


def test_the_help_of_each_verb_has_examples(neve, options):
    for verb in options:
        answer = neve(verb, "-h")
        assert answer.code == 0 and "Examples:" in answer.out and f"neve {verb}" in answer.out
        assert [line for line in answer.out.splitlines() if len(line) > 80] == []
    assert [line for line in neve("-h").out.splitlines() if len(line) > 80] == []


def test_bash_completes_verbs_and_options(options):
    def complete(*words):
        script = f'source {BASH}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _neve; printf "%s\\n" "${{COMPREPLY[@]}}"'
        run = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True)
        return set(run.stdout.split())

    verbs = complete("neve", "")
    assert set(options) <= verbs and not LATER & verbs
    for verb, names in options.items():
        assert names <= complete("neve", verb, "-"), verb
    assert complete("neve", "convert", "--to", "s") == {"safetensors", "step"}
    assert "ram:" in complete("neve", "ls", "r")


def test_zsh_names_verbs_and_options(options):
    text = ZSH.read_text()
    for verb, names in options.items():
        assert f"'{verb}:" in text and re.search(rf"^    {verb}\)", text, re.M), verb
        for name in names:
            assert name in text, (verb, name)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh (./dev setup installs it on Debian)")
def test_zsh_reads_the_file():
    assert subprocess.run(["zsh", "-n", ZSH]).returncode == 0


def test_the_manual_page_names_verbs_and_options(options):
    text = MANUAL.read_text().replace("\\-", "-")
    for verb, names in options.items():
        assert re.search(rf"^\.BR? {verb}\b", text, re.M), verb
        for name in names:
            assert name in text, (verb, name)


@pytest.mark.skipif(shutil.which("man") is None, reason="no man (./dev setup installs it on Debian)")
def test_man_has_nothing_to_say_against_it():
    run = subprocess.run(["man", "--warnings", "-l", MANUAL], capture_output=True, text=True,
                         env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin"})
    assert run.returncode == 0 and run.stderr == ""
