"""How the ranks of a job reach each other: torch.distributed's store, a folder that all see, a list of places, or a function.

Used inside ``Checkpointer()`` and ``restore()`` only. No collective of torch is called, and nothing at all by ``save()``.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Union

from . import _abi, errors
from ._library import library
from .errors import Invalid

Group = Union[str, Callable[[bytes], Sequence[bytes]]]


class Joined:
    """What the engine's options say of the group; keeps the functions that it calls alive."""

    def __init__(self) -> None:
        self.fields: Dict[str, Any] = {}
        self.on_this_thread = False               # the function is the caller's: called on the caller's thread only
        self.interrupt: Optional[BaseException] = None   # what left the caller's function and is no error of it


def join(group: Optional[Group], world: int) -> Joined:
    """The group of a world: as given, else torch.distributed's where that is initialised."""
    joined = Joined()
    if group is not None and not isinstance(group, str) and not callable(group):
        raise Invalid(f"group is {group!r}: use 'torch', 'dir:PATH', 'static:HOST:PORT,...', or a function that gathers a message "
                      "of every rank")
    if isinstance(group, str) and group != "torch" and not group.startswith(("dir:", "static:")):
        raise Invalid(f"group is {group!r}: use 'torch', 'dir:PATH' (a folder that all ranks see), 'static:HOST:PORT,...' (a place of "
                      "each rank), or a function")
    if group == "torch" and torch_distributed() is None:
        raise Invalid("group='torch' is torch.distributed's store: initialise torch.distributed first")
    if world == 1:
        return joined
    if group is None or group == "torch":
        _join_store(joined, world)
    elif isinstance(group, str):
        joined.fields["group"] = group.encode("utf-8", "surrogateescape")
    else:
        _join_function(joined, group)
    return joined


def torch_distributed() -> Any:
    """torch.distributed where the program has initialised it, else None. Imports nothing."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _join_store(joined: Joined, world: int) -> None:
    if torch_distributed() is None:
        raise Invalid(f"a world of {world} ranks needs a way to meet: initialise torch.distributed first, or pass group='dir:PATH' "
                      "(a folder that all ranks see) or a function")
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()

    def set_value(_: Any, name: bytes, value: Any, size: int, reply: Any) -> int:
        def work() -> int:
            store.set(name.decode(), ctypes.string_at(value, size) if size else b"")
            return errors.OK
        return _answered(reply, work)

    def get_value(_: Any, name: bytes, reply: Any) -> int:
        def work() -> int:
            if not store.check([name.decode()]):   # get alone would wait
                return errors.NOT_FOUND
            _add(reply, store.get(name.decode()))
            return errors.OK
        return _answered(reply, work)

    joined.fields.update(group=b"torch.distributed's store", group_set=_pointer(joined, _abi.GROUP_SET(set_value)),
                         group_get=_pointer(joined, _abi.GROUP_GET(get_value)))


def _join_function(joined: Joined, gather: Callable[[bytes], Sequence[bytes]]) -> None:
    joined.on_this_thread = True

    def gather_all(_: Any, mine: Any, size: int, _timeout: float, reply: Any) -> int:
        def work() -> int:
            for message in gather(ctypes.string_at(mine, size) if size else b""):
                if not isinstance(message, (bytes, bytearray)):
                    raise TypeError(f"the group's function gave a {type(message).__name__} among the messages, not bytes")
                _add(reply, bytes(message))
            return errors.OK
        try:
            return _answered(reply, work)
        except BaseException as error:   # Ctrl-C and the like: raised again once the engine has returned
            joined.interrupt = error
            _add(reply, f"left by {type(error).__name__}".encode())
            return errors.UNAVAILABLE

    joined.fields.update(group=b"a function", group_gather=_pointer(joined, _abi.GROUP_GATHER(gather_all)))


def _pointer(joined: Joined, function: Any) -> Any:
    vars(joined).setdefault("functions", []).append(function)
    return ctypes.cast(function, ctypes.c_void_p)


def _add(reply: Any, message: bytes) -> None:
    library().neve_reply_add(reply, message, len(message))


def _answered(reply: Any, work: Callable[[], int]) -> int:
    try:
        return work()
    except Exception as error:   # nothing may leave into the engine
        if isinstance(error, (TypeError, ValueError)):
            _add(reply, str(error).encode("utf-8", "replace"))
            return errors.INVALID
        _add(reply, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        return errors.UNAVAILABLE
