"""Finds and loads libneve.so, once, at the first use; and the small steps that every call of the C API needs.

Looked for in: the file that the environment variable NEVE_LIBRARY names (then nowhere else); beside this package
(`neve/lib/libneve.so`, `neve/libneve.so`); the build folders of the source tree this package lies in.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any, List, Optional

from . import _abi
from .errors import Invalid, Unsupported, from_code

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def path_bytes(path: Any) -> bytes:
    """A path as the C API takes it, which would end it at a NUL and mean another file."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise Invalid(f"{path!r} is no path: it holds a NUL")
    return encoded


def candidates() -> List[Path]:
    """Where the library is looked for, in order."""
    named = os.environ.get("NEVE_LIBRARY")
    if named:
        return [Path(named)]
    package = Path(__file__).resolve().parent
    places = [package / "lib" / "libneve.so", package / "libneve.so"]
    source = package.parent.parent
    if (source / "include" / "neve" / "neve.h").exists():
        places.append(source / "build" / "release" / "lib" / "libneve.so")
        places.append(source / "build" / "dev" / "lib" / "libneve.so")
    return places


def library() -> ctypes.CDLL:
    """The loaded library. Raises :class:`neve.Unsupported` when it is nowhere, saying where it was looked for."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is None:
            _library = _load()
    return _library


def _load() -> ctypes.CDLL:
    places = candidates()
    for place in places:
        if not place.exists():
            continue
        try:
            return _abi.declare(ctypes.CDLL(str(place)))
        except OSError as error:
            raise Unsupported(f"{place} could not be loaded: {error}") from error
        except AttributeError as error:
            raise Unsupported(f"{place} is of another version than this Python package: {error}") from error
    where = ", ".join(str(place) for place in places)
    raise Unsupported(f"libneve.so was not found; looked for {where}. Build it (./dev build), or set NEVE_LIBRARY to its path")


# ---- Calls ----


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a code; raises the exception of its code. The interpreter lock is released."""
    lib = library()
    error = ctypes.c_void_p()
    code = getattr(lib, name)(*arguments, ctypes.byref(error))
    if code != 0:
        raise take_error(code, error)


def take_error(code: int, error: ctypes.c_void_p) -> Exception:
    """The exception of a failed call; destroys the handle."""
    lib = library()
    if not error.value:
        return from_code(code, "the call failed without a message")
    try:
        message = lib.neve_error_message(error).decode("utf-8", "replace")
        number = lib.neve_error_errno(error)
    finally:
        lib.neve_error_destroy(ctypes.byref(error))
    return from_code(code, message, number or None)


def call_json(name: str, handle: ctypes.c_void_p) -> Any:
    """Calls a function that gives a JSON text, and parses it."""
    lib = library()
    text = ctypes.c_void_p()
    call(name, handle, ctypes.byref(text))
    try:
        data = ctypes.string_at(lib.neve_string_data(text), lib.neve_string_size(text))
    finally:
        lib.neve_string_destroy(ctypes.byref(text))
    return json.loads(data.decode("utf-8", "replace"))
