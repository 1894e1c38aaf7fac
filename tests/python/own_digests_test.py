"""Single .safetensors files carry digests of all their bytes, header included, in their own header."""

import json
import os
import random
import struct
import subprocess

import neve
import pytest
import torch
from child import COMMAND
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from same import assert_same


def state():
    torch.manual_seed(1)
    w = torch.randn(2_000_000)   # two chunks and a half
    return {"w": w, "tied": w, "b": {"c": torch.arange(5), "wide": torch.ones(1).expand(50, 60)}, "part": torch.ones(300, 300)[:, :7],
            "step": 7, "name": "x" * 5000}


def parsed(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return data, json.loads(data[8:8 + length])


def command(*arguments):
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "NEVE_LOG": "error"})


@pytest.fixture(params=["save", "async_save", "convert"])
def written(request, tmp_path):
    """A file of that state, by each of the ways to write one."""
    path = tmp_path / "x.safetensors"
    if request.param == "save":
        neve.save(state(), path)
    elif request.param == "async_save":
        neve.async_save(state(), path).wait("done")
    else:
        neve.save(state(), tmp_path / "x.pt")
        assert command("convert", tmp_path / "x.pt", path).returncode == 0
    return path


def xxh3_128(path, data):
    """By `neve stats`, which digests the bytes of any file's tensor."""
    save_file({"x": torch.frombuffer(bytearray(data), dtype=torch.uint8)}, path)
    return json.loads(command("stats", path, "--json").stdout)["tensors"][0]["digest"]


def test_every_chunk_has_its_digest_as_the_page_on_the_format_says(written, tmp_path):
    data, header = parsed(written)
    value = header["__metadata__"]["neve.digests"]
    chunk, header_bytes, file_bytes, digests = value.split(":")
    assert (len(chunk), len(header_bytes), len(file_bytes)) == (10, 9, 20)
    assert int(chunk) == 4 << 20 and int(header_bytes) == 8 + struct.unpack("<Q", data[:8])[0] and int(file_bytes) == len(data)
    masked = data.replace(value.encode(), b"0" * len(value), 1)
    wanted = [xxh3_128(tmp_path / "chunk.safetensors", masked[at:at + (4 << 20)]) for at in range(0, len(masked), 4 << 20)]
    assert digests.rstrip(" ") == "".join(wanted)


def test_other_programs_open_it(written):
    opened = load_file(written)
    assert_same(opened["w"], state()["w"])
    with safe_open(written, "pt") as file:
        assert file.metadata()["neve.format"] == "1" and set(file.metadata()["neve.digests"]) <= set("0123456789abcdef: ")
    data, header = parsed(written)
    assert len(data) == 8 + struct.unpack("<Q", data[:8])[0] + max(entry["data_offsets"][1] for name, entry in header.items()
                                                                  if name != "__metadata__")


def test_it_comes_back_and_holds(written):
    assert_same(neve.load(written), state())
    verified = command("verify", written, "--json")
    document = json.loads(verified.stdout)
    assert verified.returncode == 0 and document["checked_bytes"] == written.stat().st_size and document["notes"] == []


