"""Where a tensor that is read goes: its strides, its device, and the memory of a target."""

from __future__ import annotations

from typing import Any, Callable, Optional

from . import _tensors
from ._image import Logical, touched_shape
from ._saved import SavedTensor
from .errors import Damaged, Error, Exhausted, Invalid, Unsupported


def exact_strides(logical: Logical, node: SavedTensor) -> Logical:
    """The tensor with the strides of its node, which may differ from the image's only where they do not matter."""
    strides = node.extra.get("st")
    if strides is None or not logical.in_order and not logical.is_alias:
        return logical
    plain = all(type(stride) is int and 0 <= stride < 1 << 40 for stride in strides)
    if not plain or len(strides) != len(logical.shape) or not _tensors.is_row_major(logical.shape, strides):
        raise Damaged(f"{node.name} has strides {strides} in neve.tree, which its bytes do not have")
    return logical._replace(strides=tuple(strides))


def target_device(saved_on: Optional[str], map_location: Any, name: str) -> Optional[Any]:
    """The device a tensor goes to, or None for the host. `saved_on`: the device it was saved from; None: the host."""
    tag = saved_on or "cpu"
    wanted = map_location
    if isinstance(map_location, dict):
        wanted = map_location.get(tag, tag)
    elif map_location is None:
        wanted = tag
    elif callable(map_location):
        raise Unsupported("map_location as a function is not supported: pass a device, or a dict of devices")
    if str(wanted) == "cpu":
        return None
    torch = _tensors.need_torch(name)
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        if map_location is None or isinstance(map_location, dict) and tag not in map_location:
            raise Damaged(f"{name} was saved from {tag!r}, which is no device: {error}") from None
        raise Invalid(f"map_location: {wanted!r} is no device: {error}") from None
    if device.type == "meta" and map_location is None:
        raise Damaged(f"{name} has bytes, and says that it was on the device 'meta', which holds none")
    if device.type == "cuda" and not torch.cuda.is_available():
        if str(wanted) == tag:
            raise Invalid(f"{name} was saved from {tag}, and this machine has no such device: pass map_location='cpu'")
        raise Invalid(f"map_location: {name} was to go to {device}, and this machine has no such device: pass map_location='cpu'")
    return None if device.type == "cpu" else device


def moved_to(device: Any, move: Callable[[Any], Any], name: str) -> Any:
    """What `move` gives of a device; :class:`neve.Invalid` when this machine or this torch does not have it."""
    try:
        return move(device)
    except Error:
        raise
    except Exception as error:   # of each kind of device, its own
        if "memory" in str(error):
            raise Exhausted(f"{name}: no memory on {device} ({error})") from error
        raise Invalid(f"{name} belongs on {device}, which cannot be used here ({error}): pass map_location='cpu'") from error


def array_dtype(text: str, name: str) -> Any:
    """The NumPy dtype of that text; raises :class:`neve.Damaged`."""
    try:
        return _tensors.array_dtype(text)
    except ValueError as error:
        raise Damaged(f"{name}: {error}") from None


def address_of(target: Any) -> int:
    numpy = _tensors.loaded_numpy()
    if numpy is not None and isinstance(target, numpy.ndarray):
        return int(target.__array_interface__["data"][0])
    return int(target.data_ptr())


def strides_of(target: Any) -> Any:
    """Strides in elements (for a NumPy dtype without a name of neve's: of its bytes)."""
    numpy = _tensors.loaded_numpy()
    if numpy is not None and isinstance(target, numpy.ndarray):
        described = _tensors.describe_array(target)
        return None if described is None else described[2]
    return tuple(target.stride())


def direct_strides(target: Any, logical: Logical) -> Optional[Any]:
    """The strides by which bytes can be put right into the target's memory, or None when they need a copy."""
    torch = _tensors.loaded_torch()
    if torch is not None and isinstance(target, torch.Tensor):
        if target.device.type != "cpu" or target.is_conj() or target.is_neg():
            return None
        if logical.in_order and target.stride() == logical.strides and 0 not in logical.strides:
            return logical.strides   # row by row on both sides, the ordinary case
    if touched_shape(logical.shape, logical.strides) != logical.shape:
        return None   # saved expanded: what is stored is less than what the target holds
    numpy = _tensors.loaded_numpy()
    if numpy is not None and isinstance(target, numpy.ndarray):
        if not target.flags.writeable or not target.flags.aligned:
            return None
    strides = strides_of(target)
    if strides is None or _tensors.has_overlap(logical.shape, strides):
        return None
    return strides


def copy_into(target: Any, source: Any) -> None:
    """Copies values; one side may be torch's and the other NumPy's."""
    numpy = _tensors.loaded_numpy()
    if numpy is not None and isinstance(target, numpy.ndarray):
        values = source.numpy() if not isinstance(source, numpy.ndarray) else source
        numpy.copyto(target, values, casting="no")
        return
    torch = _tensors.need_torch("the target")
    if numpy is not None and isinstance(source, numpy.ndarray):
        source = torch.from_numpy(source)
    with torch.no_grad():
        target = target.detach()
        for axis, (extent, stride) in enumerate(zip(target.shape, target.stride())):
            if stride == 0 and extent > 1:   # one element, however often it is seen
                target, source = target.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
        target.copy_(source)
