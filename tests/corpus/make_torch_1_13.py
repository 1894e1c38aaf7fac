"""Makes `torch-1.13.*.pt` of this folder, with torch 1.13.1: what that version writes must open for ever.

    python tests/corpus/make_torch_1_13.py FOLDER
"""

import sys
from collections import OrderedDict
from pathlib import Path

import torch


def state():
    """Of kinds that 1.13 and every later version have."""
    torch.manual_seed(3)
    base = torch.arange(60.0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    model(torch.randn(2, 2, 8, 8)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "name": "h\u00e9", "none": None, "z": 1 + 2j,
            "views": {"a": base[3:9], "b": base[5:].view(5, 11).t(), "wide": torch.ones(1).expand(3, 4), "same": base},
            "dtypes": {str(dtype)[6:]: torch.arange(5).to(dtype) for dtype in (
                torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                torch.float32, torch.float64, torch.complex64, torch.complex128)},
            "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False), "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5),
            "conj": torch.tensor([1 + 2j]).conj(), "sparse": torch.eye(3).to_sparse(), "size": torch.Size([1, 2]), "dtype": torch.float16,
            "device": torch.device("cpu"), "ordered": OrderedDict(b=1, a=torch.ones(1)), "bytes": b"\x00\xff", "set": {1, 2}}


def main(folder: Path) -> None:
    if torch.version.__version__.split("+")[0] != "1.13.1":
        sys.exit(f"this is torch {torch.version.__version__}, not 1.13.1")
    torch.save(state(), folder / "torch-1.13.pt")
    without = {key: value for key, value in state().items() if key != "conj"}   # its old form forgets the bit
    torch.save(without, folder / "torch-1.13.stream.pt", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
