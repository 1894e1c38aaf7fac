"""Torch's tar archives, of before its streams: what they hold, hostile ones among them. Nothing here needs torch."""

import io
import os
import pickle
import struct
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "corpus"))
import torch_tar

FLOATS = struct.pack("<6f", *range(6))
STORAGE = (7, "FloatStorage", "cpu", 4, FLOATS)
W = (9, 7, "FloatTensor", (2, 3), (3, 1), 0)


class Tensor:
    """Stands for one in the object."""


def object_of(state, **numbers):
    """A pickle of the state, in which the named entries are those of the archive."""
    return torch_tar.pickled(state, {id(state[name]): number for name, number in numbers.items()})


def archive(storages=(STORAGE,), views=(), tensors=(W,), pickled=None, little_endian=True, **files_instead):
    files = torch_tar.parts(pickled or object_of({"w": Tensor()}, w=9), storages, views, tensors, little_endian)
    return torch_tar.archive({**files, **{name[3:]: content for name, content in files_instead.items()}})


def refused(neve, tmp_path, content, code, text):
    (tmp_path / "x.pt").write_bytes(content)
    for verb in ("inspect", "verify"):
        answer = neve(verb, "x.pt")
        assert answer.code == code and text in answer.err + answer.out, (verb, answer.code, answer.err, answer.out)


