"""The Checkpointer: saves a training state without holding training up, and brings it back."""

from __future__ import annotations

import ctypes
import json
import logging
import operator
import os
import threading
import weakref
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote

from . import _abi, _device, _torn, _waiting
from . import errors as _errors
from ._describe import Capture, Describer
from ._group import Group, join
from ._image import Image
from ._library import call, call_json, library, path_bytes
from ._restore import Found, Lacking, Restoration, explain_written
from ._waiting import Slices, collector_paused, interruptible
from ._world import find_world
from .errors import Closed, Damaged, DataLoss, Error, Invalid, NotFound, Timeout, Unsupported
from .ticket import Ticket

_log = logging.getLogger("neve")

STEP_LIMIT = 10**12
INCARNATION_LIMIT = 2**32
EXIT_DEADLINE_S = 600.0   # what an interpreter's exit waits for at most
_PREPARE_ANSWER_S = 2.0   # how long prepare() waits for a refusal before it goes on in the background

Tier = Union[str, Mapping[str, Any]]


class Save(int):
    """One save as :meth:`Checkpointer.steps` lists it: its step number, with what `neve ls --json` says of it as attributes."""

    job: str
    save_id: str
    complete: bool
    tiers: Dict[str, Dict[str, Any]]
    missing_ranks: List[int]
    bytes: int
    time: float
    tags: Dict[str, Any]
    pinned: bool

    def __new__(cls, description: Mapping[str, Any]) -> "Save":
        made = super().__new__(cls, description["step"])
        vars(made).update(description)
        return made

    @property
    def step(self) -> int:
        """The step number, as a plain int."""
        return int(self)


