"""neve: checkpoints that do not hold training up, and come back in seconds.

    import neve
    ckpt = neve.Checkpointer("runs/gpt")                       # a RAM tier and a folder of .safetensors files
    for step in range(start, steps):
        ...                                                    # train
        ckpt.save(step, {"model": model, "optimizer": optimizer, "step": step})   # returns once the state is captured
    found = ckpt.restore(into=state)                           # newest complete save, from the nearest place that has it

`neve.save`, `neve.load` and `neve.async_save` write and read single files. Importing neve imports neither torch nor numpy,
and needs no compiled library: that is loaded at the first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Dict, List

from .errors import (
    Closed, DataLoss, Damaged, Error, Exhausted, Internal, Invalid, NotFound, Timeout, Unavailable, Unsupported,
    UnsupportedOnLoad,
)

if TYPE_CHECKING:
    from . import dcp
    from ._pieces import Piece
    from ._restore import Found
    from .checkpointer import Checkpointer, Save
    from .files import async_save, load, patch_torch, save
    from .ticket import Ticket

__version__ = "0.1.0"

__all__ = [
    "Checkpointer", "Closed", "DataLoss", "Damaged", "Error", "Exhausted", "Found", "Internal", "Invalid", "NotFound", "Piece",
    "Save", "Ticket", "Timeout", "Unavailable", "Unsupported", "UnsupportedOnLoad", "async_save", "load", "patch_torch",
    "save",
]

# Loaded when first asked for, so that `import neve` stays quick.
_LAZY: Dict[str, str] = {
    "Checkpointer": "checkpointer", "Save": "checkpointer", "Ticket": "ticket", "Found": "_restore", "Piece": "_pieces", "save": "files",
    "load": "files", "async_save": "files", "patch_torch": "files",
}


def __getattr__(name: str) -> Any:
    if name == "dcp":   # a module that needs torch, and so is not listed by dir(), which help() imports all of
        return importlib.import_module(f"{__name__}.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'neve' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *_LAZY})
