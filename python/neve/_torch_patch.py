"""torch.save and torch.load of this process made neve's, and scripts run so."""

from __future__ import annotations

import builtins
import functools
import os
import pickle
import runpy
import stat
import sys
import types
import zipfile
from typing import Any, Dict, List

from . import _tensors, _torch_load, _torch_original
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
    if _is_written_through(f):
        notice_once(f"torch.save to {f} is torch's own: it can be written, not replaced")
        original("save")(obj, f, pickle_module, pickle_protocol, _use_new_zipfile_serialization, _disable_byteorder_record)
        return
    files.save(obj, f, pickle_module, pickle_protocol, _use_new_zipfile_serialization, _disable_byteorder_record)


def _is_written_through(f: Any) -> bool:
    """Whether a path leads to what a new file cannot take the place of, and what torch writes all the same: a device, a pipe, an
    open descriptor under /proc, a file in a folder in which none may be made."""
    if not isinstance(f, (str, bytes, os.PathLike)):
        return False
    try:
        facts = os.stat(f)
        target = os.path.realpath(f)
    except (OSError, ValueError):
        return False
    if stat.S_ISDIR(facts.st_mode):
        return False
    folder = os.path.dirname(target)
    return not stat.S_ISREG(facts.st_mode) or not os.path.exists(target) or (
        os.access(f, os.W_OK) and not os.access(folder, os.W_OK | os.X_OK))


def _load(f: Any, map_location: Any = None, pickle_module: Any = None, *, weights_only: Any = None, mmap: Any = None,
          **pickle_load_args: Any) -> Any:
    from . import files

    if any(os.environ.get(name) for name in _FORCED):
        notice_once(f"torch.load is torch's own while {' or '.join(_FORCED)} is set")
        return _load_by_torch(f, map_location, pickle_module, weights_only, mmap, pickle_load_args)
    arguments = dict(pickle_load_args)
    if pickle_module is not None:
        arguments["pickle_module"] = pickle_module
    try:
        return files.load(f, map_location, weights_only, mmap, **arguments)
    except UnsupportedOnLoad:
        raise
    except Unsupported as error:
        notice_once(f"torch.load is torch's own for what neve cannot load: {error}")
        return _load_by_torch(f, map_location, pickle_module, weights_only, mmap, pickle_load_args)


def _load_by_torch(f: Any, map_location: Any, pickle_module: Any, weights_only: Any, mmap: Any, arguments: Dict[str, Any]) -> Any:
    """torch.load itself, but that it maps no file whose records are compressed: what it would give then is no values."""
    asked = _torch_load.default_mmap() if mmap is None else mmap
    if asked and isinstance(f, (str, bytes, os.PathLike)) and not _torch_load.can_be_mapped(f):
        mmap = False
    return original("load")(f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **arguments)


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
    if os.path.isdir(arguments[0]) or zipfile.is_zipfile(arguments[0]):
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    # As the interpreter runs a script: its module is __main__ to the end, and its __file__ holds after a change of folder.
    path = os.path.abspath(arguments[0])
    main = types.ModuleType("__main__")
    main.__file__ = path
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))
    return 0