class Checkpointer:
    """Saves states of one job, and restores them.

        ckpt = neve.Checkpointer("runs/gpt")
        ticket = ckpt.save(step, {"model": model, "optimizer": optimizer})   # returns once the state is captured
        found = ckpt.restore(into={"model": model, "optimizer": optimizer})  # newest complete save

    folder: the job folder; steps lie directly inside. With `tiers` it only names the job.
    tiers: tier strings such as ``"ram:?slots=3"`` and ``"file:/nvme/ckpt?every=10&keep=3"``, or dicts
        ``{"tier": "file", "place": "/nvme/ckpt", "every": 10}``. Default: RAM, and files in the job folder.
    job: the job's name; default the last part of `folder`.
    rank, world: default as torch.distributed says when it is initialised, else 0 of 1.
    group: how the ranks of a world of more than one meet, when they open and restore: ``"torch"`` (torch.distributed's store, the
        default where that is initialised), ``"dir:PATH"`` (a folder that all ranks see), ``"static:HOST:PORT,..."`` (a place of each
        rank, with a key in NEVE_KEY_FILE or NEVE_KEY), or a function that takes this rank's message (bytes) and returns those of all
        ranks, by rank. Every rank opens with the same folder, job and tiers, and restores with the same arguments.
    group_timeout: seconds that ranks wait for each other there; the error names who did not come.
    on_full: when no RAM slot is free, ``"wait"`` for one, ``"skip"`` this save, or ``"replace"`` the oldest waiting one.
    replicated: every rank holds the same state, as with DistributedDataParallel. Then one rank of each host keeps it in RAM, rank 0 writes
        it to files, and all ranks restore from the nearest copy. What a rank has no part in is no stage of its tickets; ``"complete"``
        is, on every rank. What differs between ranks, as generator states do, comes back as rank 0's.
    grace: seconds given to SIGTERM, in which the newest captured save is written out; None installs no handler.
    incarnation: which life of the job this is; default found.

    Nothing is created before the first ``prepare`` or ``save``. Use it as a context manager, or call ``close``; at the
    interpreter's exit an open one is closed. May be used from several threads.
    """

    def __init__(self, folder: Union[str, "os.PathLike[str]"], tiers: Optional[Iterable[Tier]] = None, *,
                 job: Optional[str] = None, rank: Optional[int] = None, world: Optional[int] = None, on_full: str = "wait",
                 grace: Optional[float] = None, replicated: bool = False, incarnation: Optional[int] = None,
                 group: Optional[Group] = None, group_timeout: float = 300.0) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise Invalid(f"the job folder is {folder!r}: give a path, such as 'runs/gpt'")
        if not os.fspath(folder):
            raise Invalid("the job folder's name is empty: give a path, such as 'runs/gpt'")
        if on_full not in _abi.ON_FULL:
            raise Invalid(f"on_full is {on_full!r}: use 'wait', 'skip' or 'replace'")
        if isinstance(tiers, (str, bytes, Mapping)) or tiers is not None and not isinstance(tiers, Iterable):
            raise Invalid("tiers is a list of tier strings or dicts")
        if grace is not None and not _waiting.seconds(grace, "grace") > 0:
            raise Invalid(f"grace is {grace!r}: a number of seconds above 0, or None")
        if not _waiting.seconds(group_timeout, "group_timeout") > 0:
            raise Invalid(f"group_timeout is {group_timeout!r}: a number of seconds above 0")
        if job is not None and not (isinstance(job, str) and job):
            raise Invalid(f"job is {job!r}: give a name, or leave it out for the folder's")
        life = -1 if incarnation is None else _incarnation_number(incarnation)
        rank, world = find_world(rank, world)
        self._world = world
        self._joined = join(group, world)
        texts = [tier_text(tier).encode("utf-8") for tier in tiers or ()]
        options = _abi.Options.new(
            folder=path_bytes(os.path.abspath(os.fspath(folder))),
            job=None if job is None else job.encode("utf-8"),
            tiers=(ctypes.c_char_p * len(texts))(*texts) if texts else None,
            tier_count=len(texts), rank=rank, world=world, on_full=_abi.ON_FULL[on_full],
            incarnation=life, grace_s=float(grace or 0.0), group_timeout_s=float(group_timeout),
            replicated=int(bool(replicated)), **self._joined.fields)
        self._pid = os.getpid()
        self._folder = os.fspath(folder)
        self._engine = ctypes.c_void_p()
        self._lock = threading.RLock()
        self._describer = Describer(takes_devices=True)
        self._preparing: Optional[threading.Thread] = None
        self._refused = ""       # why saves are refused: a restore in place that failed
        self._told_of_device = False
        self._fence: Optional[Tuple[_device.Fence, Ticket]] = None   # of the last save, until it is kept
        self._last_step: Optional[int] = None
        self._together(lambda: call("neve_engine_open", ctypes.byref(options), ctypes.byref(self._engine)))
        finalizer = weakref.finalize(self, _destroy_engine, self._engine, self._pid)
        finalizer.atexit = False
        _waiting.finish_at_exit(self)

    def __repr__(self) -> str:
        return f"<neve.Checkpointer {self._folder!r}{'' if self._engine else ' closed'}>"

    def __enter__(self) -> "Checkpointer":
        self._check()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._engine:
            self.close()

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or belongs to the parent of this process."""
        return not self._engine or os.getpid() != self._pid

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise Invalid("this Checkpointer belongs to the parent process: open another in a forked child")
        if not self._engine:
            raise Closed("the Checkpointer is closed")

    # ---- Many ranks ----

    def _together(self, operation: Callable[[], Any]) -> Any:
        """Runs what may wait for other ranks."""
        if self._world == 1:
            return operation()
        if not self._joined.on_this_thread:
            return interruptible(operation)
        try:
            return operation()
        except Error:
            interrupt, self._joined.interrupt = self._joined.interrupt, None
            if interrupt is not None:
                raise interrupt from None
            raise

    def _whole(self, work: Callable[[], Any]) -> Any:
        """Does this rank's part of a restore; then all ranks have done theirs, or all raise the same error."""
        if self._world == 1:
            return work()
        try:
            result = work()
        except Error as mine:
            try:
                self._agree(mine)
            except Error as error:
                # The same for all; on this rank with its own class where that is a finer one.
                if isinstance(mine, type(error)) and mine.message in error.message:
                    error = type(mine)(error.message, error.errno)
                raise error from mine
            raise
        except BaseException as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            call("neve_engine_leave", self._engine, why.encode("utf-8", "replace"))
            raise
        self._agree(None)
        return result

    def _agree(self, mine: Optional[Error]) -> None:
        code, message = _errors.OK, b""
        if mine is not None:
            code = next((code for code, kind in _errors.BY_CODE.items() if type(mine) is kind), 0) or next(
                (code for code, kind in _errors.BY_CODE.items() if isinstance(mine, kind)), _errors.INTERNAL)
            message = mine.message.encode("utf-8", "replace").replace(b"\0", b"?")
        self._together(lambda: call("neve_engine_agree", self._engine, code, message))

    # ---- Saving ----

    def save(self, step: int, state: Any, fence: Any = None, tags: Optional[Mapping[str, Any]] = None,
             to: Union[None, str, Sequence[str]] = None) -> Ticket:
        """Captures the state and returns; the rest happens in the background. After it the state may be changed.

        Tensors on CUDA devices are copied while the program goes on; its current stream waits, on the device, until they may be
        changed.

        fence: an optimizer, or a list of them. Then the streams do not wait now: what only the optimizers change (parameters and
            their state) is kept until the next step of one of them, or until ``ticket.fence()``; the stream waits there. Host
            tensors are always captured when this returns.
        tags: a flat dict of numbers, strings and booleans, shown by ``steps()`` and used by ``best=``.
        to: only these tiers, due whatever their cadence.

        Raises only for misuse by this very call: :class:`neve.Invalid`, :class:`neve.Unsupported` (a leaf that cannot be
        saved, by its path). All else goes to the ticket, ``health()``, the log, and ``close()``.
        """
        self._check()
        handle = ctypes.c_void_p()
        reached = False   # the engine, which counts what it refuses
        try:
            number = _step_number(step)
            if self._refused:
                raise Invalid(f"this save is refused: {self._refused}; restore first")
            tags_json = _tags_json(tags)
            tiers = _tier_names(to, "to")
            with self._lock:
                self._keep_last_fence()
                capture = self._describer.capture(state, stacklevel=2)
                self._tell_of_device(capture)
                ordinals = capture.structure.ordinals
                optimizers = _device.optimizers_of(fence) if fence is not None and ordinals else []
                watch = capture.watch() if _torn.wanted() else None
                request = capture.request(step=number, tags_json=tags_json, to=tiers)
                if optimizers:
                    capture.fence(request, optimizers)

                def attempt(left: float) -> None:
                    nonlocal reached
                    reached = True
                    request.slot_timeout_s = left
                    call("neve_engine_save", self._engine, ctypes.byref(request), ctypes.byref(handle))

                Slices(None).run(attempt)
                self._last_step = number
        except BaseException as error:
            # Ranks call a save by its number, which is how many came before: one that failed on this rank alone counts too.
            if not handle.value and not (reached and isinstance(error, Error)):
                self.count_save()
            raise
        ticket = Ticket(handle, number, ordinals)
        if ordinals:
            _device.hold_until_captured(ticket, capture)
        if optimizers:
            ticket.watch(watch)
            self._fence = (_device.Fence(optimizers, ticket.fence), ticket)
        elif watch is not None:
            watch.check("its return")
        return ticket

    def _keep_last_fence(self) -> None:
        """A step that ran without its hooks, as in a captured graph, kept no fence: better now than never."""
        last, self._fence = self._fence, None
        if last is not None:
            fence, ticket = last
            if not ticket.fenced:
                _log.warning("no step of the fenced optimizers has come since the save of step %d: call ticket.fence() before the tensors "
                             "change (in a captured graph no hook runs)", ticket.step)
            fence()

    def count_save(self) -> None:
        """Counts a save that failed on this rank before ``save`` was called, while other ranks went on to call it."""
        if self._world > 1:
            call("neve_engine_count_save", self._engine)

    def keep_dicts(self) -> None:
        """From now on each dictionary is saved as one, also one of values alone, of which other ranks have other keys. For `neve.dcp`."""
        with self._lock:
            self._describer = Describer(takes_devices=True, keeps_dicts=True)

    def prepare(self, state: Any) -> None:
        """Makes and prefaults the slots for such a state, so that the first ``save`` is as quick as the others.

        Goes on in the background. Raises :class:`neve.Exhausted` with the numbers when memory does not suffice; should that
        turn out late, it is logged and ``health()`` says it.
        """
        self._check()
        self._join_preparing()
        capture = self._describer.capture(state, stacklevel=2)
        outcome: List[BaseException] = []
        late = threading.Event()

        def work() -> None:
            try:
                request = capture.request(step=0)
                call("neve_engine_prepare", self._engine, ctypes.byref(request))
            except Error as error:
                outcome.append(error)
                if late.is_set():
                    _log.warning("prepare failed: %s", error)

        thread = threading.Thread(target=work, name="neve-prepare", daemon=True)
        self._preparing = thread
        thread.start()
        thread.join(_PREPARE_ANSWER_S)
        late.set()
        if not thread.is_alive():
            self._preparing = None
            if outcome:
                raise outcome[0]

    def _join_preparing(self) -> None:
        thread = self._preparing
        while thread is not None and thread.is_alive():
            thread.join(_waiting.SLICE_S)
        self._preparing = None

    def _tell_of_device(self, capture: Capture) -> None:
        if capture.structure.copies and not self._told_of_device:
            self._told_of_device = True
            _log.warning("tensors on a device that neve cannot read from are copied to the host inside save(), and training waits")

    # ---- Restoring ----

    @collector_paused()   # until all that the restore made for itself has gone
    def restore(self, step: Optional[int] = None, into: Any = None, include: Union[None, str, Sequence[str]] = None,
                map_location: Any = None, strict: bool = True, fallback: bool = False,
                allow_missing: Union[str, Sequence[str]] = (), atomic: bool = False, weights_only: bool = True,
                take_rank0: Union[None, str, Sequence[str]] = None) -> Found:
        """Brings back the newest complete save, each byte verified, from the nearest tier that has it.

        step: that step's newest save instead.
        into: a state of the same shape: tensors and arrays are filled in place, numbers, strings and None replaced by values inside
            their dict or list, objects get ``load_state_dict``, what a dict or list lacks is added. What does not fit, as a tensor
            where the target has a number or None, is listed by :class:`neve.Invalid` before anything is written.
        include: glob patterns over dotted names, such as ``"model.*"``: only these. One that matches nothing is refused.
        map_location: a device for tensors, or a dict of devices, when there is no target.
        strict: False lists what does not fit in ``found.missing`` and ``found.unexpected`` instead.
        fallback: True takes the next older save when this one is damaged.
        allow_missing: names of tiers that may be unreachable.
        atomic: True verifies all of it, on every rank, before a target is touched.
        weights_only: False also loads pickled objects, which can run code.
        take_rank0: glob patterns over dotted names. Another world than the one that saved takes values and plain tensors that all
            ranks have alike; where a name that matches differs, rank 0's is taken, where no pattern matches it is
            :class:`neve.Unsupported`. What `include` leaves out may differ.

        DTensors and :class:`neve.Piece` in `into` are filled from whatever layout was saved, on however many ranks. Without `into` the
        world that saved gets its boxes back as Pieces, another one whole tensors.

        With many ranks every rank calls it, with the same arguments: all get the same save, the newest that every rank reaches, or all
        raise the same error.

        Raises :class:`neve.NotFound` when there is nothing to restore, :class:`neve.DataLoss` or :class:`neve.Damaged` when
        there is nothing whole, :class:`neve.Unavailable` when a tier could not be listed.
        """
        self._check()
        wanted = None if step is None else _step_number(step)
        tiers = _tier_names(allow_missing, "allow_missing")
        self._check_tiers(tiers)
        rank0 = _patterns(take_rank0)
        include = include if include is None or isinstance(include, str) else _names_listed(include, "include")
        first: Optional[Error] = None
        before: Optional[Tuple[int, int]] = None
        while True:
            try:
                image = self._find(wanted, before, tiers, fallback, rank0, _include_lines(include))
            except (NotFound, DataLoss) as error:
                if first is not None:
                    raise first from error
                raise
            opened: List[Union[Image, Restoration]] = [image]   # closed in the other order
            try:
                description = image.describe()
                plan = partial(self._plan, image, description, opened, into, include, map_location, strict, weights_only, rank0)
                planned: List[Restoration] = []
                if atomic:
                    def verify() -> None:
                        planned.append(plan())
                        planned[0].verify()

                    self._whole(verify)
                restored: List[Found] = []
                try:
                    self._whole(lambda: restored.append(self._restore_planned(planned[0] if planned else plan(), description, into)))
                    return restored[0]
                except Error as error:
                    if restored and into is not None:   # here, but not on every rank
                        self._refused = f"the restore in place was not whole on every rank ({error})"
                    raise
            except (DataLoss, Damaged) as error:
                if not fallback:
                    raise
                first = first or error
                before = _parse_save_id(str(description["save_id"]))
                wanted = None
                _log.warning("save %s of step %s is not whole, taking the next older: %s", description["save_id"],
                             description["step"], error)
            finally:
                for thing in reversed(opened):
                    thing.close()

    def _check_tiers(self, allowed: Optional[bytes]) -> None:
        if allowed is None:
            return
        known = list(self.health()["tiers"])
        for name in allowed.decode("utf-8").split(","):
            if name not in known:
                raise Invalid(f"allow_missing={name!r}: no such tier here; there are {', '.join(known)}")

    def _find(self, step: Optional[int], before: Optional[Tuple[int, int]], tiers: Optional[bytes], fallback: bool,
              take_rank0: Optional[bytes], include: Optional[bytes] = None) -> Image:
        request = _abi.FindRequest.new(step=-1 if step is None else step, allow_missing=tiers, fallback=int(fallback),
                                       take_rank0=take_rank0, include=include)
        if before is not None:
            request.before_incarnation, request.before_sequence = before
        handle = ctypes.c_void_p()
        find = lambda: call("neve_engine_find", self._engine, ctypes.byref(request), ctypes.byref(handle))  # noqa: E731
        self._together(find) if self._world > 1 else interruptible(find)
        return Image(handle)

    def _plan(self, image: Image, description: Dict[str, Any], opened: List[Any], into: Any, include: Any, map_location: Any,
              strict: bool, weights_only: bool, take_rank0: Optional[bytes]) -> Restoration:
        """What is restored from where, decided before anything is read; `opened` gets what is to be closed."""
        def plan(source: Image) -> Restoration:
            made = Restoration(source, f"the save of step {description['step']}", include, map_location, weights_only, take_rank0,
                               can_select=True)
            opened.append(made)
            if into is not None:
                made.plan(into, strict)
            return made

        try:
            return plan(image)
        except Lacking as lacking:   # on this rank; another may have it, as where the stages of a pipeline have moved
            if int(description.get("world", 1)) == 1 or image.is_global:
                raise lacking.error() from None
            try:
                opened.append(image.global_image(take_rank0, _include_lines(include)))
                return plan(opened[-1])
            except (Lacking, Invalid, Unsupported):
                raise lacking.error() from None

    def _restore_planned(self, restoration: Restoration, description: Dict[str, Any], into: Any) -> Found:
        state = restoration.fresh() if into is None else self._fill(restoration)
        self._refused = ""
        return Found(step=int(description["step"]), state=state, sources=restoration.sources(), missing=restoration.missing,
                     unexpected=restoration.unexpected, save_id=str(description.get("save_id", "")),
                     tags=dict(description.get("tags") or {}))

    def _fill(self, restoration: Restoration) -> Any:
        with self._lock:
            try:
                return restoration.into()
            except BaseException as error:
                if restoration.written or restoration.touching:
                    self._refused = explain_written(error, restoration.written)
                raise

    def open_whole(self, step: int, take_rank0: Union[None, str, Sequence[str]] = None) -> Image:
        """The newest save of a step as one image in which each logical tensor is whole; the caller closes it. For `neve.dcp`."""
        self._check()
        patterns = _patterns(take_rank0)
        image = self._find(_step_number(step), None, None, False, patterns)
        if image.is_global or not image.header.pieces:
            return image
        try:
            return image.global_image(patterns)
        finally:
            image.close()

    # ---- Looking around ----

    def steps(self) -> List[Save]:
        """Every save that any tier lists, newest first, complete or not (see ``Save.complete``)."""
        self._check()
        listing = interruptible(lambda: call_json("neve_engine_steps", self._engine))
        return [Save(description) for description in listing["saves"]]

    def latest(self) -> Optional[Save]:
        """The newest complete save, or None."""
        return next((save for save in self.steps() if save.complete), None)

    def pin(self, step: int) -> None:
        """Keeps the step's saves from retention and ``neve gc``."""
        self._check()
        call("neve_engine_pin", self._engine, _step_number(step), 1)

    def unpin(self, step: int) -> None:
        """Gives the step back to retention."""
        self._check()
        call("neve_engine_pin", self._engine, _step_number(step), 0)

    def health(self) -> Dict[str, Any]:
        """What is in flight, which tiers are degraded and why, and since when."""
        self._check()
        health: Dict[str, Any] = call_json("neve_engine_health", self._engine)
        if self._refused:
            health["saves_refused"] = self._refused
        return health

    def drain(self, deadline: Optional[float] = None) -> None:
        """Waits until nothing is in flight; :class:`neve.Timeout` names what is waited for after `deadline` seconds."""
        self._check()
        Slices(deadline).run(lambda left: call("neve_engine_drain", self._engine, left))

    def close(self, final: bool = True, deadline: Optional[float] = None) -> None:
        """Finishes what is in flight within the deadline (seconds; None: as long as the tiers' own timeouts), then ends.

        final: True also writes the newest save in RAM to each durable tier that lacks it, whatever the cadence.
        Raises the first error of any background work, once. Closing twice is fine.
        """
        if os.getpid() != self._pid or not self._engine:
            return
        limit = -1.0 if deadline is None else _waiting.seconds(deadline, "deadline")
        self._join_preparing()
        with self._lock:
            engine = ctypes.c_void_p(self._engine.value)
            self._engine.value = None
            _waiting.forget(self)
            interruptible(lambda: call("neve_engine_close", ctypes.byref(engine), 1 if final else 0, limit))

    def finish_at_exit(self) -> None:
        """Called when the interpreter leaves while this is open."""
        if os.getpid() != self._pid or not self._engine:
            return
        try:
            call("neve_engine_drain", self._engine, 0.0)
        except Timeout:
            _waiting.notice(f"finishing the save of step {self._last_step} in {self._folder} before the exit")
        except Error:
            pass   # close reports it
        self.close(final=True, deadline=EXIT_DEADLINE_S)


