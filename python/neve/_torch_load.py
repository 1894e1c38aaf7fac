"""Loading torch's files: read by the engine, which runs nothing of what it reads and checks the checksums on the way.

What has no form as an image is handed to `torch.load` of the same file, after its checksums were checked: objects that only
their own classes can bring back (with weights_only=False), what torch's restricted loader allows and the engine does not know
(quantized tensors, classes of ``torch.serialization.add_safe_globals``), lazy mapping, and map_location as a function.

Mapping is a wish about how to read: torch maps whatever bytes stand where a record lies, compressed or not, so it is asked to only
for an archive that the engine could read and whose records are all stored; any other file is read as without the wish.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import shutil
import struct
import zipfile
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import _tensors
from ._image import BATCH_BYTES, Image, Range
from ._restore import Restoration
from ._torch_original import original
from ._waiting import collector_paused, interruptible
from .errors import Error, Invalid, Unsupported, UnsupportedOnLoad

_SCRATCH_BYTES = 8 << 20
_ZIP, _HEADER_END = b"PK\x03\x04", 9
_TAR, _TAR_AT = b"ustar", 257


def is_image(head: bytes) -> bool:
    """Whether a file of these first bytes is an image of neve or a safetensors file."""
    return len(head) >= _HEADER_END and head[8:9] == b"{"


@collector_paused()
def load(path: str, map_location: Any, weights_only: bool, mmap: Any, arguments: Dict[str, Any]) -> Any:
    """The content of any file, or of a sharded or DCP folder. arguments: what else torch.load takes (pickle_module, encoding)."""
    head = _first_bytes(path)
    if os.path.isdir(path):
        return _load_folder(path, map_location, weights_only)
    by_torch = _TorchLoad(path, map_location, weights_only, arguments)
    try:
        image = interruptible(lambda: Image.open(path))
    except Unsupported as error:
        if is_image(head) or path.endswith(".safetensors"):
            raise
        return by_torch.instead_of(error)
    try:
        if is_image(head):
            return Restoration(image, path, None, map_location, weights_only).fresh()
        if mmap and can_be_mapped(path):
            with contextlib.suppress(Exception):   # reading without the wish says what is wrong, as an error of neve
                return by_torch.mapped()
        opaque = _opaque(image.header.root)
        if opaque or image.header.shares_containers or by_torch.is_needed():
            _check(image)
            return by_torch.instead_of(_refused(opaque) if opaque else None)
        try:
            return Restoration(image, path, None, map_location, weights_only).fresh()
        except Unsupported as error:
            return by_torch.instead_of(error)
    finally:
        image.close()


def _first_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEADER_END)
    except OSError:
        return b""   # opening it as an image says what is wrong


@collector_paused()
def _load_folder(path: str, map_location: Any, weights_only: bool) -> Any:
    image = interruptible(lambda: Image.open(path))
    try:
        opaque = _opaque(image.header.root)
        if opaque:
            raise _refused(opaque)
        return Restoration(image, path, None, map_location, weights_only).fresh()
    finally:
        image.close()


def can_be_mapped(path: Any) -> bool:
    """Whether a file is a zip archive of stored records below one folder, whose bytes are those of the storages."""
    if not os.path.isfile(path):
        return False
    try:
        with zipfile.ZipFile(os.fsdecode(path)) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, OSError, NotImplementedError, RuntimeError, struct.error):
        return False   # reading it says what is wrong
    names = {record.filename for record in records}
    root = records[0].filename.split("/", 1)[0] + "/" if records else ""
    return len(names) == len(records) and root + "data.pkl" in names and min(record.header_offset for record in records) == 0 and all(
        record.filename.startswith(root) and record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
        and not record.flag_bits & 1 for record in records)


class _TorchLoad:
    """torch.load of the same file."""

    def __init__(self, path: str, map_location: Any, weights_only: bool, arguments: Dict[str, Any]) -> None:
        self._path, self._map_location, self._weights_only = path, map_location, weights_only
        self._arguments = {**arguments, **_unmapped()}
        self._asks_more = bool(arguments)

    def is_needed(self) -> bool:
        """Whether the caller asks for what only torch can do."""
        where = self._map_location
        return bool(self._asks_more or str(where) == "meta"
                    or callable(where) and not isinstance(where, (str, bytes, dict)))

    def mapped(self) -> Any:
        """Loads by torch with the file's storages mapped."""
        return original("load")(self._path, map_location=self._map_location, weights_only=self._weights_only,
                                **{**self._arguments, "mmap": True})

    def instead_of(self, error: Optional[Error]) -> Any:
        """Loads by torch; raises `error` where torch cannot either."""
        try:
            torch_load = original("load")
        except UnsupportedOnLoad:
            raise error or Unsupported(f"{self._path}: torch is not there to load this") from None
        try:
            return torch_load(self._path, map_location=self._map_location, weights_only=self._weights_only, **self._arguments)
        except Exception as found:   # whatever the classes of the file raise
            if error is not None and (self._weights_only or isinstance(found, pickle.UnpicklingError)):
                raise error from found
            if isinstance(found, pickle.UnpicklingError):
                raise UnsupportedOnLoad(f"{self._path}: {found}") from found
            raise


