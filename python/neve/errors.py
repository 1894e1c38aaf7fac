"""The exceptions of neve, and the one table from the C API's codes to them.

Every exception is a :class:`Error`, and also the built-in class that a caller would expect: what is not there is a
``FileNotFoundError``, a deadline is a ``TimeoutError``. The message says what, where and what to do.
"""

from __future__ import annotations

import errno as errnos
import pickle
from typing import Dict, Optional, Type

__all__ = [
    "Error", "Invalid", "Closed", "Timeout", "NotFound", "Exhausted", "Damaged", "Unsupported", "UnsupportedOnLoad",
    "Internal", "Unavailable", "DataLoss", "from_code",
]


class Error(Exception):
    """Base of every error that neve raises.

    ``errno`` is the operating system's error number where one is known, else None. :class:`Exhausted` and :class:`Unavailable`,
    which are ``OSError``, always have one.
    """

    errno: Optional[int] = None

    def __init__(self, message: str = "", errno: Optional[int] = None) -> None:
        super().__init__(message)
        self.message = message
        self.errno = errno or self._usual_errno(message)

    @staticmethod
    def _usual_errno(message: str) -> Optional[int]:
        return None

    def __str__(self) -> str:
        return self.message

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return type(self), (self.message, self.errno)


class Invalid(Error, ValueError):
    """The call is wrong; nothing was changed."""


class Closed(Invalid):
    """The Checkpointer is closed."""


class Timeout(Error, TimeoutError):
    """The stated deadline passed. The work goes on."""


class NotFound(Error, FileNotFoundError):
    """Every configured place was reachable, and none has it."""


class Exhausted(Error, OSError):
    """There was no room: memory (``errno`` ENOMEM), disk (ENOSPC), or a RAM slot (a save that was skipped or replaced: EAGAIN)."""

    @staticmethod
    def _usual_errno(message: str) -> int:
        # A disk's refusal brings the system's number; without one it is neve's count of slots, or of the memory for them.
        return errnos.EAGAIN if "no RAM slot was free" in message else errnos.ENOMEM


class Damaged(Error, RuntimeError):
    """It is a checkpoint, but truncated or malformed."""


class Unsupported(Error, TypeError):
    """This build, or this kind of object, cannot."""


class UnsupportedOnLoad(Unsupported, pickle.UnpicklingError):
    """The checkpoint holds something that is not loaded unless the caller says so (``weights_only=False``)."""


class Internal(Error, RuntimeError):
    """An invariant of neve was broken: a defect of neve."""


class Unavailable(Error, OSError):
    """A place could not be reached: unmounted, refused, or an input/output error (``errno`` EIO where the system gave none)."""

    @staticmethod
    def _usual_errno(message: str) -> int:
        return errnos.EIO


class DataLoss(Error, RuntimeError):
    """Bytes differ from their digest and no other copy is left."""


# Values of `neve_code` in neve.h.
OK, INVALID, TIMEOUT, NOT_FOUND, EXHAUSTED, CLOSED = 0, 3, 4, 5, 8, 9
DAMAGED, UNSUPPORTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 11, 12, 13, 14, 15

BY_CODE: Dict[int, Type[Error]] = {
    INVALID: Invalid,
    TIMEOUT: Timeout,
    NOT_FOUND: NotFound,
    EXHAUSTED: Exhausted,
    CLOSED: Closed,
    DAMAGED: Damaged,
    UNSUPPORTED: Unsupported,
    INTERNAL: Internal,
    UNAVAILABLE: Unavailable,
    DATA_LOSS: DataLoss,
}

_BY_NAME: Dict[str, Type[Error]] = {error.__name__.lower(): error for error in BY_CODE.values()}


def from_code(code: object, message: str, errno: Optional[int] = None) -> Error:
    """The exception for a code: its number in neve.h, or its name in any spelling (``DATA_LOSS``, ``DataLoss``)."""
    kind: Optional[Type[Error]]
    if isinstance(code, int):
        kind = BY_CODE.get(code)
    else:
        kind = _BY_NAME.get(str(code).lower().replace("neve_", "").replace("_", ""))
    if kind is None:
        return Internal(f"{message} (unknown code {code!r})", errno)
    return kind(message, errno)