def tier_text(tier: Tier) -> str:
    """A tier string, as given or from a dict ``{"tier": "file", "place": "/nvme/ckpt", "every": 10}``."""
    if isinstance(tier, str):
        return tier
    if not isinstance(tier, Mapping):
        raise Invalid(f"{tier!r} is no tier: use a string such as 'file:/nvme/ckpt?every=10', or a dict")
    options = dict(tier)
    kind = options.pop("tier", None)
    if not isinstance(kind, str):
        raise Invalid(f"{dict(tier)!r} does not say which tier it is: add 'tier': 'file', say")
    place = os.fspath(options.pop("place", ""))
    text = f"{kind}:{quote(place, safe='/')}"
    if options:
        text += "?" + "&".join(f"{key}={quote(str(value), safe=':/')}" for key, value in options.items())
    return text


def _step_number(step: Any) -> int:
    if isinstance(step, bool):
        raise Invalid(f"{step!r} is no step")
    try:
        number = operator.index(step)
    except TypeError:
        raise Invalid(f"{step!r} is no step: pass an int") from None
    if not 0 <= number < STEP_LIMIT:
        shown = str(number) if number.bit_length() < 200 else f"of {number.bit_length()} bits"   # printing it could take for ever
        raise Invalid(f"step {shown} is out of bounds: 0 <= step < 10^12")
    return number


