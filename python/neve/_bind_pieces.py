"""Restoring into boxes: a DTensor, a Piece, or a whole tensor of which the save holds boxes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from . import _pieces, _tensors
from ._boxes import BoxReads, Whole, Wholes
from ._image import GlobalImage, Image
from ._pieces import Boxes, Piece
from ._saved import Saved, SavedComposite, SavedDict, SavedList, SavedReference, SavedTensor
from ._tensors import Shape
from .errors import Damaged, DataLoss, Error


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


class _Want(NamedTuple):
    """A box that is wanted: for which place, of which logical tensor, where it begins there, and the memory it goes to."""

    label: str
    whole: Whole
    offset: Shape
    memory: Any


class PieceReads:
    """Which boxes are read from where: this rank's own image has most of what an unchanged layout wants; the rest comes from the
    global image of the same save, which is opened when the first box needs it, or when bytes of the own image are bad.

    written: gets the labels of what was touched.
    """

    def __init__(self, image: Image, global_image: GlobalImage, written: List[str]) -> None:
        self._image, self._global, self._written = image, global_image, written
        self._own: Optional[Wholes] = None
        self._wanted: List[_Want] = []      # the own image holds them
        self._elsewhere: List[_Want] = []   # it does not

    @property
    def needs_global(self) -> bool:
        """Whether a box is wanted that the own image does not hold."""
        return bool(self._elsewhere)

    def saved_in_boxes(self, node: Optional[Saved]) -> bool:
        """Whether anything below a saved place is a box of a larger tensor."""
        return saved_in_boxes(node, self._image)

    def whole(self, node: SavedTensor) -> Whole:
        """The logical tensor that a saved place stands for."""
        if self._own is None:
            self._own = Wholes(self._image)
        return self._own.of(node.index)

    def is_piece(self, whole: Whole) -> bool:
        """Whether other ranks hold boxes of it, too."""
        return self._image.header.tensors[whole.places[0][0]].name in self._image.header.pieces

    def want(self, label: str, whole: Whole, offset: Shape, memory: Any) -> None:
        """Asks for one box."""
        held = whole.holding(offset, tuple(memory.shape)) is not None
        (self._wanted if held else self._elsewhere).append(_Want(label, whole, offset, memory))

    def drop(self, memory: Any) -> None:
        """Leaves a target alone after all."""
        self._wanted = [want for want in self._wanted if want.memory is not memory]
        self._elsewhere = [want for want in self._elsewhere if want.memory is not memory]

    def fetch(self, whole: Whole, offset: Shape, memory: Any) -> None:
        """Reads one box at once, into memory that is no target's."""
        reads = PieceReads(self._image, self._global, [])
        reads.want(whole.name, whole, offset, memory)
        reads.read()

    def read(self) -> None:
        """Reads every box that is wanted."""
        elsewhere = list(self._elsewhere)
        try:
            self._read_own(self._wanted)
        except (DataLoss, Damaged) as error:
            boxes = [want for want in self._wanted if self.is_piece(want.whole)]
            if not boxes or self._image.is_global:
                raise
            self._read_own([want for want in self._wanted if not self.is_piece(want.whole)])
            with_copies(error, lambda: self._read_global(boxes))
        self._read_global(elsewhere)

    def readable(self) -> None:
        """Reads every box that is wanted, into memory of its own and little of it at a time."""
        for label, whole, offset, memory in (*self._wanted, *self._elsewhere):
            for at, extent in _pieces.slices(offset, tuple(memory.shape), whole.dtype.item_bytes):
                self.fetch(whole, at, _like(memory, extent))

    def _read_own(self, wants: List[_Want]) -> None:
        reads = BoxReads(self._image, self._written)
        for label, whole, offset, memory in wants:
            place = whole.holding(offset, tuple(memory.shape))
            assert place is not None
            reads.want(place[0], offset, memory, label)
        reads.read()

    def _read_global(self, wants: List[_Want]) -> None:
        if not wants:
            return
        image = self._global.open()
        numbers = {tensor.name: index for index, tensor in enumerate(image.header.tensors)}
        reads = BoxReads(image, self._written)
        for label, whole, offset, memory in wants:
            if whole.name not in numbers:
                raise Damaged(f"{label}: the ranks' images together hold no tensor {whole.name!r}")
            reads.want(numbers[whole.name], offset, memory, label)
        reads.read()


def _like(memory: Any, shape: Shape) -> Any:
    """Memory of our own for elements such as those of a tensor or an array."""
    torch = _tensors.loaded_torch()
    if torch is not None and isinstance(memory, torch.Tensor):
        return torch.empty(shape, dtype=memory.dtype, device="cpu")
    import numpy

    return numpy.empty(shape, dtype=memory.dtype)


def with_copies(error: Error, read: Callable[[], Any]) -> None:
    """Reads from what other ranks hold where this rank's own bytes are bad; `error` where they hold no good copy either."""
    try:
        read()
    except Error as other:
        raise error from other


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
