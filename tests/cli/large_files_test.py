"""inspect of files of 100 GB reads headers, directories and pickles only: bytes are counted, not seconds. The files are holes."""

import json
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "corpus"))
import torch_tar

LARGE = 100 << 30
MOST = 4 << 20   # read by inspect of one of these files, the command's own libraries included

# What a child has read is added to its parent's account once it is waited for.
_COUNTED = """
import subprocess, sys
def read():
    lines = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(lines["rchar"]), int(lines["read_bytes"])
before = read()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
after = read()
sys.stdout.write(done.stdout)
print(*(b - a for a, b in zip(before, after)), file=sys.stderr)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
"""


@pytest.fixture
def counted(command, tmp_path):
    """Runs the command; the answer's JSON, and how many bytes it has read by calls and from the disk."""

    def run(*arguments):
        done = subprocess.run([sys.executable, "-c", _COUNTED, command, *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True,
                              timeout=120)
        assert done.returncode == 0, done.stderr
        called, from_disk = map(int, done.stderr.splitlines()[0].split())
        return json.loads(done.stdout), called, from_disk

    return run


def plain(path, header, size):
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)


class _Tensor:
    def __init__(self, key, count):
        self.key, self.count = key, count


class _Storage(_Tensor):
    """That of a tensor, of the same key and count."""


class _Pickler(torch_tar.Pickler):
    """Tensors over storages of their own, as torch writes them."""

    def persistent_id(self, thing):
        if type(thing) is _Storage:
            return "storage", torch_tar.Named("torch", "FloatStorage"), thing.key, "cpu", thing.count
        return None

    def save(self, thing, save_persistent_id=True):
        if type(thing) is _Tensor:
            self.save(torch_tar.Named("torch._utils", "_rebuild_tensor_v2"))
            self.save((_Storage(thing.key, thing.count), 0, (thing.count,), (1,), False, OrderedDict()))
            self.write(b"R")
        else:
            super().save(thing, save_persistent_id)


def archive(path, sizes):
    """A torch zip of zip64 whose storages are holes of those sizes."""
    with zipfile.ZipFile(path, "w") as out:
        with out.open("x/data.pkl", "w") as file:
            _Pickler(file).dump({f"w{i}": _Tensor(str(i), size // 4) for i, size in enumerate(sizes)})
        out.writestr("x/byteorder", "little")
        for i, size in enumerate(sizes):
            info = zipfile.ZipInfo(f"x/data/{i}")
            info.file_size = info.compress_size = size
            info.CRC, info.header_offset = 0, out.start_dir
            out.fp.seek(out.start_dir)
            out.fp.write(info.FileHeader(zip64=True))
            out.filelist.append(info)
            out.NameToInfo[info.filename] = info
            out.start_dir = out.fp.tell() + size
        out._didModify = True


def test_safetensors(counted, tmp_path):
    header = {"a": {"dtype": "F32", "shape": [LARGE // 8], "data_offsets": [0, LARGE // 2]},
              "b": {"dtype": "U8", "shape": [LARGE // 2], "data_offsets": [LARGE // 2, LARGE]}}
    plain(tmp_path / "x.safetensors", header, LARGE)
    found, called, from_disk = counted("inspect", "x.safetensors", "--json")
    assert [tensor["bytes"] for tensor in found["tensors"]] == [LARGE // 2] * 2
    assert called < MOST and from_disk < 64 << 20, (called, from_disk)


def test_torch_zip(counted, tmp_path):
    archive(tmp_path / "x.pt", [LARGE // 2, 1 << 20, LARGE // 2])
    assert (tmp_path / "x.pt").stat().st_size > LARGE
    found, called, from_disk = counted("inspect", "x.pt", "--json")
    assert [(tensor["name"], tensor["bytes"]) for tensor in found["tensors"]] == [
        ("w0", LARGE // 2), ("w1", 1 << 20), ("w2", LARGE // 2)]
    assert found["tensors"][2]["offset"] > LARGE // 2 and called < MOST and from_disk < 64 << 20, (called, from_disk)


def test_torch_stream(counted, tmp_path):
    out = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    with open(tmp_path / "x.pt", "wb") as file:
        file.write(out)
        _Pickler(file).dump({"w0": _Tensor("0", LARGE // 4)})
        file.write(pickle.dumps(["0"], 2) + struct.pack("<q", LARGE // 4))
        file.truncate(file.tell() + LARGE)
    found, called, _ = counted("inspect", "x.pt", "--json")
    assert found["tensors"][0]["bytes"] == LARGE and called < MOST, called


def test_torch_tar(counted, tmp_path):
    state = {"w": object()}
    numbers = {id(state["w"]): 9}
    large = 8 << 30   # a header counts no further
    files = torch_tar.parts(torch_tar.pickled(state, numbers), [(7, "FloatStorage", "cpu", 4, b"1234")], [],
                            [(9, 7, "FloatTensor", (large // 4,), (1,), 0)])
    head, tail = files["storages"].split(struct.pack("<q", 1) + b"1234")
    head += struct.pack("<q", large // 4)
    whole = torch_tar.archive({**files, "storages": b""})
    end = len(whole.rstrip(b"\0")) + 511 & ~511   # behind the header of the empty file
    info = tarfile.TarInfo("storages")
    info.size = len(head) + large + len(tail)
    with open(tmp_path / "x.pt", "wb") as file:
        file.write(whole[:end - 512] + info.tobuf(tarfile.PAX_FORMAT) + head)
        file.seek(large, 1)
        file.write(tail)
        file.truncate((file.tell() + 511 & ~511) + 1024)
    found, called, _ = counted("inspect", "x.pt", "--json")
    assert found["tensors"][0]["bytes"] == large and called < MOST, called


def test_the_account_counts_what_is_read(counted, tmp_path):
    """What the other tests rest on: stats, which reads the data, is seen to have read it."""
    size = 64 << 20
    plain(tmp_path / "x.safetensors", {"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}, size)
    _, called, from_disk = counted("stats", "x.safetensors", "--json")
    assert called + from_disk >= size