def _incarnation_number(incarnation: Any) -> int:
    try:
        number = -1 if isinstance(incarnation, bool) else operator.index(incarnation)
    except TypeError:
        number = -1
    if not 0 <= number < INCARNATION_LIMIT:
        raise Invalid(f"incarnation is {incarnation!r}: which life of the job this is, an int from 0 and below 2^32, or leave it out")
    return number


def _names_listed(names: Any, argument: str) -> List[Any]:
    if isinstance(names, (bytes, bytearray)) or not isinstance(names, Iterable):
        raise Invalid(f"{argument} is {names!r}: a string is wanted, or a list of strings")
    return list(names)


def _tier_names(names: Union[None, str, Sequence[str]], argument: str) -> Optional[bytes]:
    if names is None:
        return None
    listed = [names] if isinstance(names, str) else _names_listed(names, argument)
    if not listed:
        if argument == "to":
            raise Invalid("to=[] names no tier: leave it out, or name one")
        return None
    for name in listed:
        if not isinstance(name, str) or not name or "," in name:
            raise Invalid(f"{argument}: {name!r} is no tier name")
    return ",".join(listed).encode("utf-8")


def _patterns(take_rank0: Union[None, str, Sequence[str]]) -> Optional[bytes]:
    if take_rank0 is None:
        return None
    listed = [take_rank0] if isinstance(take_rank0, str) else _names_listed(take_rank0, "take_rank0")
    if not listed or not all(type(pattern) is str and pattern and "\n" not in pattern for pattern in listed):
        raise Invalid(f"take_rank0={take_rank0!r} names nothing: leave it out, or pass glob patterns over dotted names")
    return "\n".join(listed).encode("utf-8", "surrogatepass")


