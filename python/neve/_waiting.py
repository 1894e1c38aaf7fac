"""Waiting so that Ctrl-C is heard, and what happens at a fork and at the interpreter's exit.

A call into the engine releases the interpreter lock but does not return for a signal. So every wait is made in short
slices, or by another thread while the caller's looks up now and then.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import re
import sys
import threading
import time
import weakref
from typing import Any, Callable, Iterator, List, Optional

from .errors import Error, Invalid, Timeout

SLICE_S = 0.05   # how late Ctrl-C may be


def seconds(value: Any, argument: str) -> float:
    """A number of seconds that a caller gave; :class:`neve.Invalid` where it is none."""
    try:
        number = math.nan if isinstance(value, (str, bytes, bytearray)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if math.isnan(number):
        raise Invalid(f"{argument} is {value!r}: a number of seconds is wanted") from None
    return number


def slices(timeout: Optional[float]) -> "Slices":
    """Slices of a wait of `timeout` seconds; None waits for ever."""
    return Slices(timeout)


class Slices:
    """Calls an operation that raises Timeout after a given time, again and again until the whole deadline has passed."""

    def __init__(self, timeout: Optional[float]) -> None:
        self._timeout = 0.0 if timeout is None else seconds(timeout, "the deadline")
        self._deadline = None if timeout is None or self._timeout < 0 else time.monotonic() + self._timeout

    def run(self, operation: Callable[[float], Any]) -> Any:
        while True:
            left = SLICE_S
            if self._deadline is not None:
                left = min(SLICE_S, max(self._deadline - time.monotonic(), 0.0))
            try:
                return operation(left)
            except Timeout as error:
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    # The engine knows of the last slice only.
                    error.message = re.sub(r"after [0-9.e+-]+ s\b", f"after {self._timeout:.3g} s", error.message)
                    error.args = (error.message,)
                    raise


def interruptible(operation: Callable[[], Any]) -> Any:
    """Runs a blocking operation so that Ctrl-C leaves it at once; the operation itself then ends by itself."""
    if threading.current_thread() is not threading.main_thread() or is_exiting():
        return operation()
    outcome: List[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            outcome.append((operation(), None))
        except BaseException as error:  # handed to the caller
            outcome.append((None, error))
        done.set()

    threading.Thread(target=work, name="neve-wait", daemon=True).start()
    while not done.wait(SLICE_S):
        pass
    result, error = outcome.pop()
    if error is not None:
        try:
            raise error
        finally:
            del error   # it knows this frame
    return result


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps the garbage collector from looking at the very many small objects of a large state while they are made: none of
    them is garbage, and it would take longer than all the rest."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# ---- Fork and exit ----

_exiting = False
_open: "weakref.WeakSet[Any]" = weakref.WeakSet()   # what has to be finished at exit; each has `finish_at_exit()`
_forked_hooks: List[Callable[[], None]] = []


def is_exiting() -> bool:
    """Whether the interpreter is leaving: no thread can be started any more."""
    return _exiting


def finish_at_exit(owner: Any) -> None:
    """Calls `owner.finish_at_exit()` at the interpreter's exit, if it is still alive then."""
    _open.add(owner)


def forget(owner: Any) -> None:
    """The owner has been finished."""
    _open.discard(owner)


def after_fork(hook: Callable[[], None]) -> None:
    """Calls the hook in a forked child."""
    _forked_hooks.append(hook)


def notice(text: str) -> None:
    """One line for people, on stderr."""
    try:
        print(f"neve: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass   # stderr is closed


@atexit.register
def _at_exit() -> None:
    global _exiting
    _exiting = True
    for owner in list(_open):
        try:
            owner.finish_at_exit()
        except Error as error:
            notice(f"at exit: {error}")
        except KeyboardInterrupt:
            notice("interrupted; what was not written stays for `neve recover`")
            break


def _in_child() -> None:
    _open.clear()   # the parent's engines: their threads are not here
    for hook in _forked_hooks:
        hook()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
