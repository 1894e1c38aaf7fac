"""convert: every target from every source that is there, bit for bit; refusals by name; the old file kept until the new is whole."""

import collections
import json
import os

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
         torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64]


def tensors():
    torch.manual_seed(3)
    state = {str(kind)[6:]: (torch.randn(9, 14) * 4).abs().to(kind) for kind in KINDS}
    state.update(scalar=torch.tensor(2.5), empty=torch.zeros(0, 3), nan=torch.tensor([float("nan"), -0.0, float("inf")]))
    return state


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    assert a.contiguous().reshape(-1).view(torch.uint8).equal(b.contiguous().reshape(-1).view(torch.uint8))


def same_all(a, b):
    assert list(a) == list(b) or set(a) == set(b)
    for name in a:
        same(a[name], b[name])


@pytest.fixture
def flat(tmp_path):
    save_file(tensors(), tmp_path / "in.safetensors", metadata={"by": "hand"})
    return tensors()


def checkpoint():
    torch.manual_seed(4)
    w = torch.randn(12, 5)
    model = collections.OrderedDict(w=w, tied=w, turned=w.t(), row=w[3], conv=torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    model._metadata = collections.OrderedDict([("", {"version": 1})])
    return {"model": model, "p": torch.nn.Parameter(torch.ones(4)), "wide": torch.ones(3, 1).expand(3, 4),
            "opt": {"state": {0: {"m": torch.ones(3), "step": 5}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]},
            "step": 7, "name": "h\u00e9", "huge": -(10**30), "bytes": b"\x00\xff", "none": None, "flag": True, "z": 1 + 2j,
            "size": torch.Size([1, 2]), "dtype": torch.float16, "list": [torch.zeros(1), 1, []], "f8": torch.ones(4).to(torch.float8_e5m2)}


# ---- From a flat file ----


def test_safetensors_to_pt_opens_in_torch(neve, tmp_path, flat):
    answer = neve("convert", "in.safetensors", "out.pt")
    assert answer.code == 0, answer.err
    for options in ({}, {"mmap": True}):
        same_all(flat, torch.load(tmp_path / "out.pt", weights_only=True, **options))
    assert neve("diff", "in.safetensors", "out.pt").code == 0


def test_safetensors_to_safetensors_keeps_its_bytes(neve, tmp_path, flat):
    assert neve("convert", "in.safetensors", "out.safetensors").code == 0
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "in.safetensors").read_bytes()


def test_safetensors_to_npz_opens_in_numpy(neve, tmp_path, flat):
    lacking = [name for name in flat if "bfloat" in name or "float8" in name]
    refused = neve("convert", "in.safetensors", "out.npz")
    assert refused.code == 3 and all(name in refused.err for name in lacking) and not (tmp_path / "out.npz").exists()
    answer = neve("convert", "in.safetensors", "out.npz", *(f"--drop={name}" for name in lacking))
    assert answer.code == 0, answer.err
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == set(flat) - set(lacking)
        for name in arrays:
            assert arrays[name].dtype == flat[name].numpy().dtype and arrays[name].shape == tuple(flat[name].shape)
            assert arrays[name].tobytes() == flat[name].numpy().tobytes()


def test_safetensors_to_a_huggingface_folder(neve, tmp_path, flat):
    answer = neve("convert", "in.safetensors", "out", "--to", "hf", "--shard-size", "1K")
    assert answer.code == 0, answer.err
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.numel() * tensor.element_size() for tensor in flat.values())
    assert set(index["weight_map"]) == set(flat) and len(set(index["weight_map"].values())) > 3
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "out" / file, "pt") as shard:
            assert shard.metadata() == {"format": "pt"}
            same(shard.get_tensor(name), flat[name])
    assert sorted(os.listdir(tmp_path / "out")) == sorted({*index["weight_map"].values(), "model.safetensors.index.json"})