def _opaque(root: Any) -> List[Tuple[str, str]]:
    """(place, callable) of the opaque nodes of a tree."""
    found: List[Tuple[str, str]] = []
    pending: List[Tuple[str, Any]] = [("", root)]
    while pending and len(found) < 64:
        name, node = pending.pop()
        if not isinstance(node, dict):
            continue
        if node.get("o") == "opaque":
            found.append((name, str(node.get("q"))))
        join = name + "." if name else ""
        children = [(join + item[0], item[1]) for item in node.get("d", ()) if isinstance(item, list) and len(item) == 2]
        children += [(join + str(place), item) for place, item in enumerate(node.get("l", ()))]
        children += [(name, item) for item in node.get("c", ())] + [(name, node[key]) for key in ("a", "py") if key in node]
        pending.extend(reversed(children))
    return found


def _refused(opaque: List[Tuple[str, str]]) -> UnsupportedOnLoad:
    shown = ", ".join(f"{name or 'the object itself'} ({callable_})" for name, callable_ in opaque[:8])
    more = " and more" if len(opaque) > 8 else ""
    return UnsupportedOnLoad(
        f"the file holds objects that only running their classes could bring back: {shown}{more}. If you trust it, pass "
        "weights_only=False, or name the classes to torch.serialization.add_safe_globals")


def _check(image: Image) -> None:
    """Reads all of the file, which compares its checksums."""
    size = int(image.describe()["image_bytes"])
    scratch = (ctypes.c_char * min(_SCRATCH_BYTES, max(size, 1)))()
    address = ctypes.addressof(scratch)
    for begin in range(0, size, BATCH_BYTES):
        end = min(begin + BATCH_BYTES, size)
        pieces = [Range("", at, min(_SCRATCH_BYTES, end - at), address) for at in range(begin, end, _SCRATCH_BYTES)]
        for piece in pieces:
            image.read([piece])


# ---- File objects ----


def load_file_object(f: Any, map_location: Any, weights_only: bool, mmap: Any, arguments: Dict[str, Any]) -> Any:
    """Loads what stands at the position of a binary file object."""
    if mmap:
        raise Invalid("mmap=True maps a file: pass its path")
    head, position = _head(f)
    if not head.startswith(_ZIP) and not is_image(head) and head[_TAR_AT:] != _TAR:
        # Torch's old stream says by itself where it ends, so that several may follow each other.
        return original("load")(f, map_location=map_location, weights_only=weights_only, **{**arguments, **_unmapped()})
    with _spooled(f) as (path, size):
        try:
            loaded = load(path, map_location, weights_only, None, arguments)
        except Error as error:
            error.message = error.message.replace(path, f"{f!r} from position {position}")
            error.args = (error.message,)
            raise
    f.seek(position + size)
    return loaded


def _head(f: Any) -> Tuple[bytes, int]:
    try:
        position = f.tell()
        head = f.read(_TAR_AT + len(_TAR))
        f.seek(position)
        return bytes(head), int(position)
    except (AttributeError, OSError) as error:
        raise Invalid(f"{f!r} cannot be loaded from: it has to be seekable ({error}); read it into an io.BytesIO first") from error


@contextlib.contextmanager
def _spooled(f: Any) -> Iterator[Tuple[str, int]]:
    """The rest of a file object as a file without a name, in memory; of a zip archive nothing that follows it. And its size."""
    descriptor = os.memfd_create("neve-load")
    try:
        with open(descriptor, "r+b", closefd=False) as target:
            shutil.copyfileobj(f, target, 16 << 20)
            size = _end_of_first_archive(target)
            target.truncate(size)
        yield f"/proc/self/fd/{descriptor}", size
    finally:
        os.close(descriptor)


def _end_of_first_archive(file: Any) -> int:
    """Where the zip archive at the file's begin ends, whatever follows it; the file's end where there is no whole one.

    The end record of an archive says where in the archive it is itself, and so where the archive begins. Of a later archive it
    is passed over, with all that lies behind.
    """
    size = end = int(file.seek(0, os.SEEK_END))
    file.seek(0)
    at = _last_end_record(file, end) if file.read(4) == _ZIP else -1
    while at >= 0:
        begin = _archive_begin(file, at)
        if begin == 0:
            file.seek(at + 20)
            return int(min(at + 22 + struct.unpack("<H", file.read(2))[0], end))
        if begin is not None:
            end = begin
        at = _last_end_record(file, end if begin is not None else at + 21)
    return size


def _last_end_record(file: Any, end: int) -> int:
    """Where the last end record that is whole before `end` begins; -1 without one."""
    while end >= 22:
        begin = max(end - _SCRATCH_BYTES, 0)
        file.seek(begin)
        at = file.read(end - begin).rfind(b"PK\x05\x06", 0, end - begin - 18)
        if at >= 0:
            return begin + int(at)
        if begin == 0:
            break
        end = begin + 21   # one may lie across the border
    return -1


def _archive_begin(file: Any, at: int) -> Optional[int]:
    """Where the archive of an end record begins; None where the bytes there are no archive's."""
    before = min(at, 20)
    file.seek(at - before)
    record = file.read(before + 22)
    directory_bytes, directory = struct.unpack_from("<II", record, before + 12)
    begin = at - directory_bytes - directory
    if at >= 76 and record.startswith(b"PK\x06\x07"):
        begin = at - 76 - struct.unpack_from("<Q", record, 8)[0]
    if begin < 0:
        return None
    file.seek(begin)
    return begin if file.read(4) == _ZIP else None


def _unmapped() -> Dict[str, Any]:
    """What tells torch to map nothing, also where its configuration says to."""
    return {"mmap": False} if default_mmap() else {}


def default_mmap() -> bool:
    """What torch is told to do when a call does not say (torch.utils.serialization.config.load.mmap)."""
    torch = _tensors.loaded_torch()
    try:
        return bool(torch.utils.serialization.config.load.mmap) if torch is not None else False
    except AttributeError:
        return False