def _include_lines(include: Any) -> Optional[bytes]:
    """The patterns of include=, where they can be one a line; what they may be is checked where they are used."""
    listed = [include] if isinstance(include, str) else list(include or ())
    if not listed or not all(type(pattern) is str and pattern and not {"\n", "\0"} & set(pattern) for pattern in listed):
        return None
    return "\n".join(listed).encode("utf-8", "surrogatepass")


def _tags_json(tags: Optional[Mapping[str, Any]]) -> Optional[bytes]:
    if tags is not None and not isinstance(tags, Mapping):
        raise Invalid(f"tags is {tags!r}: a dict of numbers, strings and booleans is wanted")
    if not tags:
        return None
    plain: Dict[str, Any] = {}
    for key, value in tags.items():
        if not isinstance(key, str):
            raise Invalid(f"the tag {key!r} is not named by a string")
        if not isinstance(value, (bool, int, float, str)) and callable(getattr(value, "item", None)):
            try:
                value = value.item()   # a NumPy scalar or a tensor of one element
            except (ValueError, RuntimeError):
                pass
        if type(value) not in (bool, int, float, str):
            raise Invalid(f"the tag {key!r} is a {type(value).__name__}: tags are numbers, strings and booleans")
        plain[key] = value
    try:
        return json.dumps(plain, allow_nan=False, ensure_ascii=True).encode("ascii")
    except ValueError as error:
        raise Invalid(f"a tag is NaN, infinite or of too many digits, and cannot be written: {error}") from None


def _parse_save_id(text: str) -> Tuple[int, int]:
    incarnation, _, sequence = text.partition(".")
    return int(incarnation[1:]), int(sequence[1:])


def _destroy_engine(engine: ctypes.c_void_p, pid: int) -> None:
    """What a Checkpointer dropped without close leaves to do: what is in flight is finished, slots stay."""
    if engine.value and os.getpid() == pid:
        library().neve_engine_destroy(ctypes.byref(engine))
