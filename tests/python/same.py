"""Whether two states are the same: types, order, values bit for bit, dtypes, shapes and strides."""

import dataclasses

import numpy
import torch


def bits(tensor):
    """The logical bytes of a tensor, whatever its dtype."""
    if tensor.is_quantized:
        return repr(tensor.__reduce_ex__(2)[1][4]).encode() + bits(tensor.int_repr())
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def difference(a, b, path="state", strides=True):
    """None, or what differs and where."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        return _tensor_difference(a, b, path, strides)
    if isinstance(a, numpy.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            return f"{path}: {a!r} and {b!r}"
        return None
    if isinstance(a, dict):
        if list(a) != list(b) or list(map(type, a)) != list(map(type, b)):
            return f"{path}: keys {list(a)} and {list(b)}"
        for key in a:
            found = difference(a[key], b[key], f"{path}[{key!r}]", strides)
            if found:
                return found
        if getattr(a, "__dict__", None) or getattr(b, "__dict__", None):
            return difference(vars(a), vars(b), path + ".__dict__", strides)
        return None
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{path}: {len(a)} and {len(b)} items"
        return next(filter(None, (difference(x, y, f"{path}[{i}]", strides) for i, (x, y) in enumerate(zip(a, b)))), None)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return difference(vars(a), vars(b), path, strides)
    if isinstance(a, float):
        return None if a.hex() == b.hex() else f"{path}: {a!r} and {b!r}"
    return None if a == b else f"{path}: {a!r} and {b!r}"


def _tensor_difference(a, b, path, strides):
    for name in ("dtype", "shape", "device", "layout", "requires_grad"):
        if getattr(a, name) != getattr(b, name):
            return f"{path}.{name}: {getattr(a, name)} and {getattr(b, name)}"
    if a.layout != torch.strided:
        return None if torch.equal(a.detach().to_dense(), b.detach().to_dense()) else f"{path}: values differ"
    if strides and a.stride() != b.stride():
        return f"{path}.stride: {a.stride()} and {b.stride()}"
    if not a.is_meta and bits(a) != bits(b):
        return f"{path}: values differ"
    return None if vars(a) == vars(b) else f"{path}.__dict__: {vars(a)} and {vars(b)}"


def assert_same(a, b, strides=True):
    found = difference(a, b, strides=strides)
    assert found is None, found
