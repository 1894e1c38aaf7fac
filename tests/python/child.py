"""Child processes of tests: scripts that are killed, limited, or have a small file system of their own.

The scripts use numpy where they can, since importing torch takes longer than most of them. Each gets FOLDER, and SEED for
what it does at random; `run` prints the seed, which pytest shows when the test fails.
"""

import functools
import os
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import neve

HERE = Path(__file__).resolve().parent
LONG = bool(os.environ.get("NEVE_LONG"))
COMMAND = os.environ.get("NEVE_COMMAND") or str(HERE.parent.parent / "build" / "release" / "bin" / "neve")


def environment(folder, **more):
    seed = os.environ.get("NEVE_SEED") or str(random.SystemRandom().randrange(2**32))
    print(f"NEVE_SEED={seed}")
    path = str(Path(neve.__file__).resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": path, "FOLDER": str(folder), "SEED": seed, "COMMAND": COMMAND, **more}


def script(*parts):
    """One script out of several texts, each indented as it stands in its test."""
    return "\n".join(textwrap.dedent(part) for part in parts)


def run(code, folder, timeout=120, before=(), variables=None, **options):
    """Runs the script to its end. before: a command to run it under."""
    command = [*before, sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                          env=environment(folder, **(variables or {})), **options)


def passes(code, folder, **options):
    """Runs a script whose own assertions must hold; what it printed."""
    done = run(code, folder, **options)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start(code, folder, before=(), variables=None, **options):
    """Starts the script; the caller ends it."""
    return subprocess.Popen([*before, sys.executable, "-c", textwrap.dedent(code)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment(folder, **{"RATE": "", **(variables or {})}), **options)


@functools.lru_cache(maxsize=None)
def _mounting():
    if shutil.which("unshare") is None:
        return None
    for command in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        probe = [*command, "mount", "-t", "tmpfs", "-o", "size=1m", "neve", "/mnt"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            return command
    return None


def with_mounts():
    """The command under which a script may mount file systems that nobody else sees."""
    command = _mounting()
    if command is None:
        pytest.skip("not root and no user namespaces: a small file system cannot be mounted here")
    return command


# For scripts under with_mounts(): a file system of so many bytes.
MOUNT = """
import os, subprocess
def mount(path, size):
    os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "neve", path], check=True)
"""
