"""Pieces: boxes of a logical tensor that one rank holds, as a Piece or a DTensor says.

Where a box lies follows from the mesh's shape, this rank's coordinate and the placements alone; that part is plain arithmetic.
torch.distributed is never imported here: a leaf can only be a DTensor when its module is loaded already.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _tensors
from ._tensors import Shape
from .errors import Invalid, Unsupported

Run = Tuple[int, int]   # first index, count
_SLICE_BYTES = 64 << 20


class Split(NamedTuple):
    """One placement of a tensor on one dimension of a mesh: dimension `dim` is cut, None where it is replicated.

    factor: 1, or of a strided shard the number of parts that are each cut, and whose shares a rank holds one after another.
    """

    dim: Optional[int]
    factor: int = 1


class Box(NamedTuple):
    """A box of a logical tensor, and where it begins in the local tensor."""

    offset: Shape   # in the logical tensor
    extent: Shape
    local: Shape    # in the local tensor


class Part(NamedTuple):
    """Of what a stored tensor is a box, and where: `logical` names the whole, "" when that is the tensor's own name."""

    global_shape: Shape
    offset: Shape
    logical: str = ""


class Piece:
    """A plain tensor, or a NumPy array, that is a box of a larger logical tensor of which other ranks hold the rest.

        state = {"w": neve.Piece(local, global_shape=(1024, 512), offset=(256 * rank, 0))}

    tensor: the box's elements, of its extent. An empty one (a rank without a share) is fine.
    global_shape: the shape of the logical tensor.
    offset: where the box begins in it.
    name: the logical tensor's dotted name; default: the name of the place where the piece stands. For a rank that holds several
        boxes of one logical tensor.

    The boxes of all ranks must cover the logical tensor, and meet only where they are identical (replicas). A state of pieces is
    restored on any number of ranks, into any other boxes; as the target of a restore, a piece's tensor is filled in place.
    """

    __slots__ = ("tensor", "global_shape", "offset", "name", "__weakref__")

    def __init__(self, tensor: Any, global_shape: Sequence[int], offset: Sequence[int], name: Optional[str] = None) -> None:
        self.tensor = tensor
        self.global_shape: Shape = _numbers(global_shape, "global_shape")
        self.offset: Shape = _numbers(offset, "offset")
        self.name = name
        if not is_dense(tensor):
            raise Invalid(f"a Piece is made of a dense tensor or array, not of a {type(tensor).__name__}")
        if name is not None and (type(name) is not str or not name):
            raise Invalid(f"name={name!r} is no name of a logical tensor")
        wrong = outside(tuple(tensor.shape), self.global_shape, self.offset)
        if wrong:
            raise Invalid(f"this Piece {wrong}")

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name is not None else ""
        shape, whole = list(self.tensor.shape), list(self.global_shape)
        return f"neve.Piece({shape} of {whole} at {list(self.offset)}{name})"


class Boxes:
    """Several boxes of one logical tensor that stand at one place of a state."""

    __slots__ = ("pieces", "__weakref__")

    def __init__(self, pieces: List[Piece]) -> None:
        self.pieces = pieces


def _numbers(numbers: Sequence[int], what: str) -> Shape:
    try:
        made = tuple(int(number) for number in numbers)
    except (TypeError, ValueError):
        raise Invalid(f"{what}={numbers!r} is no sequence of whole numbers") from None
    if any(number < 0 for number in made):
        raise Invalid(f"{what}={list(made)} has a number below 0")
    return made


def is_dense(thing: Any) -> bool:
    """Whether it is a plain strided torch tensor or a NumPy array: one that has memory of its own."""
    torch, numpy = _tensors.loaded_torch(), _tensors.loaded_numpy()
    if torch is not None and type(thing) in (torch.Tensor, torch.nn.Parameter):
        return thing.layout is torch.strided and not thing.is_nested and not thing.is_quantized
    return numpy is not None and isinstance(thing, numpy.ndarray)


def outside(extent: Shape, global_shape: Shape, offset: Shape) -> str:
    """What is wrong with a box, after its name; "" when it lies in the logical tensor."""
    if not len(extent) == len(global_shape) == len(offset):
        return (f"has {len(extent)} dimensions, its global shape {list(global_shape)} has {len(global_shape)} and its offset "
                f"{list(offset)} has {len(offset)}")
    if any(begin + size > whole for begin, size, whole in zip(offset, extent, global_shape)):
        return f"of shape {list(extent)} at {list(offset)} is not inside of its global shape {list(global_shape)}"
    return ""


