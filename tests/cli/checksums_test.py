"""Files whose own checksums say that they are damaged: every verb that reads the data finds it, and nothing is made of it."""

import ctypes
import os
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import neve as library
from neve._image import Image, Range

ELEMENTS = 3_000_000   # more than one chunk, so that no read covers all
VALUES = np.arange(ELEMENTS, dtype=np.float32)


def write(kind, tmp_path):
    """A sound file of each kind, and the file in which its bytes lie."""
    path = tmp_path / f"state-{kind}"
    if kind == "dcp":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save({"w": torch.from_numpy(VALUES), "s": torch.ones(3)}, checkpoint_id=str(path), no_dist=True)
        return path, path / "__0_0.distcp"
    if kind == "npz":
        path = path.with_suffix(".npz")
        np.savez(path, w=VALUES)
    else:
        path = path.with_suffix(".pt")
        torch.save({"w": torch.from_numpy(VALUES)}, path)
    return path, path


def flip(file, values):
    data = bytearray(file.read_bytes())
    data[data.index(values.tobytes()) + 5] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("kind", ["dcp", "npz", "pt"])
def test_a_sound_file_is_read_by_every_verb(neve, tmp_path, kind):
    path, _ = write(kind, tmp_path)
    assert np.array_equal(np.asarray(library.load(path)["w"]), VALUES)
    for arguments in (["verify", path], ["stats", path], ["diff", path, path], ["convert", path, "out.safetensors"]):
        answer = neve(*arguments)
        assert answer.code == 0, answer.err


@pytest.mark.parametrize("kind", ["dcp", "npz", "pt"])
def test_a_flipped_bit_is_data_loss_for_every_verb(neve, tmp_path, kind):
    path, file = write(kind, tmp_path)
    flip(file, VALUES[1_000_000:1_000_010])
    with pytest.raises(library.DataLoss, match='"w" differ from their checksum'):
        library.load(path)
    for arguments in (["verify", path], ["stats", path], ["diff", path, path], ["convert", path, "out.safetensors"]):
        assert neve(*arguments).code == 1, arguments
    assert not (tmp_path / "out.safetensors").exists()


def test_damage_outside_of_a_window_that_is_read_is_found_too(neve, tmp_path):
    torch.save({"v": torch.from_numpy(VALUES)[10:20]}, tmp_path / "v.pt")
    assert neve("stats", "v.pt").code == 0
    flip(tmp_path / "v.pt", VALUES[1_000_000:1_000_010])
    answer = neve("stats", "v.pt")
    assert answer.code == 1 and "differ from their checksum" in answer.err
    assert neve("convert", "v.pt", "out.npz").code == 1


def test_a_deflated_array_with_another_checksum_is_data_loss(neve, tmp_path):
    np.savez_compressed(tmp_path / "c.npz", w=VALUES)
    assert np.array_equal(library.load(tmp_path / "c.npz")["w"], VALUES)
    data = bytearray((tmp_path / "c.npz").read_bytes())
    central = data.rindex(b"PK\x01\x02")
    for at in (14, central + 16):   # of the local header and of the directory
        data[at] ^= 1
    (tmp_path / "c.npz").write_bytes(data)
    with pytest.raises(library.DataLoss):
        library.load(tmp_path / "c.npz")
    assert neve("stats", "c.npz").code == 1


def test_tensors_of_a_dcp_folder_keep_their_values_whatever_their_strides(neve, tmp_path):
    torch.manual_seed(1)
    state = {"channels_last": torch.randn(8, 3, 5, 7).to(memory_format=torch.channels_last), "transposed": torch.randn(50, 70).t(),
             "complex": torch.randn(6, 4, dtype=torch.complex64).t(), "expanded": torch.ones(5, 1).expand(5, 4)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(tmp_path / "d"), no_dist=True)
    loaded = library.load(tmp_path / "d")
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor), name
    assert neve("verify", "d").code == 0 and neve("stats", "d").code == 0
    assert neve("convert", "d", "out.pt").code == 0
    converted = torch.load(tmp_path / "out.pt")
    assert all(torch.equal(converted[name], tensor) for name, tensor in state.items())


_WITHOUT = """
import sys, torch
torch.serialization.set_crc32_options(False)
torch.save({"w": torch.arange(1000.), "n": [1, "two"]}, sys.argv[1])
"""


@pytest.fixture
def without_checksums(tmp_path):
    subprocess.run([sys.executable, "-c", _WITHOUT, str(tmp_path / "n.pt")], check=True, timeout=120)
    return tmp_path / "n.pt"


def test_a_torch_file_without_checksums_is_read_with_a_note(neve, without_checksums):
    loaded = library.load(without_checksums)
    assert torch.equal(loaded["w"], torch.arange(1000.)) and loaded["n"] == [1, "two"]
    answer = neve("verify", "n.pt", "--json")
    assert answer.code == 0 and any("without checksums" in note for note in answer.json["notes"])


def test_a_torch_file_that_has_some_checksums_is_checked(neve, without_checksums):
    data = bytearray(without_checksums.read_bytes())
    central = data.rindex(b"PK\x01\x02")   # the last record's: it is wrong now, and the others' zeros are meant
    data[central + 16] ^= 1
    without_checksums.write_bytes(data)
    assert neve("verify", "n.pt").code in (1, 4)
    with pytest.raises((library.DataLoss, library.Damaged)):
        library.load(without_checksums)


@pytest.mark.parametrize("to", ["npz", "hf"])
def test_attributes_of_tensors_are_refused_by_name_where_they_cannot_be_kept(neve, tmp_path, to):
    tensor = torch.ones(3)
    tensor.scale = {"a": 1}
    torch.save({"w": tensor, "plain": torch.ones(2)}, tmp_path / "a.pt")
    answer = neve("convert", "a.pt", "out", "--to", to)
    assert answer.code == 3 and '"w": attributes are set on it' in answer.err and "plain" not in answer.err


_IN_ACCESS, _IN_OPEN = 0x1, 0x20


@pytest.mark.parametrize("name", ["s.pt", "s.npz", "s.safetensors"])
def test_the_engine_opens_a_file_once_so_that_another_may_take_its_name(tmp_path, name):
    """What was opened is what is read and checked, though the path is another file's by then. inotify tells each
    open that a read follows."""
    path = tmp_path / name
    values = np.arange(1000, dtype=np.float32)
    np.savez(path, w=values) if name.endswith("npz") else library.save({"w": torch.from_numpy(values)}, path)
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert watch >= 0 and libc.inotify_add_watch(watch, os.fsencode(path), _IN_ACCESS | _IN_OPEN) >= 0
    try:
        image = Image.open(str(path))
        os.replace(path, tmp_path / "old")
        path.write_bytes(b"another")
        for stored in image.header.stored.values():
            target = np.zeros(stored.bytes // 4, np.float32)
            image.read([Range("w", stored.offset, stored.bytes, target.ctypes.data)])
            assert np.array_equal(target, values)
        image.close()
        events = b""
        while True:
            try:
                events += os.read(watch, 4096)
            except BlockingIOError:
                break
        count, at = 0, 0
        while at < len(events):
            _, mask, _, name_bytes = struct.unpack_from("=iIII", events, at)
            count += bool(mask & _IN_OPEN)
            at += 16 + name_bytes
        assert count == 1
    finally:
        os.close(watch)
