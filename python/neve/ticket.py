"""A ticket: one asynchronous save."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import select
import threading
import weakref
from typing import Any, Callable, Dict, Generator, List, Optional, Sequence

from . import _device, _torn, _waiting
from ._library import call, call_json, library
from .errors import Error, Invalid, Timeout, from_code

_log = logging.getLogger("neve")

Callback = Callable[["Ticket"], Any]


class Ticket:
    """One asynchronous save: which stages it has reached, its error, and a descriptor to poll.

    The stages, in order: ``captured`` (the state may be changed), the tiers that are due (``ram``, ``file``), ``done`` (all of
    those), ``complete`` (every rank has committed it in at least one tier) and ``complete:<tier>``.

    ``await ticket`` waits for ``done``. A ticket may be used from any thread. Dropping it does not stop the save.
    """

    def __init__(self, handle: ctypes.c_void_p, step: int, ordinals: Sequence[int] = ()) -> None:
        self._handle = handle
        self._ordinals = list(ordinals)   # CUDA devices that the save reads from
        self._watch: Optional[_torn.Watch] = None
        self._fenced = False
        self._pid = os.getpid()
        self._step = step
        finalizer = weakref.finalize(self, _destroy_ticket, handle, self._pid)
        finalizer.atexit = False

    def __repr__(self) -> str:
        if os.getpid() != self._pid:
            return f"<neve.Ticket step={self._step} of another process>"
        states = ", ".join(f"{stage}={state}" for stage, state in self.stages.items())
        return f"<neve.Ticket step={self._step} {states}>"

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise Invalid("this ticket belongs to the parent process: a forked child cannot wait for it")

    def _describe(self) -> Dict[str, Any]:
        self._check()
        description: Dict[str, Any] = call_json("neve_ticket_describe", self._handle)
        return description

    @property
    def step(self) -> int:
        """The step that was saved."""
        return self._step

    @property
    def save_id(self) -> str:
        """Its save id, such as ``i0003.s000017``."""
        return str(self._describe().get("save_id", ""))

    @property
    def stages(self) -> Dict[str, str]:
        """The stages of this save, in order: each ``pending``, ``reached``, ``failed`` or ``skipped``."""
        return dict(self._describe()["stages"])

    @property
    def places(self) -> Dict[str, str]:
        """Where this save lies: tier name to path."""
        return dict(self._describe().get("places", {}))

    @property
    def error(self) -> Optional[Error]:
        """The first error of any stage, or None."""
        found = self._describe().get("error")
        if not found:
            return None
        return from_code(found.get("code"), str(found.get("message", "")), found.get("errno") or None)

    def wait(self, stage: str = "done", timeout: Optional[float] = None) -> None:
        """Waits until the stage is reached.

        Raises that stage's error, :class:`neve.Timeout` after `timeout` seconds, :class:`neve.Exhausted` when the save was
        skipped or replaced, and at once :class:`neve.Invalid` for a stage that is not due. Ctrl-C interrupts it.
        """
        self._check()
        if not isinstance(stage, str):
            raise Invalid(f"{stage!r} is no stage: pass its name, such as 'done'; a time goes to timeout=")
        name = stage.encode("utf-8", "surrogatepass")
        _waiting.Slices(timeout).run(lambda left: call("neve_ticket_wait", self._handle, name, left))

    def done(self) -> bool:
        """Whether nothing of this save is pending any more, failed or not."""
        return "pending" not in self.stages.values()

    def fence(self) -> None:
        """After this the tensors may be changed, on the current streams of their devices, which wait for the copies.

        The host waits only until the copies were handed to the device; should that take longer than a minute, the save is given up
        and its ticket says so. A host state is captured before ``save()`` returns: nothing to wait for.
        """
        self._check()
        if not self._ordinals:
            return
        self._fenced = True
        devices, streams, count = _device.stream_arrays(_device.current_streams(self._ordinals))
        try:
            call("neve_ticket_fence", self._handle, devices, streams, count, _device.FENCE_TIMEOUT_S)
        except Timeout as error:
            _log.warning("step %d: %s", self._step, error)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.check("its fence")

    @property
    def fenced(self) -> bool:
        """Whether :meth:`fence` was called, by the hook of an optimizer or by the program."""
        return self._fenced

    def watch(self, watch: Optional[_torn.Watch]) -> None:
        """What to compare when the fence is reached (NEVE_CHECK_TORN)."""
        self._watch = watch

    def fileno(self) -> int:
        """A descriptor that becomes readable at every change, until a byte is read from it. It belongs to the ticket."""
        self._check()
        return int(library().neve_ticket_descriptor(self._handle))

    def add_done_callback(self, callback: Callback) -> None:
        """Calls ``callback(ticket)`` once when nothing is pending any more, from one thread of Python's."""
        self._check()
        if not callable(callback):
            raise Invalid(f"{callback!r} cannot be called: pass a function of the ticket")
        _dispatcher.add(self, callback)

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> None:
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[None]" = loop.create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(None)

        def wake(_: "Ticket") -> None:
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:
                pass   # the loop was closed meanwhile

        self.add_done_callback(wake)
        await future
        self.wait("done", 0)


def _destroy_ticket(handle: ctypes.c_void_p, pid: int) -> None:
    if os.getpid() == pid:
        library().neve_ticket_destroy(ctypes.byref(handle))


class _Dispatcher:
    """The one thread that calls callbacks. It watches the tickets' descriptors edge-triggered and reads nothing from them,
    so that a program which polls and reads `fileno()` itself misses no change."""

    def __init__(self) -> None:
        self._reset()
        _waiting.after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Dict[int, List[Any]] = {}   # descriptor -> ticket, callbacks
        self._poll: Optional[Any] = None
        self._thread: Optional[threading.Thread] = None

    def add(self, ticket: Ticket, callback: Callback) -> None:
        descriptor = ticket.fileno()
        with self._lock:
            if self._poll is None:
                self._poll = select.epoll()
            entry = self._waiting.get(descriptor)
            if entry is None:
                self._waiting[descriptor] = [ticket, callback]
                self._poll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            else:
                entry.append(callback)
                self._poll.modify(descriptor, select.EPOLLIN | select.EPOLLET)   # reports once more
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="neve-tickets", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                poll = self._poll
            assert poll is not None
            # The timeout only guards against a descriptor that someone else has drained before it was registered.
            poll.poll(1.0)
            self._deliver(poll)

    def _deliver(self, poll: Any) -> None:
        with self._lock:
            entries = list(self._waiting.items())
        for descriptor, entry in entries:
            ticket = entry[0]
            try:
                finished = ticket.done()
            except Error:
                finished = True
            if not finished:
                continue
            with self._lock:
                self._waiting.pop(descriptor, None)
                poll.unregister(descriptor)
            for callback in entry[1:]:
                try:
                    callback(ticket)
                except Exception:  # a callback's error is its own: shown, as threading does
                    import traceback

                    traceback.print_exc()


_dispatcher = _Dispatcher()
