"""torch.save and torch.load of this process made neve's, and scripts run so."""

from __future__ import annotations

import functools
import os
import pickle
import runpy
import sys
from typing import Any, List

from . import _tensors, _torch_original
from ._torch_original import notice_once, original
from .errors import Error, Unsupported, UnsupportedOnLoad

_FORCED = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")


def patch() -> None:
    """Replaces both functions, once; `torch.serialization` is where torch itself looks."""
    torch = _tensors.need_torch("torch.save")
    if _torch_original.originals:
        return
    for name, ours in (("save", _save), ("load", _load)):
        theirs = getattr(torch.serialization, name)
        _torch_original.originals[name] = theirs
        wrapped = functools.wraps(theirs)(ours)
        setattr(torch, name, wrapped)
        setattr(torch.serialization, name, wrapped)


def _save(obj: Any, f: Any, pickle_module: Any = pickle, pickle_protocol: int = 2, _use_new_zipfile_serialization: bool = True,
          _disable_byteorder_record: bool = False) -> None:
    from . import files

    torch = _tensors.need_torch("torch.save")
    local = getattr(torch.serialization, "_serialization_tls", None)
    if getattr(local, "skip_data", False) or getattr(local, "materialize_fake_tensors", False):
        notice_once("torch.save under skip_data or with fake tensors is torch's own")
        original("save")(obj, f, pickle_module, pickle_protocol, _use_new_zipfile_serialization, _disable_byteorder_record)
        return
    files.save(obj, f, pickle_module, pickle_protocol, _use_new_zipfile_serialization, _disable_byteorder_record)


def _load(f: Any, map_location: Any = None, pickle_module: Any = None, *, weights_only: Any = None, mmap: Any = None,
          **pickle_load_args: Any) -> Any:
    from . import files

    if any(os.environ.get(name) for name in _FORCED):
        notice_once(f"torch.load is torch's own while {' or '.join(_FORCED)} is set")
        return original("load")(f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **pickle_load_args)
    arguments = dict(pickle_load_args)
    if pickle_module is not None:
        arguments["pickle_module"] = pickle_module
    try:
        return files.load(f, map_location, weights_only, mmap, **arguments)
    except UnsupportedOnLoad:
        raise
    except Unsupported as error:
        notice_once(f"torch.load is torch's own for what neve cannot load: {error}")
        return original("load")(f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **pickle_load_args)


def run(arguments: List[str]) -> int:
    """`python -m neve run [-m MODULE | SCRIPT] ARGS`: the script as Python would run it, with torch patched."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m neve run SCRIPT [ARGS...]   or   python -m neve run -m MODULE [ARGS...]\n"
              "Runs a script whose torch.save and torch.load are neve's.", file=sys.stderr)
        return 0 if arguments else 2
    try:
        patch()
    except Error as error:
        print(f"neve: {error}", file=sys.stderr)
        return 5
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print("neve: run -m needs the name of a module", file=sys.stderr)
            return 2
        sys.argv = arguments[1:]
        sys.path[0:0] = [os.getcwd()]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    sys.argv = arguments
    if not os.path.exists(arguments[0]):
        print(f"neve: {arguments[0]} is not there", file=sys.stderr)
        return 2
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0
