"""neve behind torch.distributed.checkpoint: the same `dcp.save`, `dcp.async_save` and `dcp.load`, into and out of neve's places.

    import torch.distributed.checkpoint as dcp
    import neve.dcp

    dcp.save(state, checkpoint_id="runs/gpt/step-1000", storage_writer=neve.dcp.StorageWriter())
    dcp.load(state, checkpoint_id="runs/gpt/step-1000", storage_reader=neve.dcp.StorageReader())

A checkpoint_id is a job folder, or a job folder and in it a step: a last part such as ``step-1000``, ``step_1000``, ``1000`` or
``checkpoint-1000``. A job folder alone means its newest complete save when loading, and one step after it when saving.

What is written is an ordinary job folder: ``neve ls`` and ``neve inspect`` show it, :class:`neve.Checkpointer` restores it, on any
number of ranks; and what a Checkpointer saved is loaded by ``dcp.load``. There is no `.metadata`: what DCP wants to know is made
from the images themselves, and nothing that was read is unpickled. ``dcp.save`` returns when every rank's image is durable and
committed, and fails on all ranks when one of them failed; such a save does not exist for whoever loads.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union
from urllib.parse import quote

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import StorageReader as _TorchReader
from torch.distributed.checkpoint.storage import StorageWriter as _TorchWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _dcp_load, _dcp_save
from ._group import torch_distributed
from .checkpointer import Checkpointer, Tier
from .errors import Error, Invalid
from .ticket import Ticket

__all__ = ["Stager", "StorageReader", "StorageWriter"]

CheckpointId = Union[str, "os.PathLike[str]", None]

_STEP = re.compile(r"(?:(?:step|iter|checkpoint|ckpt)[-_=]?)?0*([0-9]{1,12})").fullmatch


def split_id(checkpoint_id: CheckpointId) -> Tuple[str, Optional[int]]:
    """(job folder, step) of a checkpoint_id; the step is None where it names none."""
    if checkpoint_id is None or not os.fspath(checkpoint_id):
        raise Invalid("no checkpoint_id: pass a job folder, or a job folder and a step such as 'runs/gpt/step-1000'")
    path = os.path.abspath(os.fspath(checkpoint_id))
    folder, last = os.path.split(path)
    found = _STEP(last)
    return (folder, int(found.group(1))) if found and os.path.basename(folder) else (path, None)


# ---- Checkpointers that writers share: one life of the job in a process, however many writers it makes ----

_lock = threading.Lock()
_open: Dict[Any, Checkpointer] = {}


def _tiers_of(folder: str, tiers: Optional[Sequence[Tier]]) -> List[Tier]:
    """The tiers as given; default: files in the job folder itself."""
    return list(tiers) if tiers is not None else [f"file:{quote(os.path.dirname(folder), safe='/')}"]


def _checkpointer(folder: str, tiers: Optional[Sequence[Tier]], rank: int, world: int, group: Any, timeout: float) -> Checkpointer:
    key = (folder, repr(tiers), rank, world, os.getpid())
    with _lock:
        found = _open.get(key)
        if found is None or found.closed:
            found = _open[key] = Checkpointer(folder, _tiers_of(folder, tiers), rank=rank, world=world, group=group,
                                              group_timeout=timeout)
            found.keep_dicts()
        return found


class Stager:
    """Copies a state to host memory for ``dcp.async_save``, into memory that is used again once its save has been captured.

        stager = neve.dcp.Stager()
        future = dcp.async_save(state, checkpoint_id=..., storage_writer=neve.dcp.StorageWriter(), async_stager=stager)

    A :class:`StorageWriter` is one itself, so that none need be passed: keep the writer from save to save. While a save has not been
    captured yet another ``stage`` takes new memory. May be used from several threads.
    """

    _synchronize_after_execute = False   # stage() has copied everything when it returns

    def __init__(self) -> None:
        self._stagers: List[_Copies] = []
        self._stagers_lock = threading.Lock()

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: what ``stage`` returned is whole."""
        return self._synchronize_after_execute

    def stage(self, state_dict: Dict[str, Any]) -> Dict[str, Any]:
        """A copy of the state in host memory; after it the state may be changed."""
        with self._stagers_lock:
            copies = next((found for found in self._stagers if not found.in_use), None)
            if copies is None:
                copies = _Copies()
                self._stagers.append(copies)
            copies.in_use = True
        try:
            return copies.stage(state_dict)
        except BaseException:
            copies.in_use = False
            raise

    def synchronize_staging(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Gives the memory back that no save is using."""
        with self._stagers_lock:
            free = [found for found in self._stagers if not found.in_use]
            self._stagers = [found for found in self._stagers if found.in_use]
        for copies in free:
            copies.stager.close()


class _Copies:
    """Memory for one state at a time."""

    def __init__(self) -> None:
        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        self.in_use = False

    def stage(self, state_dict: Dict[str, Any]) -> Dict[str, Any]:
        staged = _Staged(self.stager.stage(state_dict))
        staged.copies = self
        weakref.finalize(staged, self.release).atexit = False
        return staged

    def release(self) -> None:
        self.in_use = False


class _Staged(Dict[str, Any]):
    """A staged state. Its memory is free again when this is gone."""

    copies: _Copies

    def __reduce__(self) -> Any:
        """What another process gets is the state alone; here it stays until that process has answered."""
        return dict, (dict(self),)


class _Addressed:
    """What has a checkpoint_id."""

    _id: CheckpointId

    @property
    def checkpoint_id(self) -> CheckpointId:
        """Where the next save goes, or the next load comes from."""
        return self._id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, "os.PathLike[str]"]) -> bool:
        """Whether it is a path."""
        return "://" not in os.fspath(checkpoint_id)


class StorageWriter(_Addressed, Stager, _TorchWriter):
    """Writes what ``dcp.save`` and ``dcp.async_save`` plan as a save of a neve job.

    path: a checkpoint_id, for calls that pass none (see the module's text).
    tiers: as for :class:`neve.Checkpointer`, such as ``["ram:?slots=2", "file:/nvme/ckpt?keep=3"]``, under which the job folder
        only names the job; default: files in the job folder.
    process_group: the one given to ``dcp.save``, where that is not the default group.
    timeout: seconds that ranks wait for each other when they first meet.

    Writers of one job in a process share one Checkpointer, which is closed at the interpreter's exit, or by ``close``.
    """

    def __init__(self, path: CheckpointId = None, *, tiers: Optional[Sequence[Tier]] = None, process_group: Any = None,
                 timeout: float = 300.0) -> None:
        Stager.__init__(self)
        self._id = path
        self._tiers = None if tiers is None else list(tiers)
        self._group = process_group
        self._timeout = timeout
        self._rank, self._is_coordinator, self._collective = 0, True, True
        self._saves = 0
        self._ticket: Optional[Ticket] = None
        self._used: Optional[Checkpointer] = None

    def __getstate__(self) -> Dict[str, Any]:
        """What goes to another process: settings only."""
        kept = dict(vars(self), _stagers=[], _ticket=None, _used=None)
        del kept["_stagers_lock"]
        return kept

    def __setstate__(self, state: Dict[str, Any]) -> None:
        vars(self).update(state, _stagers_lock=threading.Lock())

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """A new save begins; torch calls it."""
        if checkpoint_id is not None:
            self._id = checkpoint_id

    def storage_meta(self) -> StorageMeta:
        """The checkpoint_id, for planners."""
        return StorageMeta(checkpoint_id=self._id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Which rank this is, and whether ranks plan together."""
        self._is_coordinator = is_coordinator
        self._collective = bool(kwargs.get("use_collectives", True))
        rank = kwargs.get("rank")
        self._rank = 0 if rank is None else int(rank)
        self._saves += 1
        self._ticket = None
        split_id(self._id)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        """On the coordinator: which step it is and how many ranks write it; and that each rank has the lists that it has a part of."""
        world = len(plans) if self._collective else self._world_of_all()
        folder, step = split_id(self._id)
        if step is None:
            if not self._collective:
                raise Invalid(f"{self._id}: without collectives every rank must know the step: pass a checkpoint_id that ends in "
                              "'step-1000', say")
            step = self._next_step(folder)
        target = _dcp_save.Target(step, world, self._saves)
        return _dcp_save.with_whole_lists(plans, target)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        """Saves this rank's part; done when it is durable and committed. Raises what went wrong."""
        folder, step = split_id(self._id)
        target = _dcp_save.target_of(plan, step, self._saves)
        checkpointer = self._used = self._join(folder, target.world)
        self._ticket = _dcp_save.save(checkpointer, target.step, plan, planner)
        self._ticket.wait("done")
        results: "Future[List[WriteResult]]" = Future()
        results.set_result(_dcp_save.results(plan))
        return results

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        """On the coordinator, once every rank has committed its image: with that the save is complete."""
        assert self._ticket is not None
        metadata.storage_meta = StorageMeta(checkpoint_id=self._id, save_id=self._ticket.save_id)

    def close(self) -> None:
        """Ends the job's life in this process, and gives staging memory back. Raises what went wrong in the background, once."""
        Stager.close(self)
        checkpointer, self._used = self._used, None
        if checkpointer is not None:
            with _lock:
                for key in [key for key, found in _open.items() if found is checkpointer]:
                    del _open[key]
            checkpointer.close()

    def _world_of_all(self) -> int:
        distributed = torch_distributed()
        return int(distributed.get_world_size(self._group)) if distributed is not None else 1

    def _next_step(self, folder: str) -> int:
        with Checkpointer(folder, _tiers_of(folder, self._tiers), rank=0, world=1) as listing:
            return max((int(save) + 1 for save in listing.steps()), default=0)

    def _join(self, folder: str, world: int) -> Checkpointer:
        rank = self._rank if world > 1 else 0
        group: Any = None
        distributed = torch_distributed()
        if world > 1 and (distributed is None or self._group is not None or distributed.get_world_size() != world):
            if distributed is None or self._group is None or distributed.get_world_size(self._group) != world:
                raise Invalid(f"dcp.save plans for {world} ranks, which is not the default group: pass the same process_group= to "
                              "neve.dcp.StorageWriter")
            group = _gather_over(distributed, self._group, world)
        return _checkpointer(folder, self._tiers, rank, world, group, self._timeout)


def _gather_over(distributed: Any, process_group: Any, world: int) -> Any:
    def gather(message: bytes) -> List[bytes]:
        messages: List[Any] = [None] * world
        distributed.all_gather_object(messages, message, group=process_group)
        return messages

    return gather


class StorageReader(_Addressed, _TorchReader):
    """Reads a save of a neve job for ``dcp.load``, whoever wrote it and on however many ranks; each byte is verified.

    path: a checkpoint_id, for calls that pass none (see the module's text).
    tiers: as for :class:`StorageWriter`.
    take_rank0: glob patterns over dotted names: where ranks saved different values under one name, rank 0's is taken. What
        ``dcp.save`` wrote needs none.
    weights_only: False also loads pickled objects, which can run code.
    """

    def __init__(self, path: CheckpointId = None, *, tiers: Optional[Sequence[Tier]] = None,
                 take_rank0: Union[None, str, Sequence[str]] = None, weights_only: bool = True) -> None:
        super().__init__()
        self._id = path
        self._tiers = None if tiers is None else list(tiers)
        self._take_rank0, self._weights_only = take_rank0, weights_only
        self._source: Optional[_dcp_load.Source] = None

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """A new load begins; torch calls it."""
        if checkpoint_id is not None:
            self._id = checkpoint_id
        self._close()

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """What the save holds, made from its images. Raises :class:`neve.NotFound` and the like.

        (A parameter named kwargs would have torch ask a second time, for metadata of a single rank.)
        """
        self._close()
        folder, step = split_id(self._id)
        self._source = _dcp_load.Source(folder, _tiers_of(folder, self._tiers), step, self._take_rank0, self._weights_only)
        metadata = self._source.metadata()
        metadata.storage_meta = StorageMeta(checkpoint_id=self._id, save_id=self._source.save_id)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The metadata is what `read_metadata` gave."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Says which save this rank found."""
        assert self._source is not None
        plan.storage_data = self._source.save_id
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        """On the coordinator: all ranks must have found one save."""
        found = [plan.storage_data for plan in plans]
        if len(set(found)) > 1:
            other = next(rank for rank, save_id in enumerate(found) if save_id != found[0])
            raise Error(f"rank 0 found save {found[0]} in {self._id}, rank {other} found {found[other]}: a newer one became complete "
                        "meanwhile. Load again, or name the step")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Fills the planner's tensors in place."""
        assert self._source is not None
        self._source.read(plan, planner)
        self._close()
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()
