"""Files of every version of the format open for ever: golden files, written once by `tests/golden/make.py`, give the state back."""

import hashlib
import importlib.util
import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import safetensors
from child import COMMAND
from same import assert_same

import neve

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.glob("format-*"))
FILES = sorted(GOLDEN.glob("format-*/*.safetensors"))
NEWEST = GOLDEN / "format-1" / "state.digests.safetensors"


def _states():
    spec = importlib.util.spec_from_file_location("golden_states", GOLDEN / "states.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STATES = _states()


def single_state():
    """What the single file holds: keys that are no strings are for steps only."""
    return {**STATES.tensors(), "values": {key: value for key, value in STATES.values().items() if key != "numbers"}}


@pytest.fixture
def copy(tmp_path):
    """A copy that may be changed: restoring heals and claims."""
    def make(version):
        shutil.copytree(GOLDEN / version, tmp_path / version)
        return tmp_path / version
    return make


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_file_gives_its_state_back(path):
    assert_same(neve.load(path), single_state())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_step_gives_its_state_and_tags_back(version, copy, job):
    checkpointer = job("golden", tiers=[f"file:{copy(version)}"])
    found = checkpointer.restore()
    assert found.step == 7
    assert_same(found.state, STATES.everything())
    (save,) = checkpointer.steps()
    assert save.tags == {"loss": 0.25, "phase": "warm-up", "best": True} and save.complete


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_golden_files_verify_and_open_with_plain_tools(path):
    subprocess.run([COMMAND, "verify", str(path.parent / "golden")], check=True, capture_output=True)
    verified = subprocess.run([COMMAND, "verify", str(path)], check=True, capture_output=True)
    assert (b"no digests of its own" in verified.stderr) == (path.name == "state.safetensors")   # of before there were any
    told = subprocess.run([COMMAND, "inspect", "--json", str(path)], check=True, capture_output=True)
    assert {"layer.weight", "tied", "window"} <= {tensor["name"] for tensor in json.loads(told.stdout)["tensors"]}
    with safetensors.safe_open(path, "pt") as plain:
        assert plain.get_tensor("scalar") == 7 and (plain.get_tensor("layer.weight") == STATES.tensors()["layer"]["weight"]).all()
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert (8 + length) % 4096 == 0 and json.loads(data[8:8 + length])["__metadata__"]["neve.format"] == path.parent.name[7:]


def test_the_present_writer_writes_the_newest_golden_file_byte_for_byte(tmp_path):
    """What changes here is a change of the format: freeze new golden files under a new number, and keep reading the old ones."""
    neve.save(single_state(), tmp_path / "state.safetensors")
    ours, golden = (tmp_path / "state.safetensors").read_bytes(), NEWEST.read_bytes()
    assert len(ours) == len(golden)
    differs = next((at for at, (a, b) in enumerate(zip(ours, golden)) if a != b), None)
    assert hashlib.sha256(ours).digest() == hashlib.sha256(golden).digest(), f"first different byte at {differs}"
