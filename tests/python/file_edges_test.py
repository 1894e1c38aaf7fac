"""Single files at their edges: order of saves, storages resized under tensors, protected files, odd targets."""

import errno
import os
import stat
import subprocess
import sys

import pytest
import torch

import neve
from child import environment


@pytest.mark.parametrize("name", ["o.pt", "o.safetensors"])
def test_the_last_call_wins_over_an_asynchronous_one_in_flight(tmp_path, name):
    large = {"w": torch.full((12 << 20,), 1.0)}
    for _ in range(3):
        ticket = neve.async_save(large, tmp_path / name)
        neve.save({"w": torch.tensor([2.0])}, tmp_path / name)
        ticket.wait()
        assert neve.load(tmp_path / name)["w"].tolist() == [2.0]
        assert ticket.stages["file"] == "reached"
    assert os.listdir(tmp_path) == [name]


def test_a_later_save_that_fails_does_not_hold_an_earlier_one_up(tmp_path):
    ticket = neve.async_save({"w": torch.ones(4 << 20)}, tmp_path / "o.pt")
    with pytest.raises(Exception):
        neve.save({"w": lambda: None}, tmp_path / "o.pt")
    ticket.wait()
    assert neve.load(tmp_path / "o.pt")["w"].sum() == 4 << 20


def _cut() -> torch.Tensor:
    whole = torch.arange(10000.0)
    view = whole[5000:5100]
    whole.untyped_storage().resize_(4096)
    return view


@pytest.mark.parametrize("name", ["s.pt", "s.safetensors"])
@pytest.mark.parametrize("state", [lambda: {"a": _cut()}, lambda: {"a": _cut(), "more": torch.nn.Parameter(torch.ones(2))}])
def test_a_tensor_that_reaches_past_its_storage_is_refused_by_name(tmp_path, name, state):
    neve.save({"a": torch.ones(1)}, tmp_path / name)
    with pytest.raises(neve.Invalid, match="'a' reaches 16304 bytes past the end of its storage"):
        neve.save(state(), tmp_path / name)
    assert neve.load(tmp_path / name)["a"].tolist() == [1.0]


def test_a_storage_that_is_resized_between_two_saves_is_noticed(tmp_path):
    whole = torch.arange(10000.0)
    state = {"a": whole[5000:5100], "empty": torch.empty(0).as_strided((0,), (1,), 100)}
    with neve.Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save(0, state).wait()
        checkpointer.save(1, state).wait()
        whole.untyped_storage().resize_(4096)
        with pytest.raises(neve.Invalid, match="'a' reaches"):
            checkpointer.save(2, state)
        found = checkpointer.restore()
    assert found.step == 1 and torch.equal(found.state["a"], torch.arange(5000.0, 5100.0))


def test_a_bare_storage_is_refused_where_nothing_could_load_it(tmp_path):
    with pytest.raises(neve.Unsupported, match="'x' is a bare storage"):
        neve.save({"x": torch.ones(2).untyped_storage()}, tmp_path / "x.safetensors")
    with neve.Checkpointer(tmp_path / "run") as checkpointer, pytest.raises(neve.Unsupported, match="'x' is a bare storage"):
        checkpointer.save(0, {"x": torch.ones(2).untyped_storage()})


@pytest.mark.parametrize("by_torch", [False, True])
def test_what_is_no_regular_file_is_not_replaced(tmp_path, by_torch):
    arguments = {"_use_new_zipfile_serialization": False} if by_torch else {}
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(neve.Invalid, match="not a regular file"):
        neve.save([1], tmp_path / "pipe", **arguments)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(neve.Unavailable) as raised:
        neve.save([1], tmp_path / "loop", **arguments)
    assert raised.value.errno == errno.ELOOP
    with pytest.raises(neve.Unavailable, match="a folder has that name"):
        neve.save([1], tmp_path, **arguments)


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_a_default_device_has_no_part_in_loading(tmp_path, name):
    neve.save({"w": torch.ones(3), "t": torch.ones(2, 3).t()}, tmp_path / name)
    with torch.device("meta"):
        found = neve.load(tmp_path / name, map_location="cpu")
    assert found["w"].tolist() == [1.0] * 3 and found["t"].is_cpu


@pytest.mark.parametrize("call", [
    lambda path: neve.save([2], path + ".pt"), lambda path: neve.save({}, path + ".safetensors"), neve.load,
    lambda path: neve.async_save([2], path), lambda path: neve.Checkpointer(path),
    lambda path: neve.save([2], path, _use_new_zipfile_serialization=False)])
def test_a_nul_does_not_end_a_path(tmp_path, call):
    (tmp_path / "e").write_bytes(b"stays")
    with pytest.raises(neve.Invalid, match="it holds a NUL"):
        call(str(tmp_path / "e") + "\0")
    assert (tmp_path / "e").read_bytes() == b"stays"


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_protected_file_is_not_replaced(tmp_path, by_torch):
    if os.geteuid() == 0:
        pytest.skip("root may write every file: this runs as an unprivileged user")
    path = tmp_path / "ro.pt"
    neve.save([1], path)
    path.chmod(0o444)
    with pytest.raises(neve.Unavailable, match="may not be written") as raised:
        neve.save([2], path, **({"_use_new_zipfile_serialization": False} if by_torch else {}))
    assert raised.value.errno == errno.EACCES and neve.load(path) == [1]


@pytest.mark.parametrize("by_torch", [False, True])
def test_the_owner_and_the_group_of_a_file_are_kept(tmp_path, by_torch):
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    path = tmp_path / "theirs.pt"
    neve.save([1], path)
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    neve.save([2], path, **({"_use_new_zipfile_serialization": False} if by_torch else {}))
    facts = path.stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (1234, 4321, 0o640)


def test_a_raw_file_that_takes_no_more_is_an_error(tmp_path):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(writer, "wb", buffering=0) as file, pytest.raises(neve.Unavailable, match="takes no more"):
        neve.save({"w": torch.zeros(200_000)}, file)
    os.close(reader)


def _run(tmp_path, script: str, *arguments: str) -> subprocess.CompletedProcess:
    (tmp_path / "s.py").write_text(script)
    return subprocess.run([sys.executable, "-m", "neve", "run", "s.py", *arguments], cwd=tmp_path, capture_output=True, text=True,
                          timeout=120, env=environment(tmp_path))


def test_a_patched_save_writes_through_what_cannot_be_replaced(tmp_path):
    done = _run(tmp_path, """
import os, threading, torch
torch.save([1], "/dev/null")
os.mkfifo("pipe")
taken = []
reader = threading.Thread(target=lambda: taken.append(open("pipe", "rb").read()))
reader.start()
torch.save([1], "pipe")
reader.join()
assert taken[0][:2] == b"PK" or taken[0]
file = open("plain", "w+b")
torch.save([3], f"/proc/self/fd/{file.fileno()}")
assert torch.load("plain") == [3]
""")
    assert done.returncode == 0, done.stderr


def test_a_script_is_run_as_the_interpreter_runs_it(tmp_path):
    done = _run(tmp_path, """
import os, sys, __main__
print(os.path.isabs(__file__), sys.argv, __name__, __main__.__file__ == __file__, __builtins__ is __import__("builtins"))
""", "--flag")
    assert done.stdout == "True ['s.py', '--flag'] __main__ True True\n", done.stdout + done.stderr
