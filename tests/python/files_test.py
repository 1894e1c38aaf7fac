"""Single files: neve.save, neve.load, neve.async_save, and what other readers see."""

import json
import os
import pathlib
import struct

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from same import assert_same

import neve


def header_of(path):
    data = path.read_bytes()
    return json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])


def test_a_state_comes_back_from_a_file(tmp_path):
    path = tmp_path / "model.safetensors"
    state = {"model": {"w": torch.randn(3, 4), "t": torch.randn(4, 3).t()}, "step": 5,
             "l": [torch.zeros(1), "x"], "a": numpy.arange(3)}
    neve.save(state, path)
    assert_same(neve.load(path), state)
    neve.save({"w": torch.ones(2)}, path)
    assert_same(neve.load(str(path)), {"w": torch.ones(2)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_reference_reader_opens_it(tmp_path):
    path = tmp_path / "m.safetensors"
    state = {"model": {"layers.0.weight": torch.randn(3, 4), "h": torch.ones(2).half(), "b": torch.ones(3).bfloat16()},
             "cl": torch.randn(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), "e": torch.ones(1).expand(3, 3)}
    neve.save(state, path)
    loaded = safetensors.torch.load_file(path)
    assert torch.equal(loaded["model.layers.0.weight"], state["model"]["layers.0.weight"])
    assert torch.equal(loaded["model.b"], state["model"]["b"]) and torch.equal(loaded["cl"], state["cl"])
    assert loaded["e"].flatten()[0] == 1
    with safetensors.safe_open(path, "pt") as file:
        assert "neve.tree" in file.metadata() and "neve.values" in file.metadata()


def test_ST_01_tied_sliced_and_transposed_tensors_are_written(tmp_path):
    t, full, weight = torch.randn(4), torch.arange(10.0), torch.randn(2, 3)
    state = {"a": t, "b": t, "x": full[0:6], "y": full[4:10], "w": weight, "wt": weight.t()}
    path = tmp_path / "shared.safetensors"
    neve.save(state, path)
    back = neve.load(path)
    assert_same(back, state)
    assert back["a"] is back["b"]
    back["w"][0, 1] = 9
    assert back["wt"][1, 0] == 9
    plain = safetensors.torch.load_file(path)
    assert torch.equal(plain["a"], t) and "b" not in plain
    assert sum(entry["data_offsets"][1] - entry["data_offsets"][0]
               for name, entry in header_of(path).items() if name != "__metadata__") <= 16 + 40 + 24


def test_ST_02_both_tied_names_come_back_whatever_the_order(tmp_path):
    t = torch.randn(5, 2)
    names = ("embed.weight", "lm_head.weight")
    for order in (names, names[::-1]):
        path = tmp_path / "tied.safetensors"
        neve.save({name: t for name in order}, path)
        back = neve.load(path)
        assert list(back) == list(order) and back[names[0]] is back[names[1]]
        plain = safetensors.torch.load_file(path)
        assert len(plain) == 1 and torch.equal(next(iter(plain.values())), t)
        metadata = header_of(path)["__metadata__"]
        assert all(name in plain or name in metadata["neve.tree"] for name in names)


def test_the_header_of_an_unchanged_structure_differs_only_in_its_values_and_digests(tmp_path):
    headers = []
    for step in (1, 22):
        path = tmp_path / f"{step}.safetensors"
        neve.save({"w": torch.full((3,), float(step)), "step": step}, path)
        header = header_of(path)
        headers.append({**header, "__metadata__": {**header["__metadata__"], "neve.values": "", "neve.digests": ""}})
        assert header["__metadata__"]["neve.values"].rstrip(" ") == f"i{step};"
    assert headers[0] == headers[1]
    assert (tmp_path / "1.safetensors").stat().st_size == (tmp_path / "22.safetensors").stat().st_size


@pytest.mark.parametrize("state, what", [
    ({"c": torch.zeros(1, dtype=torch.complex128)}, "complex128"), ({1: torch.zeros(1)}, "the key 1"),
    ({"m": torch.zeros(1, device="meta")}, "meta"), ({"s": torch.eye(2).to_sparse()}, "sparse"),
    ({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)}, "a.b")])
def test_what_plain_readers_would_misread_is_refused_before_the_file_exists(tmp_path, state, what):
    path = tmp_path / "m.safetensors"
    with pytest.raises(neve.Unsupported, match=what):
        neve.save(state, path)
    assert list(tmp_path.iterdir()) == []


def test_PT_10_the_good_file_stays_when_a_save_is_refused(tmp_path):
    path = tmp_path / "good.safetensors"
    neve.save({"w": torch.ones(1)}, path)
    before = path.read_bytes()
    for save in (neve.save, neve.async_save):
        with pytest.raises(neve.Unsupported, match="'f'"):
            save({"w": torch.zeros(10), "f": lambda: 0}, path)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["good.safetensors"]


def test_PT_13_paths_of_any_name_and_form(tmp_path):
    for name in ("模型", "модель", "модел🧊ь"):
        folder = tmp_path / name
        folder.mkdir()
        for path in (str(folder / f"{name}.safetensors"), os.fsencode(folder / f"{name}2.safetensors"),
                     folder / f"{name}3.safetensors"):
            neve.save({"w": torch.ones(2)}, path)
            assert os.path.exists(path)
            assert_same(neve.load(path), {"w": torch.ones(2)})


def test_PT_13_a_missing_parent_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing") as caught:
        neve.save({"w": torch.ones(2)}, tmp_path / "missing" / "m.safetensors")
    assert isinstance(caught.value, neve.Error)
    assert list(tmp_path.iterdir()) == []


def test_an_asynchronous_save(tmp_path):
    path = tmp_path / "a.safetensors"
    tensor = torch.ones(1 << 20)
    ticket = neve.async_save({"w": tensor}, path)
    tensor.zero_()
    assert list(ticket.stages)[:3] == ["captured", "file", "done"] and ticket.stages["captured"] == "reached"
    ticket.wait(timeout=60)
    assert neve.load(path)["w"].min() == 1


def test_an_asynchronous_save_to_where_nothing_can_be_written_fails_its_ticket(tmp_path):
    try:
        ticket = neve.async_save({"w": torch.ones(1)}, tmp_path / "missing" / "a.safetensors")
    except neve.Error:
        return   # said at once: as good
    with pytest.raises(neve.Error):
        ticket.wait(timeout=60)
    assert ticket.error is not None and ticket.stages["file"] == "failed"


def test_a_foreign_file_comes_back_as_a_dict(tmp_path):
    path = tmp_path / "hf.safetensors"
    tensors = {"a.b": torch.randn(3), "~odd": torch.zeros(2, dtype=torch.int64),
               "": torch.ones(1), "f8": torch.ones(4).to(torch.float8_e4m3fn)}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    back = neve.load(path)
    assert set(back) == set(tensors)
    assert_same({key: back[key] for key in tensors}, tensors)


@pytest.mark.parametrize("content", [b"", b"\x00" * 5, b"PK\x03\x04" + b"\0" * 100, b"not a checkpoint at all", b"\x00" * 4096,
                                     struct.pack("<Q", 10**9) + b"{}", struct.pack("<Q", 2) + b"{]"])
def test_what_is_no_such_file_is_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises((neve.Damaged, neve.Unsupported), match="x.safetensors"):
        neve.load(path)


def test_a_truncated_file_is_damaged(tmp_path):
    path = tmp_path / "x.safetensors"
    neve.save({"w": torch.zeros(1000)}, path)
    data = path.read_bytes()
    for length in (len(data) - 1, len(data) // 2, 100, 9):
        path.write_bytes(data[:length])
        with pytest.raises(neve.Damaged):
            neve.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        neve.load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("name", ["m.pt", "m.bin", "m", "m.safetensors.gz"])
def test_other_names_are_torchs_format(tmp_path, name):
    neve.save({"w": torch.zeros(1)}, tmp_path / name)
    assert torch.load(tmp_path / name)["w"] == 0


def test_what_is_no_path_is_refused():
    with pytest.raises(neve.Invalid):
        neve.load(3)


MUTATIONS = {
    "a tensor more in the tree": lambda tree: tree["root"]["d"].append(1),
    "a tensor less": lambda tree: tree["root"]["d"].clear(),
    "no node": lambda tree: tree["root"].update(d=[["w", 1.5]]),
    "an unknown node": lambda tree: tree["root"].update(d=[["w", {"zz": 1}]]),
    "a reference to nothing": lambda tree: tree["root"].update(d=[["w", {"r": "q"}], 3]),
    "a blob": lambda tree: tree["root"]["d"].append(["b", {"b": 7}]),
    "strides that do not fit": lambda tree: tree["tensors"].update(strided={"w": [[1000], [1]]}),
    "impossible strides": lambda tree: tree["tensors"].update(strided={"w": [[4], [1 << 60]]}),
    "negative strides": lambda tree: tree["tensors"].update(strided={"w": [[4], [-1]]}),
    "an alias outside": lambda tree: tree["tensors"].update(alias=[[0, "z", "w", 12, "F32", [4], [1]]]),
    "an alias before": lambda tree: tree["tensors"].update(alias=[[0, "z", "w", -4, "F32", [1], [1]]]),
    "an alias of nothing": lambda tree: tree["tensors"].update(alias=[[0, "z", "q", 0, "F32", [1], [1]]]),
    "an alias at a place that is not there": lambda tree: tree["tensors"].update(alias=[[99, "z", "w", 0, "F32", [1], [1]]]),
    "a wrong dtype": lambda tree: tree["tensors"].update(dtype={"w": "C128"}), "a newer version": lambda tree: tree.update(v=9),
    "a class": lambda tree: tree["root"].update(d=[["w", {"o": "dataclass", "q": "os.system", "c": [{"d": [1]}]}], 2, "x"]),
    "no namedtuple": lambda tree: tree.update(root={"l": [3, "v"], "t": "n:builtins.tuple"}),
    "a list for a dict": lambda tree: tree.update(root=[1]), "nesting too deep": lambda tree: tree.update(root="DEEP"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_tree_that_lies_is_refused_and_nothing_is_run(tmp_path, mutation):
    path = tmp_path / "x.safetensors"
    neve.save({"w": torch.zeros(4), "u": torch.zeros(2), "t": torch.zeros(3, 2).t(), "n": 1}, path)
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tree = json.loads(header["__metadata__"]["neve.tree"])
    tree.setdefault("tensors", {})
    MUTATIONS[mutation](tree)
    header["__metadata__"]["neve.tree"] = json.dumps(tree).replace('"DEEP"', '{"l":[' * 50_000 + "1" + "]}" * 50_000)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    with pytest.raises((neve.Damaged, neve.Unsupported)):
        neve.load(path)


def test_paths_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    neve.save({"w": torch.ones(1)}, "here.safetensors")
    assert pathlib.Path("here.safetensors").exists() and neve.load("here.safetensors")["w"] == 1
