"""From a plan of torch.distributed.checkpoint to the state that a rank saves.

The planner flattens a state and gives each rank a part of its entries. The rank's part is put together again along the paths that
the planner noted, so that the save holds the nested state: dictionaries of which each rank has some keys, and lists. A list cannot
have holes, so every rank that has a list saves all of it; what several ranks save alike stands once in the whole, and of a DTensor
that the plan has others write a rank saves a box without elements.
"""

from __future__ import annotations

import dataclasses
import io
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from . import files
from ._pieces import Boxes, Piece
from .checkpointer import Checkpointer
from .errors import Error, Invalid, Unsupported
from .ticket import Ticket

TAG = "dcp"   # of the save: "nested" when the planner flattened a nested state, else "flat"

Paths = Dict[str, Tuple[Any, ...]]


class Target(NamedTuple):
    """What the coordinator tells every rank of a save. number: which of the writer's saves it is."""

    step: int
    world: int
    number: int


def paths_of(plan: SavePlan) -> Optional[Paths]:
    """The path in the nested state of each entry that the rank has; None where the planner flattened nothing."""
    found = plan.planner_data
    if isinstance(found, dict) and all(type(path) is tuple and path for path in found.values()):
        return found
    return None


def with_whole_lists(plans: List[SavePlan], target: Target) -> List[SavePlan]:
    """The global plan, with the target; entries of lists are given back to every rank that has them."""
    items: Dict[str, WriteItem] = {}
    for plan in plans:
        for item in plan.items:
            items.setdefault(item.index.fqn, item)
    items = {name: _nothing_of(item) if item.type == WriteItemType.SHARD else item for name, item in items.items()}
    made = []
    for plan in plans:
        paths = paths_of(plan) or {}
        held = {item.index.fqn for item in plan.items}
        more = [items[name] for name, path in paths.items()
                if name not in held and name in items and any(type(part) is int for part in path)]
        made.append(dataclasses.replace(plan, items=[*plan.items, *more], storage_data=target))
    return made


def _nothing_of(item: WriteItem) -> WriteItem:
    """A box without elements of the tensor of which the item is a shard; the item itself where there is none."""
    written = item.tensor_data
    if written is None or not written.size:
        return item
    nothing = ChunkStorageMetadata(offsets=torch.Size([0] * len(written.size)), sizes=torch.Size([0] * len(written.size)))
    return dataclasses.replace(item, index=MetadataIndex(item.index.fqn, nothing.offsets),
                               tensor_data=dataclasses.replace(written, chunk=nothing))


def _is_nothing(item: WriteItem) -> bool:
    written = item.tensor_data
    return item.type == WriteItemType.SHARD and written is not None and bool(written.size) and not any(written.chunk.sizes)


def target_of(plan: SavePlan, step: Optional[int], number: int) -> Target:
    """What the coordinator said of this save."""
    target = plan.storage_data
    if not isinstance(target, Target):
        raise Invalid("the plan does not come from this writer's prepare_global_plan")
    if target.number != number:   # a plan that the planner cached: all but the step still holds
        if step is None:
            raise Invalid("a planner that caches its plans needs a checkpoint_id with a step in it, such as 'runs/gpt/step-1000'")
        return target._replace(step=step, number=number)
    return target


def save(checkpointer: Checkpointer, step: int, plan: SavePlan, planner: SavePlanner) -> Ticket:
    """Saves this rank's part of the plan."""
    try:
        state = _state(plan, planner)
        tags = {TAG: "flat" if paths_of(plan) is None else "nested"}
    except BaseException:
        checkpointer.count_save()
        raise
    return checkpointer.save(step, state, tags=tags)


def results(plan: SavePlan) -> List[WriteResult]:
    """What DCP is told of each entry."""
    return [WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items]


def _state(plan: SavePlan, planner: SavePlanner) -> Dict[str, Any]:
    leaves: Dict[str, Any] = {}
    shards: Dict[str, List[Piece]] = {}
    for item in plan.items:
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            leaves[name] = _value(item, planner)
            continue
        if _is_nothing(item):   # there may be no such part of this rank's own
            data: Any = torch.empty(item.tensor_data.chunk.sizes, dtype=item.tensor_data.properties.dtype)   # type: ignore[union-attr]
            data = planner.transform_object(item, data) if isinstance(planner, DefaultSavePlanner) else data
        else:
            data = planner.resolve_data(item)
        tensor = data.detach()
        if item.type == WriteItemType.TENSOR or item.tensor_data is None:
            leaves[name] = tensor
        else:
            pieces = shards.setdefault(name, [])
            pieces.append(Piece(tensor, item.tensor_data.size, item.tensor_data.chunk.offsets))
            leaves[name] = pieces[0] if len(pieces) == 1 else Boxes(pieces)
    paths = paths_of(plan)
    if paths is None:
        return leaves
    state: Dict[str, Any] = {}
    for name, leaf in leaves.items():
        set_element(state, paths[name], leaf)
    return state


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """The object of an entry that is no tensor."""
    kind = type(planner)
    stock = (isinstance(planner, DefaultSavePlanner) and kind.resolve_data is DefaultSavePlanner.resolve_data
             and kind.transform_object is DefaultSavePlanner.transform_object)
    if stock:
        return planner.lookup_object(item.index)   # type: ignore[attr-defined]
    data = planner.resolve_data(item)
    if not isinstance(data, io.BytesIO):
        raise Invalid(f"{item.index.fqn}: the planner's resolve_data() gave a {type(data).__name__} where a BytesIO was planned")
    data.seek(0)
    try:
        return files.load(data)
    except Error as error:
        raise Unsupported(f"{item.index.fqn}: what {kind.__name__}.resolve_data() wrote cannot be read without running it: "
                          f"{error}") from error
