"""A save as torch.distributed.checkpoint sees it: metadata made from the images, and reads of boxes into the planner's tensors."""

from __future__ import annotations

import io
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata, ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from . import _dcp_save, _tensors
from ._boxes import BoxReads
from ._image import Image
from ._rebuild import Builder, Tensors
from ._saved import Saved, SavedBlob, SavedComposite, SavedDict, SavedList, SavedReference, SavedState, SavedTensor, SavedValue
from .checkpointer import Checkpointer, Tier
from .errors import Invalid, NotFound

TakeRank0 = Union[None, str, Sequence[str]]


class _Leaf:
    """An entry that is neither a tensor nor a value: built when it is read."""

    def __init__(self, node: Saved) -> None:
        self.node = node


class Source:
    """An open save. Every rank opens it by itself, as the only rank of a world of its own, so that no rank waits for another."""

    def __init__(self, folder: str, tiers: List[Tier], step: Optional[int], take_rank0: TakeRank0, weights_only: bool) -> None:
        self._checkpointer = Checkpointer(folder, tiers, rank=0, world=1)
        try:
            save = next((save for save in self._checkpointer.steps() if save.complete and step in (None, save.step)), None)
            if save is None:
                raise NotFound(f"{folder} holds no complete save" + ("" if step is None else f" of step {step}"))
            self._kind = save.tags.get(_dcp_save.TAG)
            if self._kind is not None and take_rank0 is None:
                take_rank0 = "*"   # the plan took these for copies of one another, and so does the load
            self.image: Image = self._checkpointer.open_whole(save.step, take_rank0)
            self.save_id = save.save_id
            self._weights_only = weights_only
            self._saved = SavedState(self.image, None, weights_only)
        except BaseException:
            self.close()
            raise
        self._tensors: Dict[int, int] = {}   # id of a placeholder -> the tensor's place in the image
        self._containers: Dict[int, Saved] = {}   # id of a container -> what was saved there, for one that is read whole
        self._keep: List[Any] = []
        self._entries: Dict[str, Any] = {}

    def close(self) -> None:
        """Closes the image and the life that opened it."""
        image = getattr(self, "image", None)
        if image is not None:
            image.close()
        self._checkpointer.close(final=False)

    # ---- Metadata ----

    def metadata(self) -> Metadata:
        """All entries, by the names under which a planner looks for them."""
        nested = self._placeholders(self._saved.root)
        if not isinstance(nested, dict):
            nested = {"state": nested}
        paths: Optional[Dict[str, Any]] = None
        if self._kind == "flat":
            self._entries = nested
        else:
            self._entries, paths = flatten_state_dict(nested)
        return Metadata({name: self._describe(entry) for name, entry in self._entries.items()}, planner_data=paths, storage_data={})

    def _placeholders(self, node: Optional[Saved]) -> Any:
        """The nested state with a tensor on the meta device for each that is saved."""
        if isinstance(node, SavedReference):
            node = node.target
        if isinstance(node, SavedTensor):
            logical = self.image.header.tensors[node.index]
            if isinstance(node.extra.get("np"), str) or "np" in node.extra and self._kind is not None:
                return _Leaf(node)   # for DCP's planners an array is an object
            made = torch.empty(logical.shape, dtype=_tensors.to_torch(logical.dtype, node.name, node.extra.get("dt")), device="meta")
            self._tensors[id(made)] = node.index
            self._keep.append(made)
            return made
        if isinstance(node, SavedDict):
            return self._container({key: self._placeholders(child) for key, child in zip(node.keys, node.children)}, node)
        if isinstance(node, SavedList) and node.kind == "":
            return self._container([self._placeholders(child) for child in node.children], node)
        if isinstance(node, SavedComposite) and node.kind == "state":
            return self._placeholders(node.children[0])
        if isinstance(node, (SavedValue, SavedBlob)):
            return node.value
        return _Leaf(node) if node is not None else {}

    def _container(self, made: Any, node: Saved) -> Any:
        self._containers[id(made)] = node
        self._keep.append(made)
        return made

    def _describe(self, entry: Any) -> Any:
        if id(entry) not in self._tensors:
            return BytesStorageMetadata()
        size = entry.shape
        return TensorStorageMetadata(TensorProperties(dtype=entry.dtype), size,
                                     [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])

    # ---- Data ----

    def read(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        """Fills what the plan asks for."""
        reads = BoxReads(self.image)
        filled: List[Tuple[ReadItem, Any]] = []
        for item in plan.items:
            entry = self._entry(item)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._written(entry))
                continue
            target = planner.resolve_tensor(item).detach()
            if tuple(target.shape) != tuple(item.lengths):
                raise Invalid(f"{item.storage_index.fqn}: the planner gave a tensor of shape {list(target.shape)} for a read of "
                              f"{list(item.lengths)}")
            if target.dtype != entry.dtype:   # as DCP does: the target's type decides
                fresh = torch.empty(target.shape, dtype=entry.dtype, device="cpu")
                reads.want(self._tensors[id(entry)], tuple(item.storage_offsets), fresh, item.storage_index.fqn)
                reads.after(lambda target=target, fresh=fresh: target.copy_(fresh))
            else:
                reads.want(self._tensors[id(entry)], tuple(item.storage_offsets), target, item.storage_index.fqn)
            filled.append((item, target))
        reads.read()
        for item, target in filled:
            planner.commit_tensor(item, target)

    def _entry(self, item: ReadItem) -> Any:
        name = item.storage_index.fqn
        if name not in self._entries:
            raise Invalid(f"the plan reads {name!r}, which the save does not hold")
        return self._entries[name]

    def _written(self, entry: Any) -> io.BytesIO:
        """An entry that is no tensor, as planners expect it: written by torch.save."""
        node = entry.node if isinstance(entry, _Leaf) else self._containers.get(id(entry))
        if node is not None:
            tensors = Tensors(self.image)
            builder = Builder(tensors, self._weights_only)
            tensors.want_all(node)
            tensors.read()
            entry = builder.build(node)
        data = io.BytesIO()
        torch.save(entry, data)
        data.seek(0)
        return data
