"""Saving in torch's own format: what `torch.save` does, durable and atomic.

The structure is pickled here; the archive around it is written by the engine. What only torch itself can write (its old
stream format) is written by torch, in the same safe way.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import pickle
import secrets
import stat
import warnings
from array import array
from typing import Any, List, Optional, Tuple

from . import _abi, _tensors
from ._library import call, library, path_bytes
from ._torch_original import notice_once, original
from ._torch_pickle import PROTOCOL, Pickled, pickle_object, refused_places, storage_places
from ._torch_storages import Part
from ._waiting import collector_paused, interruptible
from .errors import Error, Invalid, NotFound, Unavailable, Unsupported

_STREAM_BYTES = 16 << 20   # of a file object, written at a time


class TorchRequest:
    """One object, ready for a call of the C API. Holds its storages until the call has returned."""

    def __init__(self, obj: Any, module: Any = pickle, protocol: int = PROTOCOL, stacklevel: int = 1) -> None:
        with collector_paused():
            self._pickled: Pickled = pickle_object(obj, module, protocol)
            self._keep: List[Any] = []
            addresses, sizes = self._host_parts(obj)
        self._addresses, self._sizes = array("Q", addresses), array("Q", sizes)
        self.struct = _abi.TorchObject.new(
            pickle=self._pickled.content, pickle_bytes=len(self._pickled.content),
            storages=self._addresses.buffer_info()[0] if addresses else None,
            storage_bytes=self._sizes.buffer_info()[0] if sizes else None,
            storage_count=len(addresses), alignment=_alignment())
        if self._pickled.unsafe:
            _warn_unsafe(obj, stacklevel + 1)

    def _host_parts(self, obj: Any) -> Tuple[List[int], List[int]]:
        parts = self._pickled.parts
        sizes = [end - begin for _, begin, end in parts]
        if self._pickled.on_host:
            torch = _tensors.loaded_torch()
            try:
                base = list(map(torch.UntypedStorage.data_ptr, [part[0] for part in parts])) if torch is not None else []
            except RuntimeError as error:
                raise _without_memory(obj, torch, parts, error) from error
            return [address + begin for address, (_, begin, _) in zip(base, parts)], sizes
        addresses = []
        for place, (storage, begin, end) in enumerate(parts):
            if storage.device.type != "cpu":
                storage = storage.cpu()
                self._keep.append(storage)
            addresses.append(storage.data_ptr() + begin if sizes[place] else 0)
        return addresses, sizes

    def pointer(self) -> Any:
        return ctypes.byref(self.struct)


def _without_memory(obj: Any, torch: Any, parts: List[Part], error: Exception) -> Unsupported:
    """For tensors that are only said to be there (a zero tensor of autograd's, a fake one)."""
    places: List[str] = []
    for storage, _, _ in parts:
        try:
            storage.data_ptr()
        except RuntimeError:
            places += storage_places(obj, torch, storage._cdata)
    return Unsupported(f"{', '.join(places[:8]) or 'a tensor'} has no memory that could be saved ({error}): save a clone of it")


def _alignment() -> int:
    """What torch is told to align storages to (torch.utils.serialization.config.save.storage_alignment)."""
    torch = _tensors.loaded_torch()
    if torch is None or not hasattr(torch.serialization, "_get_storage_alignment"):
        return 64
    return int(torch.serialization._get_storage_alignment())


def _warn_unsafe(obj: Any, stacklevel: int) -> None:
    torch = _tensors.loaded_torch()
    if torch is None:
        return
    places = refused_places(obj, torch)
    if places:
        more = " and more" if len(places) > 8 else ""
        warnings.warn(f"these objects are loaded only with weights_only=False: {', '.join(places[:8])}{more}",
                      stacklevel=stacklevel + 1)


def save(obj: Any, f: Any, module: Any, protocol: int, use_zip: bool, byteorder_record: bool, stacklevel: int = 1) -> None:
    """`torch.save(obj, f)`, to a path or a binary file object."""
    is_path = isinstance(f, (str, bytes, os.PathLike))
    if not is_path and not hasattr(f, "write"):
        raise Invalid(f"{f!r} is neither a path nor a file object that can be written")
    if not use_zip or not byteorder_record:
        _save_by_torch(obj, f, is_path, module, protocol, use_zip, byteorder_record)
        return
    request = TorchRequest(obj, module, protocol, stacklevel + 1)
    if is_path:
        path = path_bytes(f)
        interruptible(lambda: call("neve_torch_file_save", path, request.pointer()))
    else:
        _write_stream(request, f)


def async_save(obj: Any, path: bytes, module: Any, protocol: int, stacklevel: int = 1) -> ctypes.c_void_p:
    """The handle of a ticket; the object's tensors may be changed when this returns."""
    request = TorchRequest(obj, module, protocol, stacklevel + 1)
    handle = ctypes.c_void_p()
    interruptible(lambda: call("neve_torch_file_save_async", path, request.pointer(), ctypes.byref(handle)))
    return handle


def _write_stream(request: TorchRequest, f: Any) -> None:
    """Writes the archive at the file object's position, a piece at a time."""
    stream = ctypes.c_void_p()
    call("neve_torch_stream_create", request.pointer(), ctypes.byref(stream))
    # Files of the standard library copy what they are given; another may keep it, and gets bytes of its own.
    copies = not isinstance(f, (io.BytesIO, io.BufferedIOBase, io.FileIO))
    try:
        piece = bytearray(_STREAM_BYTES)
        target = (ctypes.c_char * len(piece)).from_buffer(piece)
        view = memoryview(piece)
        size = ctypes.c_size_t(len(piece))
        while size.value == len(piece):
            interruptible(lambda: call("neve_torch_stream_read", stream, target, len(piece), ctypes.byref(size)))
            _write_all(f, bytes(view[:size.value]) if copies else view[:size.value])
    finally:
        library().neve_torch_stream_destroy(ctypes.byref(stream))
    if hasattr(f, "flush"):
        f.flush()


def _write_all(f: Any, content: Any) -> None:
    while len(content):
        written = f.write(content)
        if not isinstance(f, io.RawIOBase):
            return
        if written is None:   # and none of it was taken
            raise Unavailable(f"{f!r} takes no more for now: it is not blocking, and a part of the archive has been written",
                              errno.EAGAIN)
        content = content[written:]   # a raw file may take only a part


def _save_by_torch(obj: Any, f: Any, is_path: bool, module: Any, protocol: int, use_zip: bool,
                   byteorder_record: bool) -> None:
    what = "a file without a byte order record" if use_zip else "torch's old format (_use_new_zipfile_serialization=False)"
    notice_once(f"{what} is written by torch itself")
    save_it = original("save")

    def write(target: Any) -> None:
        save_it(obj, target, pickle_module=module, pickle_protocol=protocol, _use_new_zipfile_serialization=use_zip,
                **({} if byteorder_record else {"_disable_byteorder_record": True}))

    if not is_path:
        write(f)
        return
    replace_file(os.path.realpath(path_bytes(f)), write)


def replace_file(path: bytes, write: Any) -> None:
    """Writes a file by `write(file object)`: it takes its name only when it is whole and durable."""
    try:
        _replace_file(path, write)
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise Unavailable(f"cannot save {os.fsdecode(path)}: {error.strerror}", error.errno) from error


def _replace_file(path: bytes, write: Any) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise NotFound(f"cannot save {os.fsdecode(path)}: its folder is not there")
    old: Optional[os.stat_result] = None
    try:
        old = os.stat(path)
    except FileNotFoundError:
        pass
    if old is not None and not stat.S_ISREG(old.st_mode):
        if stat.S_ISDIR(old.st_mode):
            raise Unavailable(f"cannot save {os.fsdecode(path)}: a folder has that name", errno.EISDIR)
        raise Invalid(f"cannot save {os.fsdecode(path)}: it is not a regular file")
    if old is not None and not os.access(path, os.W_OK):
        raise Unavailable(f"cannot save {os.fsdecode(path)}: the file that is there may not be written", errno.EACCES)
    temporary = os.path.join(folder, b".tmp-" + secrets.token_hex(8).encode("ascii"))
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as target:
            write(target)
            target.flush()
            if old is not None:
                _keep_owner(target.fileno(), old)
                os.fchmod(target.fileno(), old.st_mode & 0o7777)
            os.fsync(target.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _keep_owner(descriptor: int, old: os.stat_result) -> None:
    """Gives the new file the old one's owner and group, as far as this user may."""
    for owner, group in ((old.st_uid, old.st_gid), (-1, old.st_gid)):
        try:
            os.fchown(descriptor, owner, group)
            return
        except PermissionError:
            continue


def refuse_file_object(f: Any) -> Unsupported:
    """The error for an asynchronous save to what is no path."""
    return Unsupported(f"an asynchronous save goes to a path, not to {type(f).__name__}: its file would be at another position "
                       "by the time it is written")
