"""SEC: looking at a hostile file, loading it and restoring it never imports or runs anything that the file names."""

import copy
import functools
import importlib
import json
import os
import pickle
import random
import struct
import subprocess
import time

import numpy
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


# ---- What a tree and its values may ask for ----


def image(path, root, values="", entries=None, data=b"", **tensors):
    """A file with that tree, those values and these entries: name -> (dtype, shape, bytes)."""
    tree = {"v": 1, "root": root, "tensors": tensors} if tensors else {"v": 1, "root": root}
    header = {"__metadata__": {"neve.format": "1", "neve.values": values, "neve.tree": json.dumps(tree)}}
    begin = 0
    for name, (dtype, shape, size) in (entries or {}).items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}
        begin += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data.ljust(begin, b"\0"))
    return path


def refused(path, *names):
    """Loading is refused within seconds by an error of neve's that names the place; the message."""
    began = time.monotonic()
    with pytest.raises((neve.Damaged, neve.Unsupported)) as raised:
        neve.load(path)
    assert time.monotonic() - began < 20
    for name in names:
        assert name in str(raised.value), str(raised.value)
    return str(raised.value)


F32, I64 = {"a": ("F32", [2], 8)}, {"a": ("I64", [2], 16)}


def in_dict(node):
    return {"d": [["a", node]]}


@pytest.mark.parametrize("root, values, entries", [
    ({"o": "generator", "dev": "cpu", "c": ["v"]}, "yAAAA;", {}),
    ({"o": "generator", "dev": "cpu", "c": ["v"]}, "i1000000000000;", {}),
    ({"o": "generator", "dev": "bogus", "c": ["v"]}, "yAAAA;", {}),
    ({"o": "Generator", "q": "PCG64", "c": ["v"]}, "i1;", {}),
    ({"o": "Generator", "q": "PCG64", "c": ["v"]}, "{'bit_generator''PCG64''state'{}}", {}),
    ({"o": "Generator", "q": "os.system", "c": ["v"]}, "{}", {}),
    ({"o": "RandomState", "c": ["v"]}, "{}", {}),
    ({"o": "RandomState", "c": ["v"]}, "i5;", {}),
    ({"T": 1, "dev": 5}, "", F32),
    ({"T": 1, "dev": "meta"}, "", F32),
    ({"T": 1, "param": 1, "grad": 1}, "", I64),
    ({"T": 1, "grad": 1}, "", I64),
    ({"T": 1, "py": "v"}, "i5;", F32),
    ({"T": 1, "py": "v"}, "[]", F32),
    ({"T": 1, "py": "v"}, "{i1;i2;}", F32),
    ({"T": 1, "np": 1, "py": "v"}, "{}", F32),
    ({"T": 1, "meta": 1, "dt": "float32", "sh": [1 << 62, 1 << 62], "st": [1, 1]}, "", {}),
    ({"T": 1, "meta": 1, "dt": "nn", "sh": [1], "st": [1]}, "", {}),
    ({"T": 1, "meta": 1, "dt": "float32", "sh": ["x"], "st": [1]}, "", {}),
    ({"o": "coo", "sh": [2, 2], "c": [{"T": 1}]}, "", F32),
    ({"o": "later", "c": [{"T": 1}]}, "", F32),
    ({"z": 1}, "", {}),
    ({"d": [], "t": "D:eval"}, "", {}),
    ({"l": ["v"], "t": "n:os.system"}, "n", {}),
], ids=str)
def test_SEC_01_nodes_that_torch_or_numpy_refuse_are_refused_by_their_place(tmp_path, root, values, entries):
    refused(image(tmp_path / "m.safetensors", in_dict(root), values, entries))


def test_SEC_01_strides_that_span_more_than_any_memory_are_damaged_for_all(tmp_path):
    path = image(tmp_path / "m.safetensors", {"d": [1]}, "", F32, strided={"a": [[2], [1 << 45]]})
    with pytest.raises(neve.Damaged, match="do not fit"):
        neve.load(path)
    for verb in ("inspect", "verify"):
        assert subprocess.run([COMMAND, verb, path], capture_output=True).returncode == 4