def why_not_whole(piece: Piece) -> str:
    """What is wrong with a Piece whose tensor is not the one that it was made with."""
    if not is_dense(piece.tensor):
        return f"holds a {type(piece.tensor).__name__}"
    return outside(tuple(piece.tensor.shape), piece.global_shape, piece.offset)


def slices(offset: Shape, extent: Shape, item_bytes: int) -> Iterator[Tuple[Shape, Shape]]:
    """Boxes that make up one box, in order, each of a bounded size: offset and extent."""
    if 0 in extent:
        return
    if _tensors.element_count(extent) * item_bytes <= _SLICE_BYTES or not extent:
        yield offset, extent
        return
    axis = next(axis for axis, count in enumerate(extent) if count > 1)
    rows = max(1, _SLICE_BYTES // (_tensors.element_count(extent[axis + 1:]) * item_bytes))
    for begin in range(0, extent[axis], rows):
        count = min(rows, extent[axis] - begin)
        yield from slices((*offset[:axis], offset[axis] + begin, *offset[axis + 1:]), (*extent[:axis], count, *extent[axis + 1:]),
                          item_bytes)


# ---- From mesh and placements to boxes ----


def boxes_of(global_shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Optional[Sequence[int]],
             splits: Sequence[Split]) -> List[Box]:
    """The boxes that the rank at `coordinate` of a mesh holds, in the order of its local tensor.

    The splits are applied from the first to the last dimension of the mesh, each to what the ones before left. A rank without a
    share, and one outside of the mesh (None), holds one empty box.
    """
    runs: List[List[Run]] = [[(0, extent)] for extent in global_shape]
    if coordinate is None:
        runs = [[] for _ in global_shape]
    else:
        for parts, index, split in zip(mesh_shape, coordinate, splits):
            if split.dim is not None:
                runs[split.dim] = _share(runs[split.dim], parts, index, split.factor)
    runs = [_joined(found) for found in runs]
    if not all(runs):
        # Nothing is held, so where it begins says nothing: 0 lies in every logical tensor.
        extent = tuple(sum(count for _, count in found) for found in runs)
        return [Box((0,) * len(runs), extent, (0,) * len(runs))]
    places: List[List[Tuple[int, int, int]]] = []
    for found in runs:
        begins = itertools.accumulate((count for _, count in found), initial=0)
        places.append([(first, count, begin) for (first, count), begin in zip(found, begins)])
    return [Box(tuple(first for first, _, _ in corner), tuple(count for _, count, _ in corner),
                tuple(begin for _, _, begin in corner)) for corner in itertools.product(*places)]


def _share(runs: List[Run], parts: int, index: int, factor: int) -> List[Run]:
    """What rank `index` of `parts` gets: a chunk as torch.chunk cuts, of each of `factor` chunks."""
    total = sum(count for _, count in runs)
    share: List[Run] = []
    for part in range(factor):
        begin, end = _chunk(total, factor, part)
        first, last = _chunk(end - begin, parts, index)
        share += _slice(runs, begin + first, begin + last)
    return share


def _chunk(total: int, parts: int, index: int) -> Run:
    """Begin and end of a chunk: all are of one size, rounded up, but the last ones, which may be short or empty."""
    size = -(-total // parts)
    return min(size * index, total), min(size * (index + 1), total)


def _slice(runs: List[Run], begin: int, end: int) -> List[Run]:
    """Elements begin to end of those that the runs name."""
    taken: List[Run] = []
    for first, count in runs:
        low, high = max(begin, 0), min(end, count)
        if low < high:
            taken.append((first + low, high - low))
        begin, end = begin - count, end - count
    return taken


def _joined(runs: List[Run]) -> List[Run]:
    joined: List[Run] = []
    for first, count in runs:
        if joined and sum(joined[-1]) == first:
            joined[-1] = joined[-1][0], joined[-1][1] + count
        elif count:
            joined.append((first, count))
    return joined


# ---- DTensor ----


def is_dtensor(thing: Any) -> bool:
    """Whether it is a DTensor, for which its module must be loaded."""
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(thing, kind)


def splits_of(placements: Sequence[Any], where: str) -> List[Split]:
    """The placements of a DTensor; :class:`neve.Unsupported` for one of which a rank's elements are no part of the values."""
    splits: List[Split] = []
    for placement in placements:
        if placement.is_partial():
            raise Unsupported(f"{where!r} is a DTensor with the placement {placement}, whose values are sums yet to be made: "
                              "redistribute it first, to Replicate() or Shard(..)")
        if placement.is_replicate():
            splits.append(Split(None))
        elif hasattr(placement, "dim"):
            splits.append(Split(int(placement.dim), int(getattr(placement, "split_factor", 1))))
        else:
            raise Unsupported(f"{where!r} is a DTensor with the placement {placement}, which this version does not know")
    return splits


def local_tensor(thing: Any) -> Any:
    """The DTensor's tensor on this rank."""
    local = thing._local_tensor
    return local.wait() if type(local).__name__ == "AsyncCollectiveTensor" else local


def dtensor_boxes(thing: Any, where: str) -> List[Box]:
    """The boxes of a DTensor that this rank holds. Raises :class:`neve.Unsupported` by name."""
    mesh = thing.device_mesh
    shape, coordinate = tuple(thing.shape), mesh.get_coordinate()
    found = boxes_of(shape, tuple(mesh.shape), coordinate, splits_of(thing.placements, where))
    if coordinate is None and not shape:
        raise Unsupported(f"{where!r} is a DTensor without dimensions on a mesh that this rank is no part of: leave it out here")
    local = local_tensor(thing)
    if not is_dense(local):
        raise Unsupported(f"{where!r} is a DTensor over a {type(local).__name__}, which this version cannot save")
    held = tuple(local.shape)
    if coordinate is not None and held != local_shape(found):
        raise Unsupported(f"{where!r} is a DTensor that holds {list(held)} on this rank where its placements "
                          f"{tuple(thing.placements)} on a mesh {tuple(mesh.shape)} say {list(local_shape(found))}")
    return found


def local_shape(boxes: Sequence[Box]) -> Shape:
    """The shape of the local tensor that the boxes make up."""
    last = boxes[-1]
    return tuple(begin + count for begin, count in zip(last.local, last.extent))


def dtensor_pieces(thing: Any) -> List[Piece]:
    """A DTensor as Pieces, each a view of its local tensor."""
    local = local_tensor(thing)
    return [Piece(part_of(local, box), tuple(thing.shape), box.offset) for box in dtensor_boxes(thing, "a DTensor")]


def part_of(local: Any, box: Box) -> Any:
    """The box's elements, as a view of the local tensor; of a rank outside of the mesh, an empty tensor of the box's rank."""
    if local.dim() != len(box.extent):
        return local.new_empty(box.extent)
    for dim, (begin, count) in enumerate(zip(box.local, box.extent)):
        if count != local.shape[dim]:
            local = local.narrow(dim, begin, count)
    return local


# ---- Checks ----


class Declared(NamedTuple):
    """A piece as it is declared on this rank, for checking."""

    where: str
    logical: str
    dtype: str
    global_shape: Shape
    offset: Shape
    extent: Shape


def check_declared(pieces: Sequence[Declared]) -> None:
    """Raises :class:`neve.Invalid` where pieces of one logical tensor contradict each other, or hold an element twice."""
    by_name: Dict[str, List[Declared]] = {}
    for piece in pieces:
        by_name.setdefault(piece.logical, []).append(piece)
    for logical, found in by_name.items():
        first = found[0]
        for piece in found[1:]:
            if (piece.dtype, piece.global_shape) != (first.dtype, first.global_shape):
                raise Invalid(f"{piece.where!r} is a piece of {logical!r}, {piece.dtype} {list(piece.global_shape)}, but by "
                              f"{first.where!r} that is {first.dtype} {list(first.global_shape)}")
        _check_overlap(logical, [piece for piece in found if 0 not in piece.extent])


def _check_overlap(logical: str, pieces: List[Declared]) -> None:
    """A sweep along the first dimension, so that many rows of pieces take no time by their square."""
    open_pieces: List[Declared] = []
    for piece in sorted(pieces, key=lambda piece: piece.offset[:1]):
        open_pieces = [other for other in open_pieces if not piece.offset or other.offset[0] + other.extent[0] > piece.offset[0]]
        for other in open_pieces:
            if all(a < b + size and b < a + count for a, count, b, size in
                   zip(piece.offset, piece.extent, other.offset, other.extent)):
                raise Invalid(f"{other.where!r} and {piece.where!r} both hold elements of {logical!r}: {list(other.extent)} at "
                              f"{list(other.offset)} and {list(piece.extent)} at {list(piece.offset)}")
        open_pieces.append(piece)
