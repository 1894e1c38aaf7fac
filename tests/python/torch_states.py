"""Objects of every kind that torch.save is given, for the tests of its format in both directions."""

import argparse
import collections
import random
import warnings

import numpy
import torch

DTYPES = [getattr(torch, name) for name in (
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 complex32 uint16 uint32 uint64 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 bits8 bits16").split()
    if hasattr(torch, name)]

Point = collections.namedtuple("Point", "x y")


def of_dtype(dtype):
    """Ten elements whose bytes are all different."""
    raw = torch.arange(10 * dtype.itemsize, dtype=torch.uint8)
    return raw.bool() if dtype is torch.bool else raw.view(dtype)


def bits(number, dtype):
    return torch.tensor([number], dtype=torch.int64).to(torch.int32 if dtype.itemsize == 4 else torch.int16).view(dtype)


def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    model(torch.randn(2, 2, 8, 8)).sum().backward()
    optimizer.step()
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def attributed():
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    tensor.foo, parameter.tensor_model_parallel = 1, True
    return {"tensor": tensor, "parameter": parameter}


def sharing():
    t = torch.ones(3)
    inner = {"t": t}
    return {"a": t, "b": t, "c": t.view(3, 1), "d": t.detach(), "one": inner, "two": inner, "three": [inner, t]}


def recursive():
    made = {"w": torch.ones(2), "list": []}
    made["list"].append(made["list"])
    made["self"] = made
    return made


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        per_channel = torch.quantize_per_channel(torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([1, 2]), 0, torch.qint8)
        return {"tensor": torch.quantize_per_tensor(torch.randn(3), 0.1, 3, torch.quint8), "channel": per_channel}


def compressed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"csr": torch.eye(3).to_sparse_csr(), "csc": torch.eye(3).to_sparse_csc(), "bsr": torch.eye(4).to_sparse_bsr((2, 2))}


# Name -> what makes it. Plain ones are those that weights-only loading takes.
PLAIN = {
    "nothing": lambda: None,
    "empty": lambda: {},
    "one tensor": lambda: torch.arange(5.0),
    "PT_05_dtypes": lambda: {str(dtype): of_dtype(dtype) for dtype in DTYPES},
    "PT_05_bits": lambda: {"bf16": bits(0x7fc1, torch.bfloat16), "f32": bits(0x7f800001, torch.float32),
                           "zero": torch.tensor([-0.0]), "u64": torch.tensor([2**63 + 1], dtype=torch.uint64)},
    "sizes": lambda: [torch.empty(0), torch.empty(0, 3), torch.tensor(1.5), torch.zeros(0, dtype=torch.int64), torch.ones(1, 1, 1)],
    "gradients": lambda: [torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2)),
                          torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.nn.Parameter(torch.ones(2, 2).t())],
    "PT_02_sharing": sharing,
    "PT_25_strides": lambda: {"last": torch.arange(108.0).view(4, 3, 3, 3).contiguous(memory_format=torch.channels_last),
                              "turned": torch.arange(50.0)[7:47].view(4, 10).t(), "wide": torch.ones(1).expand(1000, 1000),
                              "odd": torch.arange(24.0).view(2, 3, 4)[:, 1:, ::2]},
    "PT_17_state_dict": lambda: torch.nn.BatchNorm1d(2).state_dict(),
    "optimizer": lambda: {"model": trained()[0].state_dict(), "optimizer": trained()[1].state_dict()},
    "PT_27_keys": lambda: {1: torch.ones(1), (2, "x"): torch.ones(2), "a/b": 1, "a.b": 2, "": 3, "new\nline é": 4, None: 5, 1.5: 6,
                           b"b": 7, "n" * 100_000: 8, True: 9, "a": {"b": torch.ones(3)}, "a.b2": torch.ones(4), -3: 10},
    "numbers": lambda: [0, 255, 256, 65535, 65536, -1, -2**31, 2**31 - 1, 2**31, -2**31 - 1, 2**63, -2**63, 10**30, -10**30, 10**600,
                        -128, -32768, 1.5, -0.0, float("inf"), 1e-320, True, False, None, 1 + 2j],
    "texts": lambda: ["", "a", "é", "\U0001f600", "\ud800", "x" * 300, b"", b"bytes\xff", "same", "same", bytearray(b"array")],
    "nesting": lambda: [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [[]], {}, {"a": {}}, ((((),),),), {"s": {1, 2}}],
    "ordered": lambda: collections.OrderedDict(b=torch.ones(1), a=collections.OrderedDict(), c=[torch.ones(2)]),
    "counter": lambda: collections.Counter("abracadabra"),
    "torch values": lambda: [torch.Size([3, 4]), torch.float16, torch.device("cpu"), torch.device("cuda", 1), torch.strided],
    "PT_14_meta": lambda: {"m": torch.empty(3, 4, device="meta", requires_grad=True), "n": torch.empty(2, device="meta")[1:]},
    "PT_06_sparse": lambda: {"twice": torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)),
                             "once": torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)).coalesce(),
                             "none": torch.zeros(2, 2).to_sparse()},
    "compressed": compressed,
    "PT_04_lazy": lambda: {"conj": torch.tensor([1 + 2j]).conj(), "neg": torch.tensor([1 + 2j]).conj().imag,
                           "turned": torch.tensor([[1 + 2j, 3], [4j, 5 - 1j]]).mH},
    "quantized": quantized,
    "PT_07_attributes": attributed,
    "PT_26_torch_generator": lambda: {"cpu": torch.get_rng_state(), "python": random.getstate()},
    "PT_11_many": lambda: {f"k{i}": torch.full((1,), float(i)) for i in range(3000)},
    "USE_01_step": lambda: {"step": torch.tensor(10001.0), "exp_avg": torch.ones(4, dtype=torch.bfloat16), "p": torch.ones(4)},
    "recursive": recursive,
}

# What is not.
OPAQUE = {
    "PT_08_numpy_scalars": lambda: {"lr": numpy.float64(1e-3), "n": numpy.int64(3), "best": numpy.mean([1.0, 2.0]), "w": torch.ones(2)},
    "arrays": lambda: {"a": numpy.arange(6.0).reshape(2, 3), "b": numpy.array(["x", "yy"]), "w": torch.ones(2)},
    "PT_26_numpy_generators": lambda: {"legacy": numpy.random.get_state(), "new": numpy.random.default_rng(3).bit_generator.state},
    "namedtuple": lambda: Point(torch.ones(1), [torch.ones(2)]),
    "namespace": lambda: {"args": argparse.Namespace(lr=0.1, betas=(0.9, 0.99)), "w": torch.ones(2)},
    "default dict": lambda: {"d": collections.defaultdict(list, a=[torch.ones(1)])},
    "scheduler": lambda: {"scheduler": trained()[2].state_dict(), "range": range(3), "slice": slice(1, 2)},
}
