"""Ranks, the package's import, the library's look-up, tier strings: what needs no library."""

import subprocess
import sys
from pathlib import Path

import pytest

import neve
from neve import _library
from neve._world import LAUNCHER_VARIABLES, find_world
from neve.checkpointer import tier_text


def run(code, **environment):
    import os

    path = str(Path(neve.__file__).parent.parent)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": path, **environment})


def test_import_needs_neither_torch_nor_numpy_nor_the_library():
    done = run("import sys, neve; assert not {'torch', 'numpy', 'ctypes'} & set(sys.modules); "
               "[getattr(neve, n) for n in neve.__all__];"
               "assert not {'torch', 'numpy'} & set(sys.modules); print(neve.__version__)",
               NEVE_LIBRARY="/nonexistent/libneve.so")
    assert done.returncode == 0 and done.stdout.strip() == neve.__version__, done.stderr


def test_a_missing_library_is_said_with_where_it_was_looked_for():
    done = run("import neve\ntry: neve.Checkpointer('x')\nexcept neve.Unsupported as e: print(e)",
               NEVE_LIBRARY="/nonexistent/libneve.so")
    assert "/nonexistent/libneve.so" in done.stdout and "NEVE_LIBRARY" in done.stdout, done.stderr


def test_a_file_that_is_no_library_is_said(tmp_path):
    wrong = tmp_path / "libneve.so"
    wrong.write_text("no library")
    done = run("import neve\ntry: neve.load('x.safetensors')\nexcept neve.Unsupported as e: print(e)", NEVE_LIBRARY=str(wrong))
    assert str(wrong) in done.stdout and "could not be loaded" in done.stdout, done.stderr


def test_the_variable_names_the_only_place(monkeypatch):
    monkeypatch.setenv("NEVE_LIBRARY", "/some/where.so")
    assert _library.candidates() == [Path("/some/where.so")]
    monkeypatch.delenv("NEVE_LIBRARY")
    package = Path(neve.__file__).resolve().parent
    assert _library.candidates()[:2] == [package / "lib" / "libneve.so", package / "libneve.so"]


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError):
        neve.nothing


def test_help_is_there():
    for name in ("Checkpointer", "Ticket", "save", "load", "async_save"):
        assert len(getattr(neve, name).__doc__) > 80
    for method in ("save", "restore", "prepare", "steps", "latest", "pin", "unpin", "health", "drain", "close"):
        assert getattr(neve.Checkpointer, method).__doc__


@pytest.mark.parametrize("variable", LAUNCHER_VARIABLES)
def test_a_launchers_ranks_without_torch_distributed_are_invalid(variable):
    with pytest.raises(neve.Invalid, match=f"{variable} is 8.*initialise torch.distributed first, or pass rank= and world="):
        find_world(None, None, {variable: "8"})
    assert find_world(None, None, {variable: "1"}) == (0, 1)
    assert find_world(0, 1, {variable: "8"}) == (0, 1)


def test_wrong_ranks():
    with pytest.raises(neve.Invalid, match="both"):
        find_world(0, None)
    with pytest.raises(neve.Invalid, match="does not exist"):
        find_world(2, 2)
    assert find_world(3, 4) == (3, 4)


def test_many_ranks_need_a_way_to_meet(tmp_path):
    with pytest.raises(neve.Invalid, match="world of 4 ranks.*initialise torch.distributed first, or pass group='dir:PATH'"):
        neve.Checkpointer(tmp_path / "job", rank=0, world=4)
    for group in ("smoke", 7, "tcp:h:1"):
        with pytest.raises(neve.Invalid, match="use 'torch', 'dir:PATH'"):
            neve.Checkpointer(tmp_path / "job", rank=0, world=4, group=group)
    with pytest.raises(neve.Invalid, match="lists 2 places, and the world has 4 ranks"):
        neve.Checkpointer(tmp_path / "job", rank=0, world=4, group="static:a:1,b:2")
    with pytest.raises(neve.Invalid, match="NEVE_KEY_FILE"):
        neve.Checkpointer(tmp_path / "job", rank=0, world=2, group="static:127.0.0.1:1,192.0.2.1:1")
    with pytest.raises(neve.Invalid, match="group_timeout"):
        neve.Checkpointer(tmp_path / "job", rank=0, world=4, group="dir:/x", group_timeout=0)


@pytest.mark.parametrize("tier, text", [
    ("ram:?slots=2", "ram:?slots=2"),
    ({"tier": "file", "place": "/nvme/ckpt", "every": 10, "keep": 3}, "file:/nvme/ckpt?every=10&keep=3"),
    ({"tier": "file", "place": Path("/a?b c"), "best": "loss:min:2", "keep": "all"}, "file:/a%3Fb%20c?best=loss:min:2&keep=all"),
    ({"tier": "ram"}, "ram:")])
def test_tiers_as_strings_and_dicts(tier, text):
    assert tier_text(tier) == text


@pytest.mark.parametrize("tier", [3, {"place": "/x"}, None])
def test_wrong_tiers(tier):
    with pytest.raises(neve.Invalid):
        tier_text(tier)


def test_the_module_as_a_command():
    done = subprocess.run([sys.executable, "-m", "neve", "run", "train.py"], capture_output=True, text=True, timeout=60,
                          env={"PYTHONPATH": str(Path(neve.__file__).parent.parent), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 2 and "train.py is not there" in done.stderr
