"""Whether targets that share memory can all be filled: where two elements are one, what was saved must be one too, or equal where
that can be told."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import _tensors
from ._tensors import Shape

ITEMS_MAX = 1 << 26   # of a group that is compared element by element
BYTES_MAX = 1 << 30   # of memory that is filled to see whether what goes into it agrees


class Place(NamedTuple):
    """One tensor of the target, and what was saved for it. Strides in bytes."""

    name: str
    device: str
    address: int
    shape: Shape
    strides: Shape
    item_bytes: int
    stored: str           # the saved bytes: entry, offset in its memory, strides there
    saved_offset: int
    saved_strides: Shape

    def reach(self) -> Tuple[int, int]:
        """The addresses from its first byte to past its last."""
        if 0 in self.shape:
            return self.address, self.address
        moves = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides)]
        low = sum(move for move in moves if move < 0)
        return self.address + low, self.address + sum(moves) - low + self.item_bytes


Fetch = Callable[[Place, Any], bool]   # fills an array of the place's shape with what was saved for it, where it can


def conflicts(places: List[Place], fetch: Fetch) -> List[Tuple[Place, str]]:
    """What cannot be, as pairs of a place and why. Reads what was saved only where no place says that it is one."""
    found: List[Tuple[Place, str]] = []
    distinct: Dict[Any, Place] = {}   # of one target met twice, the first
    for place in places:
        distinct.setdefault(place[1:], place)
    for group in _groups(list(distinct.values())):
        refused = _conflicts_of(group)
        by_bytes = _differing(group, fetch) if refused else None
        found += refused if by_bytes is None else by_bytes
    return found


def _differing(group: List[Place], fetch: Fetch) -> Optional[List[Tuple[Place, str]]]:
    """What would get other bytes than it was saved with; None where that cannot be told."""
    try:
        import numpy
    except ImportError:
        return None
    low, high = min(place.reach()[0] for place in group), max(place.reach()[1] for place in group)
    if high - low > BYTES_MAX:
        return None
    memory, filled = numpy.zeros(high - low, dtype=numpy.uint8), numpy.zeros(high - low, dtype=numpy.bool_)
    found: List[Tuple[Place, str]] = []
    for place in group:
        shape, strides = (*place.shape, place.item_bytes), (*place.strides, 1)
        saved = numpy.empty(place.shape, dtype=f"V{place.item_bytes}")
        if not _is_writable(place) or not fetch(place, saved):
            return None
        source = saved.reshape(-1).view(numpy.uint8).reshape(shape)
        window = _view(numpy, memory, place.address - low, shape, strides)
        taken = _view(numpy, filled, place.address - low, shape, strides)
        before = window.copy()
        differs = bool((taken & (window != source)).any())
        window[...] = source
        if differs or bool((window != source).any()):
            window[...] = before
            found.append((place, "it shares memory in the target, where other bytes were saved"))
        else:
            taken[...] = True
    return found


def _is_writable(place: Place) -> bool:
    """Whether elements share memory only along whole dimensions, each of which is one element then."""
    kept = [(extent, abs(stride)) for extent, stride in zip(place.shape, place.strides) if stride != 0]
    return not _tensors.has_overlap((*(extent for extent, _ in kept), place.item_bytes), (*(stride for _, stride in kept), 1))


def _groups(places: List[Place]) -> List[List[Place]]:
    """Those whose memory meets, and single ones that meet themselves."""
    groups: List[List[Place]] = []
    ordered = sorted((place.device, *place.reach(), index) for index, place in enumerate(places))
    end, device = 0, ""
    for where, low, high, index in ordered:
        if low == high:
            continue
        if groups and where == device and low < end:
            groups[-1].append(places[index])
            end = max(end, high)
        else:
            groups.append([places[index]])
            end, device = high, where
    return [group for group in groups if len(group) > 1 or _may_overlap_itself(group[0])]


def _may_overlap_itself(place: Place) -> bool:
    strides = [abs(stride) for stride in place.strides]
    return _tensors.has_overlap((*place.shape, place.item_bytes), (*strides, 1))


def _conflicts_of(group: List[Place]) -> List[Tuple[Place, str]]:
    first = group[0]
    if all(_is_laid_out_as(place, first) for place in group):
        return []
    if not any(map(_may_overlap_itself, group)) and _stay_apart(group):
        return []
    return _compared(group)


def _is_laid_out_as(place: Place, first: Place) -> bool:
    """Whether the target's memory is a picture of the saved memory, at one distance for all."""
    same = all(ours == saved for extent, ours, saved in zip(place.shape, place.strides, place.saved_strides) if extent > 1)
    return same and place.stored == first.stored and place.address - place.saved_offset == first.address - first.saved_offset


