"""The state that the golden files hold, made anew: every kind of leaf and container that the format has, with fixed values."""

from collections import OrderedDict, defaultdict

import numpy
import torch


def tensors() -> dict:
    """What plain safetensors readers read rightly too."""
    weight = torch.arange(30).reshape(6, 5) / 8
    channels_last = (torch.arange(120).reshape(2, 3, 4, 5) / 16).to(memory_format=torch.channels_last)
    window = torch.arange(12, dtype=torch.int16).as_strided((5, 4), (2, 1))
    state: dict = {
        "layer": OrderedDict(weight=torch.nn.Parameter(weight), bias=torch.nn.Parameter(torch.zeros(5), requires_grad=False)),
        "tied": weight.t(),
        "row": weight[2],
        "expanded": torch.tensor([1.5, -2.0]).expand(3, 2),
        "channels_last": channels_last,
        "window": window,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "array": numpy.arange(6, dtype=">i4").reshape(2, 3).astype("<i4").T,
    }
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64,
                  torch.float8_e4m3fn, torch.float8_e5m2):
        state[str(dtype)[6:]] = torch.tensor([0, 1, 2, 3]).to(dtype)
    return state


def values() -> dict:
    """Leaves and containers that are no tensors."""
    return {
        "none": None, "true": True, "int": -(2**70), "float": 0.1, "nan": float("nan"), "inf": float("-inf"), "complex": 1 - 2j,
        "text": 'a "quoted" \\ line\n', "unicode": "névé", "bytes": b"\x00\xff", "bytearray": bytearray(b"abc"),
        "list": [1, [2, (3, {"x": 4})]], "set": {1, 2}, "frozenset": frozenset("ab"), "empty": [{}, [], ()],
        "default": defaultdict(list, {"k": [1]}), "numbers": {1: "one", (2, 3): "pair", None: "nothing"},
        "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda", 1), "numpy": numpy.float32(2.5),
        "long": "x" * 5000, "generator": torch.Generator().manual_seed(3).get_state(),
    }


def everything() -> dict:
    """What a step holds: types that safetensors lacks, sparse and meta tensors besides."""
    return {
        **tensors(), "values": values(),
        "complex128": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128),
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(4, 2, device="meta"),
    }
