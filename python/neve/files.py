"""Single files: ``neve.save``, ``neve.load`` and ``neve.async_save``.

A name that ends in ``.safetensors`` is written as an image with its tree: any safetensors reader opens it, and ``neve.load``
gives the state back with its nesting, types, aliases and strides. Torch's own format is for a later version.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, Union

from . import _waiting
from ._describe import Capture, Describer
from ._image import Image
from ._library import call
from ._restore import Restoration
from ._waiting import interruptible
from .errors import Damaged, DataLoss, Error, Invalid, Unsupported
from .ticket import Ticket

PathArgument = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def save(obj: Any, f: PathArgument) -> None:
    """Writes a state as one file; when it returns, the file is whole and durable, and until then the old one stays.

    What readers of plain safetensors would misread is refused by name before the file is touched: complex128, quantized and
    bits dtypes, sparse and meta tensors, keys that are no strings.
    """
    path = _safetensors_path(f)
    capture = _capture(obj, path)
    request = capture.request(step=0)
    interruptible(lambda: call("neve_file_save", path, ctypes.byref(request)))


def async_save(obj: Any, f: PathArgument) -> Ticket:
    """The same, returning once the state is captured and may be changed. The stages are ``captured``, ``file``, ``done``.

    A save in flight when the interpreter exits is finished first.
    """
    path = _safetensors_path(f)
    capture = _capture(obj, path)
    request = capture.request(step=0)
    handle = ctypes.c_void_p()
    interruptible(lambda: call("neve_file_save_async", path, ctypes.byref(request), ctypes.byref(handle)))
    ticket = Ticket(handle, 0)
    _Unfinished(ticket, path)
    return ticket


def load(f: PathArgument, map_location: Any = None, weights_only: bool = True, mmap: Any = None) -> Any:
    """Reads a ``.safetensors`` file or an image of neve, whatever its name.

    A file that neve wrote comes back as it was saved; any other as a dict of tensors. map_location: a device, or a dict of
    devices. weights_only: False also loads pickled objects, which can run code. mmap is accepted and not needed.
    """
    path = _path(f)
    image = interruptible(lambda: Image.open(os.fsdecode(path)))
    try:
        return Restoration(image, os.fsdecode(path), None, map_location, weights_only).fresh()
    except (Damaged, DataLoss, Unsupported) as error:
        raise _with_path(error, path)
    finally:
        image.close()


def patch_torch() -> None:
    """Reserved: will make torch.save and torch.load of this process neve's."""
    raise Unsupported("neve.patch_torch() needs torch's file format, which this version does not write yet")


def _with_path(error: Error, path: bytes) -> Error:
    text = os.fsdecode(path)
    if text not in error.message:
        error.message = f"{text}: {error.message}"
        error.args = (error.message,)
    return error


def _path(f: Any) -> bytes:
    if isinstance(f, (str, bytes, os.PathLike)):
        return os.fsencode(f)
    if hasattr(f, "read") or hasattr(f, "write"):
        raise Unsupported("a file object holds torch's format, which comes with a later version: pass a path")
    raise Invalid(f"{f!r} is no path")


def _safetensors_path(f: Any) -> bytes:
    path = _path(f)
    if not path.endswith(b".safetensors"):
        raise Unsupported(f"{os.fsdecode(path)}: torch's format comes with a later version; end the name in .safetensors")
    return path


def _capture(obj: Any, path: bytes) -> Capture:
    capture = Describer().capture(obj, stacklevel=3)
    misread = capture.structure.misread
    if misread:
        more = f" and {len(misread) - 8} more" if len(misread) > 8 else ""
        raise Unsupported(
            f"{os.fsdecode(path)} was not written, for readers of plain safetensors would misread it: "
            f"{'; '.join(misread[:8])}{more}. "
            "Convert or leave out these, or save with a Checkpointer, whose steps hold anything")
    return capture


class _Unfinished:
    """An asynchronous save that the interpreter's exit has to wait for."""

    _all: Dict[int, "_Unfinished"] = {}

    def __init__(self, ticket: Ticket, path: bytes) -> None:
        self._ticket, self._path = ticket, path
        _Unfinished._all[id(self)] = self
        _waiting.finish_at_exit(self)
        ticket.add_done_callback(self._finished)

    def _finished(self, ticket: Ticket) -> None:
        _Unfinished._all.pop(id(self), None)
        _waiting.forget(self)

    def finish_at_exit(self) -> None:
        if not self._ticket.done():
            _waiting.notice(f"finishing the save of {os.fsdecode(self._path)} before the exit")
        self._ticket.wait("done")


_waiting.after_fork(_Unfinished._all.clear)