def test_SEC_01_numbers_of_millions_of_digits_are_bounded(tmp_path):
    path = tmp_path / "m.safetensors"
    refused(image(path, "v", "i" + "9" * 5_000_000 + ";"), "4096")
    refused(image(path, {"d": [["~i" + "9" * 1_000_000, "v"]]}, "n"))
    assert neve.load(image(path, "v", "i" + "9" * 4096 + ";")).bit_length() > 13_000
    assert neve.load(image(path, "v", "h-" + "f" * 5_000_000 + ";")).bit_length() == 20_000_000


@pytest.mark.parametrize("number", [10 ** 600, -10 ** 601, 10 ** 5000, -10 ** 5000, 1 << 3_000_000],
                         ids=["601 digits", "-602", "5001", "-5001", "a million"])
def test_long_numbers_come_back_as_values_and_as_keys(tmp_path, number):
    path = tmp_path / "m.safetensors"
    neve.save({"w": torch.ones(1), "n": number, "d": {number: 1}, "l": [number, torch.ones(1)]}, path)
    found = neve.load(path)
    assert found["n"] == number and found["d"] == {number: 1} and found["l"][0] == number
    assert subprocess.run([COMMAND, "inspect", path], capture_output=True).returncode == 0


@pytest.mark.parametrize("values", [
    "{" + "".join(f"i{(1 << 61) * k - k};n" for k in range(1, 50_000)) + "}",
    "S(" + "".join(f"i{(1 << 61) * k - k};" for k in range(1, 50_000)) + ")",
    "[" + ("{" + "".join(f"i{(1 << 61) * k - k};n" for k in range(1, 2000)) + "}") * 40 + "]",
], ids=["dict", "set", "many dicts"])
def test_SEC_01_keys_made_to_collide_are_refused(tmp_path, values):
    assert "weights_only" in refused(image(tmp_path / "m.safetensors", "v", values))


def test_ordinary_large_dicts_of_numbers_are_loaded(tmp_path):
    state = {"w": torch.ones(1), "d": {k * 1024: k for k in range(100_000)}, "t": {(i, -j) for i in range(200) for j in range(200)},
             "c": {complex(i, j): 0 for i in range(100) for j in range(100)}}
    neve.save(state, tmp_path / "m.safetensors")
    found = neve.load(tmp_path / "m.safetensors")
    assert found["d"] == state["d"] and found["t"] == state["t"] and found["c"] == state["c"]


@pytest.mark.parametrize("values", ["{i1;ni1;n}", "{i1;ntn}", "S(i1;i1;)", "{i1;nd0x1.0000000000000p+0;n}"])
def test_a_key_that_stands_twice_is_refused(tmp_path, values):
    refused(image(tmp_path / "m.safetensors", "v", values), "twice")


def test_values_nest_as_deep_as_the_format_says(tmp_path):
    path = tmp_path / "m.safetensors"
    assert neve.load(image(path, "v", "[" * 128 + "]" * 128))
    refused(image(path, "v", "[" * 130 + "]" * 130), "nested")
    refused(image(path, "v", "[" * 100_000), "nested")


def test_a_key_of_megabytes_above_many_places_is_refused(tmp_path):
    children = [[str(number), {"l": []}] for number in range(2000)]
    refused(image(tmp_path / "m.safetensors", {"d": [["k" * 1_000_000, {"d": children}]]}), "names")


def test_a_blob_that_many_places_name_is_refused(tmp_path):
    data = struct.pack("<Q", 2) + b"s!"
    refused(image(tmp_path / "m.safetensors", {"l": [{"b": 0}] * 3}, "", {"neve.blob.0": ("U8", [16], 16)}, data), "twice")


