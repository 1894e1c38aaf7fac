"""Makes the small files of this folder with the libraries that people use: run it with their versions installed.

    python tests/corpus/make_torch.py FOLDER

Each file is written by the library itself; `readers_test.py` opens each with neve and with the library, and compares.
"""

import sys
import warnings
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as checkpoint
import torch_tar

warnings.simplefilter("ignore")


class Config:
    """An object of a class that no reader has."""

    def __init__(self):
        self.width = 4
        self.weight = torch.arange(4.0)


def states():
    """Name -> object: what each file holds."""
    shared = torch.arange(12, dtype=torch.float32)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.tensor_model_parallel = True
    attributed = torch.ones(2)
    attributed.foo = 1
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    yield "state_dict", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7, "name": "x", "lr": 0.1}
    yield "views", {"a": shared, "b": shared[2:8], "c": shared.view(3, 4).t(), "d": shared[:0], "e": torch.tensor(3.5),
                    "f": torch.zeros(1).expand(5, 4), "same": shared, "slice": torch.arange(100)[7:9],
                    "last": torch.arange(108.0).reshape(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)}
    yield "dtypes", {str(dtype)[6:]: torch.arange(6).to(dtype) for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
        torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
        torch.float8_e5m2)}
    yield "kinds", {"parameter": parameter, "attributed": attributed, "gradient": torch.ones(3, requires_grad=True),
                    "conj": torch.tensor([1 + 2j, 3 - 1j]).conj(), "neg": torch.tensor([1 + 2j]).conj().imag,
                    "meta": torch.empty(3, 4, device="meta"),
                    "coo": torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)),
                    "coalesced": torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)).coalesce(),
                    "csr": torch.eye(3).to_sparse_csr(), "generator": torch.Generator().manual_seed(3)}
    yield "values", {"none": None, "flag": True, "big": 1 << 100, "float": 1.5, "nan": float("nan"), "complex": 1 + 2j, "bytes": b"\0\xff",
                     "text": "caf\u00e9 \n", "list": [1, [2, (3, "x")]], "set": {1, 2}, "ordered": OrderedDict(a=1),
                     "size": torch.Size([2, 3]), "dtype": torch.float16, "device": torch.device("cuda", 1), 1: "one", (2, "x"): "pair",
                     "": "empty", "a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, "long": list(range(3000)), None: 1,
                     "default": defaultdict(list, k=[torch.ones(1)])}
    yield "numpy", {"array": np.arange(6, dtype=np.float32).reshape(2, 3), "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
                    "scalar": np.float64(1e-3), "int": np.int64(3), "dates": np.array(["2020-01-01"], "M8[ns]"), "text": np.array("abc"),
                    "swapped": np.arange(3, dtype=">i4"), "state": np.random.RandomState(5).get_state()}
    yield "tensor", torch.arange(4.0)
    yield "empty", {}
    yield "object", {"cfg": Config(), "w": torch.ones(2)}


def repack(source, target, change):
    """The archive with its entries as `change` gives them: name, content, compression."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name, content, compression in change([(info.filename, old.read(info)) for info in old.infolist()]):
            new.writestr(zipfile.ZipInfo(name), content, compression)


def save_tar(state, tensors, path):
    """As torch saved before 0.1.10. tensors: those of the state; each storage is told from its first tensor."""
    kinds = torch.storage._dtype_to_storage_type_map()
    storages, entries, numbers = {}, [], {}
    for tensor in tensors:
        number = storages.setdefault(tensor.untyped_storage().data_ptr(), (1000 + len(storages), tensor))[0]
        numbers[id(tensor)] = 1 + len(entries)
        kind = kinds[tensor.dtype].replace("Storage", "Tensor")
        entries.append((1 + len(entries), number, kind, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()))
    contents = [(number, kinds[tensor.dtype], "cpu", tensor.element_size(), bytes(tensor.untyped_storage()))
                for number, tensor in storages.values()]
    path.write_bytes(torch_tar.archive(torch_tar.parts(torch_tar.pickled(state, numbers), contents, [], entries)))


def main(folder: Path) -> None:
    w, base = torch.arange(12.0).view(3, 4), torch.arange(20, dtype=torch.float64)
    old = [w, w.t(), base[3:9], base[5:].view(3, 5)[:, 1:3], torch.tensor([2**40, -1]), torch.tensor([True, False]).to(torch.uint8),
           torch.ones(2, 2).half()]
    save_tar(OrderedDict(w=old[0], turned=old[1], again=old[0], part=old[2], box=old[3], opt={"step": old[4], "lr": 0.5, 3: [old[5], None]},
                         half=old[6], name="old"), old, folder / "state_dict.tar.pt")
    sys.modules["__main__"].Config.__module__ = "training"
    sys.modules["training"] = sys.modules["__main__"]
    for name, state in states():
        torch.save(state, folder / f"{name}.pt")
        if name in ("state_dict", "views"):   # torch cannot read its own streams of newer dtypes
            torch.save(state, folder / f"{name}.legacy.pt", _use_new_zipfile_serialization=False)
        if name == "state_dict":
            for protocol in (3, 4, 5):
                torch.save(state, folder / f"{name}.p{protocol}.pt", pickle_protocol=protocol)
    plain, stored = folder / "views.pt", zipfile.ZIP_STORED
    repack(plain, folder / "views.deflated.pt", lambda all: [(n, c, zipfile.ZIP_DEFLATED) for n, c in all])
    repack(plain, folder / "views.reversed.pt", lambda all: [(n, c, stored) for n, c in reversed(all)])
    repack(plain, folder / "views.rootless.pt", lambda all: [(n.split("/", 1)[1], c, stored) for n, c in all])
    repack(plain, folder / "views.extra.pt", lambda all: [(n, c, stored) for n, c in all] + [("__MACOSX/x", b"junk", stored)])
    np.savez(folder / "arrays.npz", x=np.arange(6).reshape(2, 3), f=np.asfortranarray(np.arange(6.0).reshape(2, 3)),
             s=np.array(["ab", "c"]), be=np.arange(3, dtype=">f4"))
    np.savez_compressed(folder / "packed.npz", x=np.zeros(10000), y=np.arange(5))
    np.save(folder / "array.npy", np.arange(12, dtype=np.int16).reshape(3, 4))
    sharded = {"model": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}, "epoch": 7, "lr": 0.1,
               "name": "x", "none": None, "pair": (1, 2), "list": [1, torch.ones(3)]}
    checkpoint.save(sharded, checkpoint_id=folder / "dcp")
    repack(plain, folder / "views.unmarked.pt", lambda all: [(n, c, stored) for n, c in all if not n.endswith("byteorder")])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
