"""Restoring into boxes: a DTensor, a Piece, or a whole tensor of which the save holds boxes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import _pieces, _tensors
from ._boxes import BoxReads, Whole, Wholes
from ._image import Image
from ._pieces import Boxes, Piece
from ._saved import Saved, SavedComposite, SavedDict, SavedList, SavedReference, SavedTensor
from ._tensors import Shape
from .errors import Damaged


class Target(NamedTuple):
    """What stands in the target: the logical tensor's shape, and the boxes of it that are held here."""

    global_shape: Shape
    boxes: List[Tuple[Shape, Any]]   # offset, memory


def boxes_of(target: Any, where: str) -> Optional[Target]:
    """The boxes of a DTensor, a Piece, several Pieces, or a dense tensor or array; None for anything else."""
    if type(target) is Piece:
        return Target(target.global_shape, [(target.offset, target.tensor)])
    if isinstance(target, Boxes):
        target = target.pieces
    if isinstance(target, (list, tuple)) and target and all(type(item) is Piece for item in target):
        return Target(target[0].global_shape, [(piece.offset, piece.tensor) for piece in target])
    if _pieces.is_dtensor(target):
        local, found = _pieces.local_tensor(target), _pieces.dtensor_boxes(target, where)
        return Target(tuple(target.shape), [(box.offset, _pieces.part_of(local, box)) for box in found])
    if _pieces.is_dense(target):
        return Target(tuple(target.shape), [((0,) * len(target.shape), target)])
    return None


def holds_boxes(target: Any) -> bool:
    """Whether it is a box, or several, of a larger tensor."""
    return type(target) in (Piece, Boxes) or _pieces.is_dtensor(target) or (
        isinstance(target, (list, tuple)) and bool(target) and all(type(item) is Piece for item in target))


def saved_in_boxes(node: Optional[Saved], image: Image) -> bool:
    """Whether anything below a saved place is a box of a larger tensor."""
    header = image.header
    if not header.pieces or node is None:
        return False
    if isinstance(node, SavedReference):
        node = node.target
    if isinstance(node, SavedTensor):
        return header.tensors[node.index].name in header.pieces
    if isinstance(node, (SavedDict, SavedList, SavedComposite)):
        return any(saved_in_boxes(child, image) for child in node.children)
    return False


def state_in_boxes(target: Any) -> bool:
    """Whether an object with a state has DTensors or Pieces in it."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    torch = _tensors.loaded_torch()
    if torch is not None and isinstance(target, torch.nn.Module):
        return any(map(_pieces.is_dtensor, target.parameters())) or any(map(_pieces.is_dtensor, target.buffers()))
    if torch is not None and isinstance(target, torch.optim.Optimizer):
        return any(_pieces.is_dtensor(parameter) for group in target.param_groups for parameter in group["params"])
    return callable(getattr(target, "state_dict", None)) and _any_boxes(target.state_dict())


def _any_boxes(thing: Any) -> bool:
    if isinstance(thing, Mapping):
        return any(map(_any_boxes, thing.values()))
    if isinstance(thing, (list, tuple)):
        return any(map(_any_boxes, thing))
    return holds_boxes(thing)


class PieceReads:
    """Which boxes are read from where: this rank's own image has most of what an unchanged layout wants; the rest comes from the
    global image of the same save, which is opened when the first box needs it."""

    def __init__(self, image: Image, open_global: Callable[[], Image], written: List[str]) -> None:
        self._image, self._open_global, self._written = image, open_global, written
        self._own: Optional[Wholes] = None
        self._wanted: List[Tuple[str, int, Shape, Any]] = []     # from the own image: label, tensor, offset, memory
        self._by_name: List[Tuple[str, str, Shape, Any]] = []    # from the global image: label, logical name, offset, memory

    @property
    def needs_global(self) -> bool:
        """Whether a box is wanted that the own image does not hold."""
        return bool(self._by_name)

    def saved_in_boxes(self, node: Optional[Saved]) -> bool:
        """Whether anything below a saved place is a box of a larger tensor."""
        return saved_in_boxes(node, self._image)

    def whole(self, node: SavedTensor) -> Whole:
        """The logical tensor that a saved place stands for."""
        if self._own is None:
            self._own = Wholes(self._image)
        return self._own.of(node.index)

    def want(self, label: str, whole: Whole, offset: Shape, memory: Any) -> None:
        """Asks for one box."""
        place = whole.holding(offset, tuple(memory.shape))
        if place is None:
            self._by_name.append((label, whole.name, offset, memory))
        else:
            self._wanted.append((label, place[0], offset, memory))

    def read(self) -> None:
        """Reads every box that is wanted."""
        own = BoxReads(self._image, self._written)
        for label, index, offset, memory in self._wanted:
            own.want(index, offset, memory, label)
        reads = [own]
        if self._by_name:
            image = self._open_global()
            numbers: Dict[str, int] = {tensor.name: index for index, tensor in enumerate(image.header.tensors)}
            whole = BoxReads(image, self._written)
            for label, name, offset, memory in self._by_name:
                if name not in numbers:
                    raise Damaged(f"{label}: the ranks' images together hold no tensor {name!r}")
                whole.want(numbers[name], offset, memory, label)
            reads.append(whole)
        for batch in reads:
            batch.read()


def dtype_of(memory: Any) -> Optional[str]:
    """The dtype of a tensor or array as an image names it."""
    torch, numpy = _tensors.loaded_torch(), _tensors.loaded_numpy()
    if torch is not None and isinstance(memory, torch.Tensor):
        found = _tensors.of_torch(memory.dtype)
        text = str(memory.dtype)[6:]
        return text if found is None or text in _tensors.BITS8_KINDS else found.name
    if numpy is not None and isinstance(memory, numpy.ndarray):
        by_numpy = _tensors.BY_NUMPY.get(memory.dtype.str)
        return memory.dtype.str if by_numpy is None else by_numpy.name
    return None