def test_safetensors_to_a_step_that_restores(neve, tmp_path, flat):
    answer = neve("convert", "in.safetensors", "job", "--to", "step", "--step", "40")
    assert answer.code == 0, answer.err
    assert neve("verify", "job").code == 0
    assert neve("ls", "job", "--json").json["saves"][0]["step"] == 40
    assert neve("diff", "in.safetensors", "job").code == 0


# ---- From a checkpoint with a tree ----


def test_ST_01_pt_to_safetensors_and_back_keeps_structure(neve, tmp_path):
    before = checkpoint()
    torch.save(before, tmp_path / "in.pt")
    refused = neve("convert", "in.pt", "mid.safetensors")
    assert refused.code == 3 and "opt.state" in refused.err and "key" in refused.err and not (tmp_path / "mid.safetensors").exists()
    assert neve("convert", "in.pt", "mid.safetensors", "--tree").code == 0
    assert neve("diff", "in.pt", "mid.safetensors").code == 0
    answer = neve("convert", "mid.safetensors", "out.pt")
    assert answer.code == 0, answer.err
    after = torch.load(tmp_path / "out.pt", weights_only=False)
    plain = {"step", "name", "huge", "bytes", "none", "flag", "z", "size", "dtype"}
    assert {key: after[key] for key in plain} == {key: before[key] for key in plain}
    assert list(after) == list(before) and type(after["size"]) is torch.Size
    assert type(after["model"]) is collections.OrderedDict and after["model"]._metadata == before["model"]._metadata
    model = after["model"]
    assert model["tied"] is model["w"] and model["turned"].data_ptr() == model["w"].data_ptr()
    assert model["row"].storage_offset() == 15 and model["conv"].is_contiguous(memory_format=torch.channels_last)
    for name, tensor in before["model"].items():
        same(tensor, model[name])
        assert model[name].stride() == tensor.stride()
    assert type(after["p"]) is torch.nn.Parameter and after["p"].requires_grad
    assert after["wide"].stride() == before["wide"].stride()
    assert after["opt"]["groups"] == before["opt"]["groups"] and after["opt"]["state"][0]["step"] == 5
    same(after["f8"], before["f8"])


def test_a_step_becomes_pt_with_its_values(neve, make_job, tmp_path):
    make_job(steps=2)
    refused = neve("convert", "gpt", "out.pt")
    assert refused.code == 3 and "odd" in refused.err and "__main__.Odd" in refused.err
    answer = neve("convert", "gpt", "out.pt", "--step", "1", "--drop", "odd")
    assert answer.code == 0 and "left out odd" in answer.err
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    assert state["step"] == 1 and state["optimizer"] == {"lr": 0.5, "betas": (0.9, float("inf")), 3: b"key"}
    assert state["model"]["w"].shape == (256, 1024) and state["model"]["w"][0, 0] == 1


def test_dropping_rewrites_the_tree(neve, tmp_path):
    torch.save(checkpoint(), tmp_path / "in.pt")
    answer = neve("convert", "in.pt", "out.safetensors", "--drop", "opt", "--drop", "model.[ct]*", "--drop", "list.0", "--json")
    assert answer.code == 0, answer.err
    assert set(answer.json["dropped"]) == {"opt", "model.tied", "model.turned", "model.conv", "list.0"}
    tree = neve("inspect", "out.safetensors", "--json").json
    assert [tensor["name"] for tensor in tree["tensors"]] == ["model.w", "model.row", "p", "wide", "f8"]
    assert tree["tree"]["list"] == [None, 1, []] and "opt" not in tree["tree"] and tree["tree"]["step"] == 7
    assert neve("convert", "out.safetensors", "again.pt").code == 0
    same(torch.load(tmp_path / "again.pt")["model"]["row"], checkpoint()["model"]["row"])


