"""Tensors on CUDA devices: whether the engine takes them where they lie, the streams that wait for it, what a fence keeps."""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any, Callable, Iterable, List, Optional, Sequence, Set, Tuple

from . import _pieces, _tensors
from ._library import call, library
from .errors import Error, Invalid

_log = logging.getLogger("neve")

FENCE_TIMEOUT_S = 60.0   # in which the copies must be handed to the device; beyond it the save is given up

_usable: Optional[bool] = None


def usable() -> bool:
    """Whether the engine can use CUDA devices in this process; the log says once why not."""
    global _usable
    if _usable is None:
        text = ctypes.c_void_p()
        try:
            call("neve_devices_describe", ctypes.byref(text))
        except Error as error:
            _usable = False
            _log.info("CUDA cannot be used: %s", error)
        else:
            library().neve_string_destroy(ctypes.byref(text))
            _usable = True
    return _usable


def ordinal(device: Any) -> int:
    """The number of a CUDA device; -1 for the host and for devices of another kind."""
    torch = _tensors.loaded_torch()
    if device.type != "cuda" or torch is None or torch.version.hip is not None:
        return -1
    return int(torch.cuda.current_device() if device.index is None else device.index)


def current_streams(ordinals: Iterable[int]) -> List[Tuple[int, int]]:
    """The program's current stream of each of these devices."""
    torch = _tensors.loaded_torch()
    assert torch is not None
    return [(device, int(torch.cuda.current_stream(device).cuda_stream)) for device in ordinals]


def stream_arrays(streams: Sequence[Tuple[int, int]]) -> Tuple[Any, Any, int]:
    """Devices, streams and their number, as the C API takes them."""
    count = len(streams)
    return ((ctypes.c_int32 * count)(*[device for device, _ in streams]),
            (ctypes.c_void_p * count)(*[handle or None for _, handle in streams]), count)


def optimizers_of(fence: Any) -> List[Any]:
    """The optimizers that `fence=` names."""
    found = list(fence) if isinstance(fence, (list, tuple)) else [fence]
    for optimizer in found:
        if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "register_step_pre_hook"):
            raise Invalid(f"fence takes an optimizer of torch, or a list of them, not {type(optimizer).__name__}")
    return found


def kept_storages(optimizers: Sequence[Any]) -> Set[int]:
    """Addresses of the storages that change in these optimizers' steps only: parameters, and the optimizers' state.

    Of a DTensor that of this rank's part. A tensor without a storage of its own (a sparse one, another wrapper) has no such address: what
    it is made of counts as changed by others too, and is copied before the save returns.
    """
    torch = _tensors.need_torch("fence")
    tensors: List[Any] = []

    def add(things: Iterable[Any]) -> None:
        others = []
        for thing in things:
            if isinstance(thing, torch.Tensor):
                tensors.append(_pieces.local_tensor(thing) if _pieces.is_dtensor(thing) else thing)
            elif isinstance(thing, (dict, list, tuple)):
                others.append(thing)
        for thing in others:
            add(thing.values() if isinstance(thing, dict) else thing)

    for optimizer in optimizers:
        for group in optimizer.param_groups:
            add(group["params"])
        add(optimizer.state.values())
    try:
        return set(storage_addresses(tensors))
    except (RuntimeError, NotImplementedError):
        return {address for tensor in tensors if (address := _storage_address(tensor)) is not None}


def storage_addresses(tensors: Iterable[Any]) -> Iterable[int]:
    """Where the storage of each tensor begins."""
    torch = _tensors.need_torch("fence")
    return map(torch.UntypedStorage.data_ptr, map(torch.Tensor.untyped_storage, tensors))


def _storage_address(tensor: Any) -> Optional[int]:
    try:
        return next(iter(storage_addresses([tensor])))
    except (RuntimeError, NotImplementedError):   # it has none
        return None


class Fence:
    """Calls `fence` once, before the next step of any of the optimizers, or when it is called itself."""

    def __init__(self, optimizers: Sequence[Any], fence: Callable[[], None]) -> None:
        self._fence: Optional[Callable[[], None]] = fence
        self._lock = threading.Lock()
        self._handles = [optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers]

    def _before_step(self, *_: Any) -> None:
        self()

    @property
    def pending(self) -> bool:
        """Whether no step has come yet."""
        return self._fence is not None

    def __call__(self) -> None:
        with self._lock:
            fence, self._fence = self._fence, None
            handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if fence is not None:
            fence()


def hold_until_captured(ticket: Any, kept: Any) -> None:
    """Keeps `kept` alive until the copies of the ticket's save have ended: a device reads it until then."""
    holding = [kept]

    def work() -> None:
        try:
            ticket.wait("captured")
        except Exception:   # the copies have ended all the same; what went wrong is the ticket's
            pass
        holding.clear()

    threading.Thread(target=work, name="neve-hold", daemon=True).start()
