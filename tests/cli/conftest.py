"""Fixtures of the command's suite: the built binary, jobs to look at, files made by hand."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def ram_folder(monkeypatch):
    """NEVE_RAM_DIR in a folder of the test's own, on tmpfs where there is one."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="neve-test-", dir=parent)
    monkeypatch.setenv("NEVE_RAM_DIR", folder)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


class Answer:
    """What one run of the command gave."""

    def __init__(self, run):
        self.code, self.out, self.err = run.returncode, run.stdout, run.stderr

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(scope="session")
def command():
    path = os.environ.get("NEVE_COMMAND") or str(ROOT / "build" / "release" / "bin" / "neve")
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is missing: build it first, or set NEVE_COMMAND")
    return path


@pytest.fixture
def neve(command, tmp_path):
    """Runs the command in the test's folder."""

    def run(*arguments):
        return Answer(subprocess.run([command, *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True, timeout=120))

    return run


# A process begins with the peak of the one that started it, so a small one stands between. KiB on stderr.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def peak_bytes(command, tmp_path):
    """Runs the command in the test's folder, and returns the most memory that it had."""

    def run(*arguments):
        measured = subprocess.run([sys.executable, "-c", _MEASURED, command, *map(str, arguments)], cwd=tmp_path, capture_output=True,
                                  text=True, timeout=120)
        assert measured.returncode == 0, measured.stderr
        return int(measured.stderr.split()[-1]) * 1024

    return run


_JOB = """
import os, sys
import numpy as np
import neve

class Odd:
    pass

folder, steps, kill, every = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "kill", sys.argv[4]
root, name = os.path.split(folder)
os.makedirs(root, exist_ok=True)
checkpointer = neve.Checkpointer(folder, tiers=["ram:", f"file:{root}?every={every}"])
for step in range(steps):
    state = {
        "model": {"w": np.full((256, 1024), step, np.float32), "b": np.arange(5, dtype=np.int64), "zeros": np.zeros(0)},
        "optimizer": {"lr": 0.5, "betas": (0.9, float("inf")), 3: b"key"}, "step": step, "odd": Odd(),
        "esc\\x1b[31m": np.ones(3, np.uint8),
    }
    checkpointer.save(step, state, tags={"loss": 1.5}).wait("done", 60)
if kill:
    os.kill(os.getpid(), 9)
checkpointer.close(final=False)
"""


@pytest.fixture
def make_job(tmp_path):
    """A job folder with saves of steps 0, 1, ..; killed at its end or closed."""

    def make(name="gpt", steps=2, kill=False, every=1):
        folder = tmp_path / name
        arguments = [sys.executable, "-W", "ignore", "-c", _JOB, str(folder), str(steps), "kill" if kill else "close", str(every)]
        run = subprocess.run(arguments, capture_output=True, text=True, timeout=120,
                             env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        assert run.returncode == (-9 if kill else 0), run.stderr
        return folder

    return make


@pytest.fixture
def safetensors_file(tmp_path):
    """Writes a file from its header text and data."""

    def write(header, data=b"", name="file.safetensors", announced=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / name
        path.write_bytes(struct.pack("<Q", len(text) if announced is None else announced) + text + data)
        return path

    return write


@pytest.fixture
def newest(make_job):
    """A job folder with the image and the record of its newest save."""

    def make(**options):
        folder = make_job(**options)
        step = sorted(folder.glob("step-*"))[-1]
        return folder, step / "shard-00000-of-00001.safetensors", step / "shard-00000-of-00001.commit.json"

    return make
