"""Single files: ``neve.save``, ``neve.load`` and ``neve.async_save``, which take the arguments of ``torch.save`` and ``torch.load``.

A name that ends in ``.safetensors`` is written as an image with its tree: any safetensors reader opens it, and ``neve.load``
gives the state back with its nesting, types, aliases and strides. Everything else is written in torch's own format, which
``torch.load`` opens.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import stat
from typing import IO, Any, Dict, Optional, Union

from . import _torch_load, _torch_save, _waiting
from ._describe import Capture, Describer
from ._library import call, path_bytes
from ._waiting import interruptible
from .errors import Damaged, DataLoss, Error, Invalid, NotFound, Unsupported
from .ticket import Ticket

PathArgument = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
FileArgument = Union[PathArgument, IO[bytes]]


def save(obj: Any, f: FileArgument, pickle_module: Any = pickle, pickle_protocol: int = _torch_save.PROTOCOL,
         _use_new_zipfile_serialization: bool = True, _disable_byteorder_record: bool = False) -> None:
    """Writes an object as one file; when it returns, the file is whole and durable, and until then the old one stays.

    f: a path, or a binary file object, which is written at its position. The arguments are those of ``torch.save``. A name that
    ends in ``.safetensors`` (in letters of either case) picks that format: there what readers of plain safetensors would misread
    is refused by name before the file is touched (complex128, quantized and bits dtypes, sparse and meta tensors, keys that are
    no strings).
    """
    if _is_safetensors(f):
        path = _file_path(f)
        capture = _capture(obj, path)
        request = capture.request(step=0)
        interruptible(lambda: call("neve_file_save", path, ctypes.byref(request)))
        return
    if isinstance(f, (str, bytes, os.PathLike)):
        _file_path(f)
    _torch_save.save(obj, f, pickle_module, pickle_protocol, _use_new_zipfile_serialization, not _disable_byteorder_record,
                     stacklevel=2)


def async_save(obj: Any, f: PathArgument, pickle_module: Any = pickle, pickle_protocol: int = _torch_save.PROTOCOL) -> Ticket:
    """The same, returning once the tensors are captured and may be changed. The stages are ``captured``, ``file``, ``done``.

    A save in flight when the interpreter exits is finished first.
    """
    path = _file_path(f)
    if _is_safetensors(f):
        request = _capture(obj, path).request(step=0)
        handle = ctypes.c_void_p()
        interruptible(lambda: call("neve_file_save_async", path, ctypes.byref(request), ctypes.byref(handle)))
    else:
        handle = _torch_save.async_save(obj, path, pickle_module, pickle_protocol, stacklevel=2)
    ticket = Ticket(handle, 0)
    _Unfinished(ticket, path)
    return ticket


def load(f: FileArgument, map_location: Any = None, weights_only: Optional[bool] = True, mmap: Optional[bool] = None,
         **pickle_load_args: Any) -> Any:
    """Reads a file of torch of any age, a ``.safetensors`` file or an image of neve, whatever its name; its checksums
    are checked; a ``.safetensors`` file that neve did not write has none.

    f: a path, or a binary file object, which is read from its position. A file that neve wrote comes back as it was saved, one
    of torch as ``torch.load`` gives it, a plain safetensors file as a dict of tensors. map_location is as for ``torch.load``.
    mmap: True maps a file of torch whose records are stored; any other is read as without it. weights_only: False also loads
    objects that only their classes can bring back, which can run code; what torch's restricted loader would refuse is
    :class:`neve.UnsupportedOnLoad` otherwise.
    """
    if hasattr(weights_only, "Unpickler"):   # torch.load takes a module third
        raise Invalid(f"weights_only is {weights_only!r}: pass a pickle module by its name, pickle_module=, with weights_only=False")
    pickle_module = pickle_load_args.pop("pickle_module", None)
    if weights_only is None:
        weights_only = pickle_module is None
    if pickle_module is not None:
        if weights_only:
            raise Invalid("weights_only=True has no use for a pickle_module: it runs no pickle")
        pickle_load_args["pickle_module"] = pickle_module
    if isinstance(map_location, bytes):
        map_location = map_location.decode()
    if not isinstance(f, (str, bytes, os.PathLike)):
        if not hasattr(f, "read"):
            raise Invalid(f"{f!r} is neither a path nor a file object that can be read")
        return _torch_load.load_file_object(f, map_location, weights_only, mmap, pickle_load_args)
    path = path_bytes(f)
    _check_regular(path)
    if mmap is None:
        mmap = _torch_load.default_mmap() or None
    try:
        return _torch_load.load(os.fsdecode(path), map_location, weights_only, mmap, pickle_load_args)
    except FileNotFoundError as error:
        raise error if isinstance(error, Error) else NotFound(f"{os.fsdecode(path)} is not there") from None
    except (Damaged, DataLoss, Unsupported) as error:
        raise _with_path(error, path)


def patch_torch() -> None:
    """Makes ``torch.save`` and ``torch.load`` of this process neve's. What neve cannot do, torch does, with one line on stderr.

    ``python -m neve run script.py ...`` does this for a script that is not to be changed.
    """
    from . import _torch_patch

    _torch_patch.patch()


def _check_regular(path: bytes) -> None:
    """Refuses what opening would wait for (a pipe, until someone writes to it) or what has no end."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return   # opening it says what is wrong
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Unsupported(f"{os.fsdecode(path)} is not a regular file; what comes through a pipe can be read into an io.BytesIO, "
                          "and that be loaded")


def _with_path(error: Error, path: bytes) -> Error:
    text = os.fsdecode(path)
    if text not in error.message:
        error.message = f"{text}: {error.message}"
        error.args = (error.message,)
    return error


def _file_path(f: Any) -> bytes:
    """The path of a file to write."""
    if isinstance(f, (str, bytes, os.PathLike)):
        path = path_bytes(f)
        if not path:
            raise Invalid("the path to save to is empty: name a file")
        if path.endswith(b"/"):
            raise Invalid(f"{os.fsdecode(path)} ends in a slash, as only a folder's name does: name a file")
        return path
    if hasattr(f, "write"):
        raise _torch_save.refuse_file_object(f)
    raise Invalid(f"{f!r} is no path")


def _is_safetensors(f: Any) -> bool:
    return isinstance(f, (str, bytes, os.PathLike)) and os.fsencode(f).lower().endswith(b".safetensors")


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