def test_dropping_what_is_not_there_or_what_holds_others_memory(neve, tmp_path):
    torch.save(checkpoint(), tmp_path / "in.pt")
    absent = neve("convert", "in.pt", "out.safetensors", "--drop", "modle")
    assert absent.code == 2 and "modle" in absent.err
    holder = neve("convert", "in.pt", "out.safetensors", "--tree", "--drop", "model.w")
    assert holder.code == 2 and "model.w" in holder.err
    assert not (tmp_path / "out.safetensors").exists()


def test_PT_09_an_object_that_only_its_pickle_brings_back_is_refused_by_name(neve, tmp_path):
    import argparse

    torch.save({"w": torch.ones(2), "args": argparse.Namespace(lr=1)}, tmp_path / "in.pt")
    for out in ("out.safetensors", "out.pt"):
        refused = neve("convert", "in.pt", out)
        assert refused.code == 3 and '"args"' in refused.err and "argparse.Namespace" in refused.err
        assert not (tmp_path / out).exists()
    assert neve("convert", "in.pt", "out.safetensors", "--drop", "args").code == 0
    same_all(load_file(tmp_path / "out.safetensors"), {"w": torch.ones(2)})


def test_types_that_plain_readers_misread_need_tree(neve, tmp_path):
    torch.save({"z": torch.ones(3, dtype=torch.complex128)}, tmp_path / "in.pt")
    refused = neve("convert", "in.pt", "out.safetensors")
    assert refused.code == 3 and "C128" in refused.err
    assert neve("convert", "in.pt", "out.safetensors", "--tree").code == 0
    assert neve("convert", "out.safetensors", "back.pt").code == 0
    same(torch.load(tmp_path / "back.pt")["z"], torch.ones(3, dtype=torch.complex128))


def test_targets_of_tensors_refuse_values_by_name(neve, tmp_path):
    torch.save({"w": torch.ones(2), "step": 5}, tmp_path / "in.pt")
    for arguments in (("out.npz",), ("out", "--to", "hf")):
        refused = neve("convert", "in.pt", *arguments)
        assert refused.code == 3 and '"step"' in refused.err and "5" in refused.err
        assert neve("convert", "in.pt", *arguments, "--drop", "step").code == 0


def test_views_over_one_memory_with_two_types_keep_it(neve, tmp_path):
    base = torch.arange(16, dtype=torch.float32)
    torch.save({"w": base}, tmp_path / "plain.pt")
    from neve import save   # an image with an alias of another type

    save({"w": base, "bytes": base.view(torch.uint8)[4:9]}, str(tmp_path / "in.safetensors"))
    answer = neve("convert", "in.safetensors", "out.pt")
    assert answer.code == 0, answer.err
    after = torch.load(tmp_path / "out.pt", weights_only=True)
    same(after["bytes"], base.view(torch.uint8)[4:9])
    assert after["bytes"].untyped_storage().data_ptr() == after["w"].untyped_storage().data_ptr()


# ---- Safety ----


def test_ST_14_input_and_output_may_not_be_one_file(neve, tmp_path, flat):
    os.link(tmp_path / "in.safetensors", tmp_path / "other.safetensors")
    os.symlink("in.safetensors", tmp_path / "link.safetensors")
    for out in ("in.safetensors", "other.safetensors", "link.safetensors", "./in.safetensors"):
        assert neve("convert", "in.safetensors", out).code == 2
    same_all(load_file(tmp_path / "in.safetensors"), flat)


def test_an_old_file_is_replaced_only_by_a_whole_one(neve, tmp_path, flat):
    (tmp_path / "out.pt").write_bytes(b"old")
    (tmp_path / "bad.safetensors").write_bytes((tmp_path / "in.safetensors").read_bytes()[:-1])
    assert neve("convert", "bad.safetensors", "out.pt").code == 4
    assert (tmp_path / "out.pt").read_bytes() == b"old"
    assert neve("convert", "in.safetensors", "out.pt").code == 0
    same_all(torch.load(tmp_path / "out.pt"), flat)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".tmp")]


