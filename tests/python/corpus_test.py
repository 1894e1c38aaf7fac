"""neve.load of files that torch and NumPy wrote gives what they themselves load, bit for bit."""

from pathlib import Path

import numpy
import pytest
import torch

import neve
from neve._image import Image
from neve._restore import Restoration
from same import assert_same

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
FILES = CORPUS / "files"
# Torch refuses these two, whose content is that of views.pt, and is slow to say so.
AS_OF = {"views.extra.pt": "views.pt", "views.rootless.pt": "views.pt"}


def load_folder(path):
    """What a folder that is one checkpoint holds."""
    return Restoration(Image.open(str(path)), str(path)).fresh()


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.pt") if path.name != "object.pt"))
def test_PT_16_PT_24_what_torch_wrote_comes_back_as_torch_loads_it(name):
    loaded = neve.load(FILES / name, map_location="cpu")
    wanted = torch.load(FILES / AS_OF.get(name, name), map_location="cpu", weights_only=False)
    if name == "kinds.pt":
        assert torch.equal(loaded.pop("generator").get_state(), wanted.pop("generator").get_state())
    # A lazily negated view comes back by its values, in memory of its own.
    assert_same(loaded, wanted, strides=name != "kinds.pt")


def test_PT_25_strides_and_sharing_come_back():
    loaded = neve.load(FILES / "views.pt")
    assert loaded["last"].stride() == (27, 1, 9, 3) and loaded["f"].stride() == (0, 0)
    assert loaded["same"] is loaded["a"]
    loaded["a"][2] = 77
    assert loaded["b"][0] == 77 and loaded["c"][2, 0] == 77


def test_PT_04_lazy_bits_are_honoured():
    loaded = neve.load(FILES / "kinds.pt", map_location="cpu")
    assert loaded["conj"].tolist() == [1 - 2j, 3 + 1j] and loaded["neg"].tolist() == [-2.0]


def test_PT_07_attributes_and_parameters_come_back():
    loaded = neve.load(FILES / "kinds.pt", map_location="cpu")
    assert loaded["attributed"].foo == 1 and loaded["parameter"].tensor_model_parallel is True
    assert type(loaded["parameter"]) is torch.nn.Parameter and loaded["gradient"].requires_grad


def test_PT_09_an_object_of_a_class_that_is_not_here_is_named():
    with pytest.raises(neve.UnsupportedOnLoad, match="cfg.*training.Config"):
        neve.load(FILES / "object.pt")


def test_arrays_of_numpy_come_back_as_numpy_loads_them():
    assert_same(neve.load(FILES / "array.npy"), numpy.load(FILES / "array.npy"))
    for name in ("arrays.npz", "packed.npz"):
        with numpy.load(FILES / name) as wanted:
            assert_same(neve.load(FILES / name), {key: wanted[key] for key in wanted.files})


def test_DCP_04_tensors_numbers_and_nesting_of_a_dcp_folder_come_back():
    loaded = load_folder(FILES / "dcp")
    assert_same(loaded, {"model": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}, "epoch": 7,
                         "lr": 0.1, "name": "x", "none": None, "pair": (1, 2), "list": [1, torch.ones(3)]})


def test_DCP_06_pieces_are_assembled(tmp_path):
    import pickle
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata)
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    whole = torch.arange(10 * 7, dtype=torch.int16).reshape(10, 7)
    chunks, places, content = [], {}, b""
    for row, rows in ((0, 3), (3, 3), (6, 4)):
        for column, columns in ((0, 5), (5, 2)):
            torch.save(whole[row:row + rows, column:column + columns].clone(), tmp_path / "piece")
            piece = (tmp_path / "piece").read_bytes()
            offset = torch.Size([row, column])
            chunks.append(ChunkStorageMetadata(offset, torch.Size([rows, columns])))
            places[MetadataIndex("w", offset)] = _StorageInfo("data.distcp", len(content), len(piece))
            content += piece
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / "data.distcp").write_bytes(content)
    tensor = TensorStorageMetadata(TensorProperties(dtype=torch.int16), whole.shape, chunks)
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Metadata({"w": tensor}, None, places)))
    assert_same(load_folder(tmp_path / "dcp"), {"w": whole})
    del chunks[1]
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Metadata({"w": tensor}, None, places)))
    with pytest.raises(neve.Damaged, match="hole"):
        load_folder(tmp_path / "dcp")


def test_PT_19_a_big_endian_archive_comes_back_right(tmp_path):
    import zipfile

    state = {"f": torch.ones(3), "i": torch.ones(3, dtype=torch.int16), "c": torch.tensor([1 + 2j], dtype=torch.complex64),
             "b": torch.tensor([True, False]), "u": torch.tensor([1, 2], dtype=torch.uint16)}
    words = {"0": 4, "1": 2, "2": 4, "3": 1, "4": 2}
    torch.save(state, tmp_path / "little.pt")
    with zipfile.ZipFile(tmp_path / "little.pt") as old, zipfile.ZipFile(tmp_path / "big.pt", "w") as new:
        for info in old.infolist():
            content = old.read(info)
            key = info.filename.rsplit("/", 1)[1]
            if "/data/" in info.filename:
                content = numpy.frombuffer(content, f"<u{words[key]}").byteswap().tobytes()
            new.writestr(info.filename, b"big" if key == "byteorder" else content)
    assert_same(neve.load(tmp_path / "big.pt"), state)
