"""The bundle for GPU machines: what is in it, how large it is, and what its check says where there is no GPU."""

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    if subprocess.run(["git", "-C", ROOT, "ls-files", "--error-unmatch", "dev"], capture_output=True).returncode != 0:
        pytest.skip("not a git checkout that this user may read")
    out = tmp_path_factory.mktemp("bundle") / "neve-gpu.tar.gz"
    done = subprocess.run([sys.executable, HERE / "bundle.py", out], capture_output=True, text=True)
    if "run ./dev setup first" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out)   # its path comes last
    return out


def test_it_travels(bundle):
    assert bundle.stat().st_size <= 60 << 20


def test_it_holds_the_sources_and_what_they_need(bundle):
    with tarfile.open(bundle) as tar:
        members = {member.name: member for member in tar}
    names = set(members)
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    wanted = {f"neve/{name}" for name in tracked if name and (ROOT / name).is_file() and not name.startswith("shared/")}
    assert wanted <= names
    below = "neve/third_party/usr/include/"
    for header in ("absl/status/statusor.h", "liburing.h", "xxhash.h", "zlib.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "gtest/gtest.h",
                   "gmock/gmock.h", "zstd.h"):
        assert below + header in names, header
    files = {name.rsplit("/", 1)[-1] for name in names}
    assert {"libxxhash.so", "liburing.so", "libz.so", "libgtest.a", "libgmock_main.a", "abslConfig.cmake"} <= files
    assert any(name.startswith("libabsl_status.so") for name in files)
    for member in members.values():
        assert member.name.startswith("neve/") and ".." not in member.name.split("/") and (member.isfile() or member.issym())
        if member.issym():   # within its folder, and there
            assert "/" not in member.linkname and f"{member.name.rsplit('/', 1)[0]}/{member.linkname}" in names, member.name
    facts = json.loads(tarfile.open(bundle).extractfile("neve/bundle.json").read())
    assert facts["sources"] == len(wanted) and facts["machine"] == os.uname().machine


def test_no_gpu_is_told_from_a_lane_that_fails(tmp_path, monkeypatch):
    check = load("check")
    monkeypatch.setattr(check, "find_gpu", lambda: None)
    monkeypatch.setattr(sys, "argv", ["check.py", "--report", str(tmp_path / "report.json"), "--build", str(tmp_path / "build")])

    def lanes(code):
        def run(self, name, command, limit_s, environment=None, facts=lambda text: {}):
            self.lanes.append({"name": name, "ok": code == 0, "code": code, "seconds": 0.0, "facts": {}})
            return code == 0
        return run

    monkeypatch.setattr(check.Report, "run", lanes(0))
    assert check.main() == 3
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["gpu"] is None and report["ok"] is False and [lane["ok"] for lane in report["lanes"]] == [True] * 4
    monkeypatch.setattr(check.Report, "run", lanes(2))
    assert check.main() == 1
    assert json.loads((tmp_path / "report.json").read_text())["lanes"][0]["code"] == 2


def test_a_lane_is_ended_at_its_limit_and_says_what_it_printed(tmp_path):
    report = load("check").Report(600)
    assert report.run("quick", [sys.executable, "-c", "print('{\"n\": 3}')"], 60, facts=load("check").last_json)
    assert report.lanes[-1]["facts"] == {"n": 3}
    assert not report.run("missing", [tmp_path / "no-such-program"], 60)
    report.budget_s = 0
    assert not report.run("late", ["true"], 60) and report.lanes[-1]["skipped"] == "no time was left"


STAND_IN = """
import sys, torch, neve
from neve import _device
sys.path.insert(0, sys.argv[1])
import torch_lane as lane
from pathlib import Path
lane.DEVICE, lane.LARGE = "cpu", 4 << 20
torch.cuda._sleep = lambda cycles: None
_device.ordinal = lambda device: 0
_device.current_streams = lambda ordinals: [(ordinal, 0) for ordinal in ordinals]
fence = neve.Ticket.fence
def waits(ticket):   # host memory knows no stream
    fence(ticket)
    ticket.wait("captured", 60)
neve.Ticket.fence = waits
folder = Path(sys.argv[2])
lane.roundtrip(folder)
print(lane.one_stream(folder, 3), lane.unfenced(folder))
"""


def test_the_rounds_see_a_torn_copy_and_only_that(tmp_path):
    """On host tensors that count as those of a device, which copies slowly: 50 MB/s."""
    pytest.importorskip("torch")
    ram = tmp_path / "ram"
    ram.mkdir(mode=0o700)
    environment = dict(os.environ, NEVE_DEVICE="simulated:50000000", NEVE_RAM_DIR=str(ram), PYTHONPATH=str(ROOT / "python"))
    done = subprocess.run([sys.executable, "-c", STAND_IN, HERE, tmp_path], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    fenced, unfenced = map(int, done.stdout.split())
    assert fenced == 0 and unfenced > 0


@pytest.mark.skipif(not os.environ.get("NEVE_LONG"), reason="builds everything once more: --long")
def test_it_builds_in_an_empty_folder(bundle, tmp_path):
    with tarfile.open(bundle) as tar:
        tar.extractall(tmp_path)
    done = subprocess.run(["./dev", "gpu-check"], cwd=tmp_path / "neve", capture_output=True, text=True)
    report = json.loads((tmp_path / "neve" / "report.json").read_text())
    assert done.returncode == (0 if report["gpu"] else 3), done.stdout + done.stderr