def test_names_like_ours_in_a_foreign_file_are_ordinary_tensors(tmp_path):
    header = json.dumps({"neve.blob.0": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    assert neve.load(tmp_path / "m.safetensors")["neve.blob.0"].tolist() == list(b"1234")


# ---- Mutations ----


def a_state_of_everything():
    shared = torch.arange(12.0).reshape(3, 4)
    tagged = torch.ones(3)
    tagged.note = {"k": 1}
    return {
        "w": torch.nn.Parameter(torch.ones(2, 2)), "t": shared.t(), "s": shared[1], "same": shared, "again": shared,
        "tagged": tagged, "expanded": torch.ones(1, 3).expand(2, 3), "gaps": torch.arange(10)[::3],
        "c": torch.ones(2, dtype=torch.complex128),
        "meta": torch.empty(2, 3, device="meta"), "coo": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr(),
        "n": numpy.arange(4), "big": numpy.arange(3, dtype=">i4"), "dates": numpy.array(["2020-01-01"], dtype="M8[D]"),
        "g": torch.Generator().manual_seed(1), "rs": numpy.random.RandomState(1), "rng": numpy.random.default_rng(1),
        "v": [1, 2.5, "x", None, True, b"y", (1, {2: 3}), {1, 2}, 10 ** 700, complex(1, 2), float("nan"), numpy.float32(1)],
        "l": [torch.ones(1), 5, (torch.ones(1), "s")], ("a", 1): torch.ones(1), 5: {"deep": {"er": torch.ones(1)}},
        "size": torch.Size([1, 2]), "dtype": torch.float32, "device": torch.device("cpu"), "long": "x" * 5000,
    }


def mutated(node, chance, odd):
    """A JSON value with some of its parts changed, left out, doubled or swapped."""
    if chance.random() < 0.02:
        return copy.deepcopy(chance.choice(odd))
    if isinstance(node, dict):
        changed = {chance.choice("dltTrbovacq") if chance.random() < 0.02 else key: mutated(value, chance, odd)
                   for key, value in node.items() if chance.random() > 0.01}
        if chance.random() < 0.01:
            changed[chance.choice(["py", "st", "np", "dev", "dt", "grad", "param", "meta", "t", "a", "q"])] = chance.choice(odd)
        return changed
    if isinstance(node, list):
        changed = [mutated(item, chance, odd) for item in node if chance.random() > 0.01]
        if changed and chance.random() < 0.02:
            changed.append(chance.choice(changed))
        return changed
    if isinstance(node, str) and node and chance.random() < 0.02:
        at = chance.randrange(len(node))
        return node[:at] + chance.choice("~.x0\x7f") + node[at + 1:]
    if type(node) is int and chance.random() < 0.03:
        return chance.choice([0, 1, 2, -1, 3, 1 << 31, 1 << 62, 1 << 63, 10 ** 30, node + 1, node * 2])
    return node


ODD = [None, True, 0, 1, -1, 1.5, 1 << 62, "", "v", "x", "meta", "cuda:0", [], {}, [1], {"d": []}, {"l": []}, {"T": 1}, {"b": 0},
       {"r": "w"}, {"T": 1, "meta": 1}, {"o": "state", "c": ["v"]}, {"o": "generator", "c": ["v"]},
       "<i4", "float32", [0], [1 << 40, 1]]


def test_SEC_01_mutated_trees_and_values_give_errors_of_neve_or_states_and_never_take_long(tmp_path):
    seed = int(os.environ.get("NEVE_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"NEVE_SEED={seed}")
    chance = random.Random(seed)
    path = tmp_path / "m.safetensors"
    with neve.Checkpointer(tmp_path / "run", tiers=[f"file:{tmp_path}"], job="run") as checkpointer:
        checkpointer.save(1, a_state_of_everything()).wait("done", 60)
    good = next((tmp_path / "run").glob("step-*/*.safetensors")).read_bytes()
    path.write_bytes(good)
    neve.load(path)
    length = struct.unpack("<Q", good[:8])[0]
    header, body = json.loads(good[8:8 + length]), good[8 + length:]
    outcomes = {"loaded": 0}
    for round_number in range(600):
        changed = copy.deepcopy(header)
        about = changed["__metadata__"]
        if round_number % 3 < 2:
            about["neve.tree"] = json.dumps(mutated(json.loads(about["neve.tree"]), chance, ODD))
        if round_number % 3 > 0:
            values = list(about["neve.values"].rstrip())
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(values))
                piece = chance.choice(["", "n", "i5;", "[", "]", "{", "}", "'", ";", "N", "@", "y", "9" * 50])
                values[at:at + chance.choice((0, 1, 1, 5))] = piece
            about["neve.values"] = "".join(values)
        text = json.dumps(changed).encode()
        text += b" " * (-(8 + len(text)) % 4096)
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)
        began = time.monotonic()
        try:
            neve.load(path)
            outcome = "loaded"
        except neve.Error as error:   # whatever else comes out fails the test
            outcome = type(error).__name__
        except BaseException:
            print(f"round {round_number}")
            raise
        assert time.monotonic() - began < 20, round_number
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert set(outcomes) <= {"loaded", "Damaged", "Unsupported", "UnsupportedOnLoad", "Invalid", "Exhausted"}, outcomes
    assert outcomes.get("Damaged", 0) > 100, outcomes
