"""NEVE_CHECK_TORN=1: finds tensors that change while a save still reads them, and names them.

Slow, for debugging: every tensor is read twice. A tensor counts as changed when its version counter has moved, or when its bytes have
another checksum than when the save began.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from typing import Any, List, Optional, Sequence, Tuple

from .errors import Invalid


def wanted() -> bool:
    """Whether the environment asks for it."""
    return os.environ.get("NEVE_CHECK_TORN", "") not in ("", "0")


class Watch:
    """Tensors as they were when the save began."""

    def __init__(self, names: Sequence[str], tensors: Sequence[Any]) -> None:
        self._names = list(names)
        self._tensors = list(tensors)
        self._before = [_seen(tensor) for tensor in self._tensors]

    def check(self, until: str) -> None:
        """Raises :class:`neve.Invalid` naming what has changed since."""
        changed: List[str] = []
        for name, tensor, before in zip(self._names, self._tensors, self._before):
            now = _seen(tensor)
            if now[0] != before[0]:
                changed.append(f"{name} (version {before[0]}, now {now[0]})")
            elif now[1] != before[1]:
                changed.append(f"{name} (its bytes differ, its version does not: written past torch)")
        if changed:
            shown = ", ".join(changed[:8]) + (f" and {len(changed) - 8} more" if len(changed) > 8 else "")
            raise Invalid(f"changed between the save and {until}, so the save may be torn: {shown}")


def _seen(tensor: Any) -> Tuple[Optional[int], int]:
    try:
        version: Optional[int] = tensor._version
    except RuntimeError:   # tensors of inference mode count nothing
        version = None
    here = tensor.detach().cpu().contiguous()
    size = here.numel() * here.element_size()
    return version, zlib.crc32((ctypes.c_char * size).from_address(here.data_ptr())) if size else 0
