"""SEC: looking at a hostile file, loading it and restoring it never imports or runs anything that the file names."""

import functools
import importlib
import json
import os
import pickle
import struct
import subprocess

import pytest
import torch
from child import COMMAND, passes

import neve


class Bomb:
    """Pickles as a call of os.system."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


class System:
    """Pickles as what a getattr finds in an imported module."""

    def __reduce__(self):
        return functools.reduce, (getattr, ["system"], Imported())


class Imported:
    def __reduce__(self):
        return importlib.import_module, ("os",)


class Mapped:
    def __init__(self, function, argument):
        self.function, self.argument = function, argument

    def __reduce__(self):
        return map, (self.function, [self.argument])


class Nested:
    """Pickles as a call of that: no name in the pickle is that of a dangerous function."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return list, (Mapped(System(), f"touch {self.marker}"),)


def parts(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def with_tree(path, change):
    """Writes the file again with its tree or values changed by `change(metadata)`."""
    header, body = parts(path)
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("bomb", [Bomb, Nested])
def test_SEC_01_a_pickled_leaf_is_shown_but_not_run(tmp_path, job, bomb):
    marker = tmp_path / "pwned"
    with pytest.warns(UserWarning):
        with job(tmp_path / "run", [f"file:{tmp_path}"], job="run") as checkpointer:
            checkpointer.save(1, {"w": torch.ones(3), "deep": [{"x": bomb(marker)}]}).wait("done", 60)
    image = next((tmp_path / "run").glob("step-*/*.safetensors"))
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(image.read_bytes())
    for verb in ("inspect", "verify", "ls"):
        for place in (tmp_path / "run", copy):
            done = subprocess.run([COMMAND, verb, "--json", place], capture_output=True, text=True)
            assert done.returncode in (0, 2, 3), (verb, done.stderr)
            if verb == "inspect":
                shown = json.loads(done.stdout)["objects"]
                assert any("deep" in entry["path"] for entry in shown), shown
    with job(tmp_path / "run", [f"file:{tmp_path}"], job="run") as checkpointer:
        into = {"w": torch.zeros(3)}
        for call in (checkpointer.restore, lambda: neve.load(copy), lambda: checkpointer.restore(into=into, strict=False)):
            try:
                call()
            except neve.UnsupportedOnLoad as error:
                assert "deep" in str(error) and "weights_only" in str(error)
        assert checkpointer.restore(include="w").state["w"].sum() == 3   # no tensor is lost because of it
    assert not marker.exists()


HOSTILE_NODES = [
    {"t": "object", "module": "os", "name": "system", "args": ["touch pwned"]},
    {"k": "dataclass", "class": "os.system", "fields": {"command": "touch pwned"}},
    {"k": "enum", "class": "os:system", "value": "touch pwned"},
    {"k": "namedtuple", "class": "subprocess.Popen", "items": [["touch", "pwned"]]},
    {"$": "call", "f": "builtins.eval", "a": ["__import__('os').system('touch pwned')"]},
    {"pickle": "Y29zCnN5c3RlbQooUyd0b3VjaCBwd25lZCcKdFIu"},
]


@pytest.mark.parametrize("node", range(len(HOSTILE_NODES)))
def test_SEC_01_a_tree_that_names_callables_is_refused_or_plain(tmp_path, node, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.safetensors"
    neve.save({"w": torch.ones(3), "k": 1}, path)
    with_tree(path, lambda metadata: metadata.update({"neve.tree": json.dumps(HOSTILE_NODES[node])}))
    try:
        neve.load(path)
    except neve.Error:
        pass
    subprocess.run([COMMAND, "inspect", path], capture_output=True)
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_SEC_01_every_name_in_a_tree_may_be_replaced_by_a_callable_and_nothing_is_imported(tmp_path, job):
    """Classes that a state names (dataclasses, enums, named tuples, objects) are looked up among what was imported already."""
    passes("""
        import collections, dataclasses, enum, json, os, struct, sys, neve, numpy
        folder = os.environ["FOLDER"]
        os.chdir(folder)
        with open("evil.py", "w") as file:
            file.write("open('pwned', 'w')\\nclass Evil:\\n    def __init__(*a, **k): open('pwned', 'w')\\n")
        sys.path.insert(0, folder)
        class Color(enum.Enum):
            RED = 1
        Point = collections.namedtuple("Point", "x y")
        @dataclasses.dataclass
        class Config:
            rate: float = 1.0
        state = {"w": numpy.ones(3), "c": Color.RED, "p": Point(1, 2), "d": Config(), "n": numpy.float32(1)}
        neve.save(state, "m.safetensors")
        data = open("m.safetensors", "rb").read()
        length = struct.unpack("<Q", data[:8])[0]
        header, body = json.loads(data[8:8 + length]), data[8 + length:]
        before = set(sys.modules)
        tried = 0
        for key in ("neve.tree", "neve.values"):
            text = header["__metadata__"][key]
            for old in ("__main__", "Color", "Point", "Config", "numpy", "float32", "RED"):
                for new in ("evil", "evil.Evil", "evil:Evil", "os", "os.system", "system"):
                    if old not in text:
                        continue
                    tried += 1
                    changed = {**header, "__metadata__": {**header["__metadata__"], key: text.replace(old, new)}}
                    packed = json.dumps(changed).encode()
                    packed += b" " * (-(8 + len(packed)) % 4096)
                    with open("m.safetensors", "wb") as file:
                        file.write(struct.pack("<Q", len(packed)) + packed + body)
                    try:
                        neve.load("m.safetensors")
                    except neve.Error:
                        pass
        assert tried and not os.path.exists("pwned") and "evil" not in sys.modules, tried
        assert not {name for name in set(sys.modules) - before if name.startswith(("evil", "subprocess"))}
    """, tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_SEC_01_a_pickle_under_a_name_of_ours_is_no_checkpoint_and_is_not_run(tmp_path, job):
    marker = tmp_path / "pwned"
    for name in ("a.safetensors", "a.pt", "a.pkl"):
        path = tmp_path / name
        path.write_bytes(pickle.dumps(Bomb(marker)))
        with pytest.raises(neve.Error):
            neve.load(path)
        for verb in ("inspect", "verify"):
            assert subprocess.run([COMMAND, verb, path], capture_output=True).returncode in (3, 4)
    assert not marker.exists()