def _stay_apart(group: List[Place]) -> bool:
    """Whether they are blocks of the columns of one matrix, each of which keeps to its own bytes of a row."""
    pitch = max(max((abs(stride) for extent, stride in zip(place.shape, place.strides) if extent > 1), default=0) for place in group)
    if pitch == 0:
        return False
    base = min(place.reach()[0] for place in group)
    blocks = []
    for place in group:
        inner = [(extent, stride) for extent, stride in zip(place.shape, place.strides) if extent > 1 and stride != pitch]
        if any(stride < 0 for _, stride in inner):
            return False
        begin = (place.address - base) % pitch
        blocks.append((begin, begin + sum((extent - 1) * stride for extent, stride in inner) + place.item_bytes))
    blocks.sort()
    return blocks[-1][1] <= pitch and all(left[1] <= right[0] for left, right in zip(blocks, blocks[1:]))


def _compared(group: List[Place]) -> List[Tuple[Place, str]]:
    """Element by element: to each address of the target goes the address of what was saved for it."""
    try:
        import numpy
    except ImportError:
        return [(place, "it shares memory in the target in another way than in the save") for place in group]
    low, high = min(place.reach()[0] for place in group), max(place.reach()[1] for place in group)
    unit = _unit(group, low)
    if (high - low) // unit > ITEMS_MAX:
        why = "it shares memory in the target in another way than in the save, and is too large to be compared element by element"
        return [(place, why) for place in group]
    bases: Dict[str, int] = {}
    taken = numpy.full((high - low) // unit, -1, dtype=numpy.int64)
    earlier: List[Place] = []
    found: List[Tuple[Place, str]] = []
    for place in group:
        base = bases.setdefault(place.stored, len(bases) << 48)
        per_item = place.item_bytes // unit
        shape = (*place.shape, per_item)
        window = _view(numpy, taken, (place.address - low) // unit, shape, (*[stride // unit for stride in place.strides], 1))
        source = numpy.full(shape, base + place.saved_offset, dtype=numpy.int64)
        for axis, (extent, stride) in enumerate(zip(shape, (*place.saved_strides, unit))):
            source += (numpy.arange(extent, dtype=numpy.int64) * stride).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        if bool(((window != -1) & (window != source)).any()):
            other = next((before.name for before in earlier if _meet(before, place)), place.name)
            found.append((place, f"it shares memory with {other} in the target, but not so in the save"))
            continue
        before_it = window.copy()
        window[...] = source
        if bool((window != source).any()):
            found.append((place, "elements of it share memory in the target, but not in the save"))
            window[...] = before_it
            continue
        earlier.append(place)
    return found


def _meet(a: Place, b: Place) -> bool:
    return a.reach()[0] < b.reach()[1] and b.reach()[0] < a.reach()[1]


def _unit(group: List[Place], low: int) -> int:
    """The largest size that divides all sizes, strides and distances."""
    from math import gcd

    unit = 0
    for place in group:
        unit = gcd(unit, place.item_bytes, place.address - low)
        for extent, stride in zip(place.shape, place.strides):
            unit = gcd(unit, abs(stride)) if extent > 1 else unit
    return unit


def _view(numpy: Any, buffer: Any, start: int, shape: Shape, strides: Shape) -> Any:
    item = buffer.itemsize
    moved = tuple(stride * item if extent > 1 else 0 for extent, stride in zip(shape, strides))
    return numpy.ndarray(shape, buffer.dtype, buffer, start * item, moved)