def test_a_digest_that_does_not_hold_leaves_no_output(neve, newest, tmp_path):
    _, image, _ = newest()
    with open(image, "r+b") as file:
        file.seek(200_000)
        file.write(b"\xff")
    answer = neve("convert", "gpt", "out.safetensors", "--tree", "--drop", "odd")
    assert answer.code == 1 and not (tmp_path / "out.safetensors").exists()


def test_PT_21_a_flipped_bit_in_a_pt_leaves_no_output(neve, tmp_path):
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "in.pt")
    content = bytearray((tmp_path / "in.pt").read_bytes())
    content[200_000] ^= 1
    (tmp_path / "in.pt").write_bytes(content)
    answer = neve("convert", "in.pt", "out.safetensors")
    assert answer.code == 1 and answer.err and not (tmp_path / "out.safetensors").exists()


def test_a_folder_is_never_written_over(neve, tmp_path, flat):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    for to in ("hf", "step"):
        answer = neve("convert", "in.safetensors", "out", "--to", to)
        assert answer.code == 2 and "out" in answer.err
    assert os.listdir(tmp_path / "out") == ["mine"]
    (tmp_path / "empty").mkdir()
    assert neve("convert", "in.safetensors", "empty", "--to", "hf").code == 0


def test_lenient_reads_past_trailing_bytes(neve, tmp_path, flat):
    with open(tmp_path / "in.safetensors", "ab") as file:
        file.write(b"tail")
    assert neve("convert", "in.safetensors", "out.safetensors").code == 4
    assert neve("convert", "in.safetensors", "out.safetensors", "--lenient").code == 0
    same_all(load_file(tmp_path / "out.safetensors"), flat)


def test_memory_stays_bounded(peak_bytes, tmp_path):
    with open(tmp_path / "big.safetensors", "wb") as file:
        size = 600 << 20
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)   # a hole: no disk is needed to read it
    limit = 320 << 20   # 256 MiB, and what the program itself takes
    for arguments in (["stats", "big.safetensors"], ["diff", "big.safetensors", "big.safetensors"],
                      ["convert", "big.safetensors", "out.pt"]):
        assert peak_bytes(*arguments) < limit, arguments


@pytest.mark.parametrize(("arguments", "code"), [
    ((), 2), (("in.safetensors",), 2), (("in.safetensors", "out.xyz"), 2), (("in.safetensors", "out", "--to", "zip"), 2),
    (("in.safetensors", "out", "--to", "dpc"), 2), (("missing", "out.pt"), 5), (("html", "out.pt"), 3),
    (("in.safetensors", "no/such/folder/out.pt"), 5), (("in.safetensors", "out", "--to", "hf", "--shard-size", "0"), 2),
])
def test_exit_codes(neve, tmp_path, flat, arguments, code):
    (tmp_path / "html").write_text("<!DOCTYPE html><html>" + "hello " * 100)
    answer = neve("convert", *arguments)
    assert answer.code == code and answer.err, answer.err
    assert not (tmp_path / "out.pt").exists()


def test_numbers_as_keys_are_refused_with_the_two_ways_out(neve, tmp_path):
    torch.save({"model": {"w": torch.ones(2)}, "optimizer": {"state": {0: {"m": torch.zeros(2)}}}}, tmp_path / "ckpt.pt")
    answer = neve("convert", "ckpt.pt", "out.safetensors")
    assert answer.code == 3 and '"optimizer.state.~i0"' in answer.err and "add --tree" in answer.err and "--drop" in answer.err
    assert not (tmp_path / "out.safetensors").exists()
    assert neve("convert", "ckpt.pt", "out.safetensors", "--tree").code == 0
    assert neve("diff", "ckpt.pt", "out.safetensors").code == 0
    assert neve("convert", "ckpt.pt", "model.safetensors", "--drop", "optimizer").code == 0
