"""Reads of boxes of an image's tensors, each right into the memory of its target where that can be."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import _tensors
from ._image import Box, Image
from ._targets import copy_into
from ._tensors import Shape
from .errors import Invalid, Unsupported


class BoxReads:
    """Collects boxes that are wanted, then reads them all. `written` gets the labels of targets that were touched."""

    def __init__(self, image: Image, written: Optional[List[str]] = None) -> None:
        self._image = image
        self._boxes: List[Box] = []
        self._after: List[Callable[[], Any]] = []
        self._keep: List[Any] = []
        self.written: List[str] = [] if written is None else written

    def want(self, index: int, offset: Shape, target: Any, label: str) -> None:
        """Asks for the box at `offset` of the image's tensor number `index`, of the target's shape and the tensor's dtype."""
        logical = self._image.header.tensors[index]
        if logical.dtype.name == "F4":
            raise Unsupported(f"{label} has dtype F4, two values of which share a byte: it can be restored as it was saved only")
        if 0 in target.shape:
            return
        torch = _tensors.loaded_torch()
        if torch is not None and isinstance(target, torch.Tensor):
            memory, strides = target, tuple(target.stride())
            direct = target.is_cpu and not target.is_conj() and not target.is_neg()
            if not direct or _tensors.has_overlap(tuple(target.shape), strides):
                memory = torch.empty(target.shape, dtype=target.dtype, device="cpu")
                self.after(lambda: copy_into(target, memory))
            address, strides = memory.data_ptr(), tuple(memory.stride())
        else:
            memory, item = target, logical.dtype.item_bytes
            if not target.flags.aligned or any(stride < 0 or stride % item for stride in target.strides):
                memory = target.copy(order="C")
                self.after(lambda: target.__setitem__(..., memory))
            address = int(memory.__array_interface__["data"][0])
            strides = tuple(stride // item for stride in memory.strides)
        self._keep.append(memory)
        self._boxes.append(Box(label, index, tuple(offset), tuple(target.shape), address, strides,
                               _tensors.element_count(tuple(target.shape)) * logical.dtype.item_bytes))

    def after(self, action: Callable[[], Any]) -> None:
        """What is to be done once everything has been read."""
        self._after.append(action)

    def read(self) -> None:
        """Reads them all; those of one tensor stand together."""
        self._boxes.sort(key=lambda box: (box.index, box.offset))
        self._image.read_boxes(self._boxes, self.written)
        for action in self._after:
            action()


class Whole(NamedTuple):
    """A logical tensor as an image has it. places: number among the image's tensors, offset and extent of each box that it holds."""

    name: str
    dtype: "_tensors.DType"
    global_shape: Shape
    places: List[Any]

    def exactly(self, offset: Shape, extent: Shape) -> Optional[int]:
        """The number of the tensor that is this very box, or None."""
        return next((index for index, begin, size in self.places if begin == offset and size == extent), None)

    def holding(self, offset: Shape, extent: Shape) -> Optional[Any]:
        """The place that holds all of a box, or None."""
        for place in self.places:
            _, begin, size = place
            if all(b <= a and a + n <= b + m for a, n, b, m in zip(offset, extent, begin, size)):
                return place
        return None


class Wholes:
    """The logical tensors of an image, by name."""

    def __init__(self, image: Image) -> None:
        self._header = image.header
        self._by_name: Dict[str, Whole] = {}
        for index, tensor in enumerate(self._header.tensors):
            part = self._header.pieces.get(tensor.name)
            if part is not None:
                name = part.logical or tensor.name
                whole = self._by_name.setdefault(name, Whole(name, tensor.dtype, part.global_shape, []))
                if (whole.dtype, whole.global_shape) != (tensor.dtype, part.global_shape):
                    raise Invalid(f"the image's pieces of {name!r} disagree in dtype or global shape")
                whole.places.append((index, part.offset, tensor.shape))

    def of(self, index: int) -> Whole:
        """The logical tensor of which the image's tensor number `index` is a box, or which it is."""
        tensor = self._header.tensors[index]
        part = self._header.pieces.get(tensor.name)
        if part is not None:
            return self._by_name[part.logical or tensor.name]
        return Whole(tensor.name, tensor.dtype, tensor.shape, [(index, (0,) * len(tensor.shape), tensor.shape)])