def tensors_of(neve, tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    answer = neve("inspect", "x.pt", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["kind"] == "torch tar" and neve("verify", "x.pt").code == 0
    return {item["name"]: (item["dtype"], item["shape"], item["strides"]) for item in answer.json["tensors"]}, answer.json


def values_of(neve, tmp_path, name):
    """The bytes of one tensor, by converting to NumPy's format."""
    import numpy

    answer = neve("convert", "x.pt", "x.npz")
    assert answer.code == 0, answer.err
    return numpy.load(tmp_path / "x.npz")[name]


def test_tensors_views_and_parts_of_storages(neve, tmp_path):
    state = {"w": Tensor(), "turned": Tensor(), "part": Tensor(), "empty": Tensor(), "one": Tensor()}
    pickled = object_of(state, w=9, turned=10, part=11, empty=12, one=13)
    content = archive(views=[(8, 7, 2, 4)], pickled=pickled, tensors=[
        W, (10, 7, "FloatTensor", (3, 2), (1, 3), 0), (11, 8, "FloatTensor", (2,), (2,), 1), (12, 7, "FloatTensor", (), (), 6),
        (13, 7, "FloatTensor", (), (), 5)])
    found, _ = tensors_of(neve, tmp_path, content)
    assert found == {"w": ("F32", [2, 3], [3, 1]), "turned": ("F32", [3, 2], [1, 3]), "part": ("F32", [2], [2]),
                     "empty": ("F32", [0], [1]), "one": ("F32", [], [])}
    assert values_of(neve, tmp_path, "part").tolist() == [3, 5] and values_of(neve, tmp_path, "one") == 5
    assert values_of(neve, tmp_path, "turned").tolist() == [[0, 3], [1, 4], [2, 5]]


def test_PT_19_words_of_the_other_byte_order_are_turned(neve, tmp_path):
    content = archive([(7, "FloatStorage", "cpu", 4, struct.pack(">6f", *range(6)))], little_endian=False)
    _, shown = tensors_of(neve, tmp_path, content)
    assert values_of(neve, tmp_path, "w").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert "big endian" in neve("inspect", "x.pt").err + neve("inspect", "x.pt").out


def test_sizes_in_extended_headers_and_files_beside_ours(neve, tmp_path):
    files = list(torch_tar.parts(object_of({"w": Tensor()}, w=9), [STORAGE], [], [W]).items())
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        folder = tarfile.TarInfo("more")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in [*files, ("more/x", b"1")]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.pax_headers = {"size": str(len(content)), "comment": "é"}
            tar.addfile(info, io.BytesIO(content))
    assert list(tensors_of(neve, tmp_path, out.getvalue())[0]) == ["w"]


def test_SEC_01_nothing_that_it_names_is_run(neve, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.system, ("touch pwned",)

    state = {"w": Tensor(), "cfg": Bomb()}
    _, shown = tensors_of(neve, tmp_path, archive(pickled=object_of(state, w=9)))
    assert [item["path"] for item in shown["objects"]] == ["cfg"] and shown["objects"][0]["callable"].endswith(".system")
    for part in ("storages", "tensors"):
        refused(neve, tmp_path, archive(**{"of_" + part: pickle.dumps(Bomb(), 2)}), 4, "the count")
    entry = pickle.dumps(1, 2) + pickle.dumps((1, Bomb(), 2), 2) + bytes(64)
    refused(neve, tmp_path, archive(of_storages=entry), 4, "no place or no type")
    assert neve("convert", "x.pt", "y.pt").code == 4 and not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content, code, text", [
    (archive(tensors=[(9, 8, "FloatTensor", (2, 3), (3, 1), 0)]), 4, "a storage that is not there"),
    (archive(tensors=[(9, 7, "FloatTensor", (2, 3), (3, 1), 1)]), 4, "w"),
    (archive(tensors=[(9, 7, "FloatTensor", (2, 3), (4, 1), 0)]), 4, "w"),
    (archive(tensors=[(9, 7, "FloatTensor", (1 << 40, 1 << 40), (1, 1), 0)]), 4, "w"),
    (archive(tensors=[(9, 7, "FloatTensor", (2, 3), (-1, 1), 0)]), 4, "negative"),
    (archive(tensors=[(9, 7, "FloatTensor", (2, 3), (3, 1), -1)]), 4, "negative"),
    (archive(tensors=[(9, 7, "FloatTensor", (1,) * 65, (1,) * 65, 0)]), 4, "65 dimensions"),
    (archive(tensors=[W, W]), 4, "stands for two things"),
    (archive(tensors=[W, (7, 7, "FloatTensor", (1,), (1,), 0)]), 4, "stands for two things"),
    (archive(tensors=[]), 4, "neither a tensor nor a storage 9"),
    (archive(storages=[STORAGE, STORAGE]), 4, "there twice"),
    (archive(storages=[(7, "StrangeStorage", "cpu", 4, FLOATS)]), 3, "StrangeStorage"),
    (archive(views=[(8, 7, 3, 4)]), 4, "reaches out"),
    (archive(views=[(8, 7, -1, 2)]), 4, "reaches out"),
    (archive(views=[(8, 7, 1 << 62, 1 << 62)]), 4, "reaches out"),
    (archive(views=[(8, 6, 0, 1)]), 4, "not there"),
    (archive(views=[(8, 7, 0)]), 4, "four numbers"),
    (archive(of_storages=pickle.dumps(1 << 40, 2) + bytes(64)), 4, "too great"),
    (archive(of_tensors=pickle.dumps(-1, 2) + bytes(64)), 4, "the count"),
    (archive(of_storages=pickle.dumps(1, 2) + torch_tar.pickled((7, "cpu", torch_tar.Named("torch", "FloatStorage")))
             + struct.pack("<q", 1 << 61) + bytes(64)), 4, "truncated"),
    (archive(of_tensors=torch_tar.parts(b"", [], [], [W])["tensors"] + b"x"), 4, "follow the last tensor"),
    (archive(pickled=b"\x80\x02X\x01\x00\x00\x00aQ."), 4, "no number"),
    (archive(of_pickle=b"not a pickle"), 4, "malformed"),
    (torch_tar.archive({"pickle": b"N.", "tensors": b"K\x00."}), 3, "a tar archive, but has no file named storages"),
    (torch_tar.archive({"README": b"hello"}), 3, "a tar archive"),
    (torch_tar.archive([("pickle", b"N."), ("pickle", b"N.")]), 4, "there twice"),
    (torch_tar.archive([(f"f{i}", b"") for i in range(1100)]), 4, "more than 1024 members"),
    (archive()[:700], 4, "truncated"), (archive()[:2048], 4, "truncated"),
])
def test_malformed_archives_are_refused_with_their_place(neve, tmp_path, content, code, text):
    refused(neve, tmp_path, content, code, text)


def test_a_header_that_was_changed_is_found(neve, tmp_path):
    content = bytearray(archive())
    content[512 + content[512:].index(b"pickle\0") + 124] ^= 1
    refused(neve, tmp_path, bytes(content), 4, "checksum of a header")


def test_PT_22_cut_anywhere_it_is_an_error(neve, tmp_path):
    whole = archive()
    end = len(whole.rstrip(b"\0"))
    for size in sorted({0, 1, 511, 512, 513, 1024, 1536, 2048, 2560, 3072, 3584, end - 1, end}):
        (tmp_path / "x.pt").write_bytes(whole[:size])
        assert neve("inspect", "x.pt").code in (3, 4), size