def test_PT_21_a_flipped_bit_anywhere_is_found_by_everything_that_reads(written, tmp_path):
    seed = int(os.environ.get("NEVE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"NEVE_SEED={seed}")
    chance = random.Random(seed)
    data, header = parsed(written)
    first = data.index(b'"neve.digests":"') + 16
    numbers = range(first - 15, first + 42)   # with a flip in the key or in these it has no digests: the data is right, and not checked
    header_end = 8 + struct.unpack("<Q", data[:8])[0]
    places = [chance.randrange(len(data)) for _ in range(8)] + [chance.randrange(header_end) for _ in range(8)]
    newer = [data.index(b'"neve.format":"1"') + 15, data.index(b'{\\"v\\":1,') + 7]   # where the flip of one bit makes another version
    for place in [*places, 8, first + 50, header_end - 1, header_end, len(data) - 1, *newer]:
        if place in numbers:
            continue
        changed = bytearray(data)
        changed[place] ^= 1 << (3 if place in newer else chance.randrange(8))
        written.write_bytes(changed)
        with pytest.raises(neve.Error):
            neve.load(written)
        assert command("verify", written).returncode in (1, 4), place
        if place >= header_end:
            assert command("stats", written).returncode == 1
            assert command("diff", written, written).returncode in (1, 4)
            assert command("convert", written, tmp_path / "y.pt").returncode == 1 and not (tmp_path / "y.pt").exists()


def test_a_file_that_was_read_wrong_is_told_by_its_tensor(tmp_path):
    neve.save({"a": torch.zeros(3 << 20), "b": torch.ones(3 << 20)}, tmp_path / "x.safetensors")
    data, header = parsed(tmp_path / "x.safetensors")
    changed = bytearray(data)
    changed[-5] ^= 1
    (tmp_path / "x.safetensors").write_bytes(changed)
    with pytest.raises(neve.DataLoss, match="x.safetensors"):
        neve.load(tmp_path / "x.safetensors")
    found = json.loads(command("verify", tmp_path / "x.safetensors", "--json").stdout)["problems"]
    assert [(problem["code"], problem["tensor"]) for problem in found] == [("digest", "b")]


def test_what_another_program_wrote_has_none(tmp_path):
    """One that keeps metadata it does not know, and writes other data beside it."""
    neve.save(state(), tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    metadata = {"neve.digests": metadata["neve.digests"], "by": "hand"}
    tensors["w"][0] += 1
    save_file(tensors, tmp_path / "y.safetensors", metadata)
    assert_same(neve.load(tmp_path / "y.safetensors")["w"], tensors["w"])
    verified = command("verify", tmp_path / "y.safetensors")
    assert verified.returncode == 0 and "no digests of its own" in verified.stderr
    assert command("convert", tmp_path / "y.safetensors", tmp_path / "z.safetensors").returncode == 0
    assert command("verify", tmp_path / "z.safetensors").returncode == 0


@pytest.mark.parametrize("source", ["x.safetensors", "x.pt", "job"])
def test_conversions_make_them_anew(tmp_path, source):
    kept = {key: value for key, value in state().items() if key != "name"}
    if source == "job":
        with neve.Checkpointer(tmp_path / "job", tiers=[f"file:{tmp_path}"], job="job") as ckpt:
            ckpt.save(1, state()).wait("file")
    else:
        neve.save(state(), tmp_path / source)
    assert command("convert", tmp_path / source, tmp_path / "out.safetensors", "--drop", "name").returncode == 0
    assert_same(neve.load(tmp_path / "out.safetensors"), kept)
    assert command("verify", tmp_path / "out.safetensors").stderr == ""
    assert command("convert", tmp_path / "out.safetensors", tmp_path / "step", "--to", "step").returncode == 0
    assert command("verify", tmp_path / "step").returncode == 0
    (image,) = (tmp_path / "step").glob("step-*/*.safetensors")
    assert "neve.digests" not in parsed(image)[1]["__metadata__"]   # its record has them


def test_states_whose_memory_is_shared_get_room_for_all_chunks(tmp_path):
    """What is expected of the size is only a guess: aliases take less, holes that are kept take more."""
    base = torch.arange(6_000_000.0)
    for name, tensors in {"aliases": {f"t{i}": base[i:] for i in range(40)}, "window": {"w": base.unfold(0, 1000, 1)},
                          "wide": {"w": torch.ones(1).expand(1 << 20, 1 << 20)}, "none": {}, "one": {"x": torch.zeros(0)}}.items():
        path = tmp_path / f"{name}.safetensors"
        neve.save(tensors, path)
        assert command("verify", path).stderr == ""
        assert path.stat().st_size < 30_000_000
        with safe_open(path, "pt") as file:
            assert "neve.digests" in file.metadata()


def test_a_file_of_before_has_none_and_loads(tmp_path):
    golden = os.path.join(os.path.dirname(__file__), "..", "golden", "format-1", "state.safetensors")
    assert neve.load(golden) and command("verify", golden).returncode == 0
