"""Pieces: where the boxes of a DTensor lie, against full enumeration and torch's own arithmetic; what a Piece refuses."""

import itertools
import random

import numpy as np
import pytest
import torch

import neve
from neve import _pieces
from neve._pieces import Box, Split, boxes_of


def indexes(extent, mesh_shape, coordinate, cuts):
    """The indexes of one dimension that a rank holds, by cutting a list of them as torch.chunk does."""
    def chunk(items, parts, index):
        size = -(-len(items) // parts)
        return items[size * index:size * (index + 1)]

    held = list(range(extent))
    for parts, index, factor in zip(mesh_shape, coordinate, cuts):
        if factor:
            held = [item for part in range(factor) for item in chunk(chunk(held, factor, part), parts, index)]
    return held


def filled(shape, local_shape, boxes):
    """A local array whose elements are numbers of elements of the logical tensor, made from the boxes alone."""
    logical = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    local = np.full(local_shape, -1, np.int64)
    for box in boxes:
        here = tuple(slice(begin, begin + count) for begin, count in zip(box.local, box.extent))
        there = tuple(slice(begin, begin + count) for begin, count in zip(box.offset, box.extent))
        local[here] = logical[there]
    return local


MESHES = [(1,), (2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (2, 2, 2)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_boxes_are_those_of_full_enumeration(mesh):
    choices = [Split(None), Split(0), Split(1), Split(0, 2), Split(0, 3), Split(1, 2)]
    for shape in ((1, 1), (4, 3), (7, 5), (10, 3), (0, 3)):
        logical = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        for splits in itertools.product(choices, repeat=len(mesh)):
            seen = []
            for coordinate in itertools.product(*map(range, mesh)):
                held = [indexes(extent, mesh, coordinate, [split.factor if split.dim == dim else 0 for split in splits])
                        for dim, extent in enumerate(shape)]
                boxes = boxes_of(shape, mesh, coordinate, splits)
                expected = logical[np.ix_(*held)]
                assert _pieces.local_shape(boxes) == expected.shape, (shape, splits, coordinate)
                assert (filled(shape, expected.shape, boxes) == expected).all(), (shape, splits, coordinate)
                assert all(_pieces.outside(box.extent, shape, box.offset) == "" for box in boxes)
                seen.append(expected.ravel())
            assert set(np.concatenate(seen).tolist()) == set(logical.ravel().tolist())


def test_boxes_are_those_of_torch():
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
    from torch.distributed.tensor.placement_types import _StridedShard

    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    strided = 0
    for _ in range(400):
        mesh = tuple(chosen.randint(1, 4) for _ in range(chosen.randint(1, 3)))
        shape = tuple(chosen.randint(1, 12) for _ in range(chosen.randint(1, 3)))
        placements = [chosen.choice([Replicate(), *[Shard(dim) for dim in range(len(shape))],
                                     _StridedShard(chosen.randrange(len(shape)), split_factor=chosen.randint(2, 3))]) for _ in mesh]
        strided += any(isinstance(placement, _StridedShard) for placement in placements)
        coordinate = [chosen.randrange(extent) for extent in mesh]
        boxes = boxes_of(shape, mesh, coordinate, _pieces.splits_of(placements, "x"))
        local_shape, offset = _compute_local_shape_and_global_offset(torch.Size(shape), mesh, coordinate, placements)
        assert _pieces.local_shape(boxes) == tuple(local_shape), (shape, mesh, placements, coordinate)
        if 0 not in local_shape:
            assert boxes[0].offset == tuple(offset), (shape, mesh, placements, coordinate)
    assert strided > 50


def test_the_shards_of_fsdp_over_tensor_parallel_are_one_box_each():
    for extent in (8, 12):
        rows = [boxes_of((extent, 4), (2, 2), coordinate, [Split(0, 2), Split(0)])
                for coordinate in ((0, 0), (0, 1), (1, 0), (1, 1))]
        quarter = extent // 4
        assert rows == [[Box((begin, 0), (quarter, 4), (0, 0))] for begin in (0, 2 * quarter, quarter, 3 * quarter)]


def test_a_rank_outside_of_the_mesh_holds_an_empty_box():
    assert boxes_of((5, 3), (2,), None, [Split(0)]) == [Box((0, 0), (0, 0), (0, 0))]
    assert boxes_of((2, 3), (4,), (3,), [Split(0)]) == [Box((0, 0), (0, 3), (0, 0))]
    assert boxes_of((), (4,), (3,), [Split(None)]) == [Box((), (), ())]


@pytest.mark.parametrize("shape, whole, offset, words", [
    ((2, 3), (4, 3), (3, 0), "at [3, 0] is not inside of its global shape [4, 3]"),
    ((2, 3), (4, 3), (0,), "offset [0] has 1"),
    ((2, 3), (6,), (0, 0), "global shape [6] has 1"),
    ((2, 3), (4, 3), (-1, 0), "below 0"),
    ((2, 3), (4, 3), ("a", 0), "no sequence of whole numbers"),
    ((2, 3), 4, (0, 0), "no sequence of whole numbers"),
])
def test_a_piece_outside_of_its_global_shape_is_refused(shape, whole, offset, words):
    with pytest.raises(neve.Invalid) as caught:
        neve.Piece(np.zeros(shape), whole, offset)
    assert words in str(caught.value)


def test_a_piece_of_no_tensor_is_refused():
    with pytest.raises(neve.Invalid, match="not of a list"):
        neve.Piece([1, 2], (2,), (0,))
    with pytest.raises(neve.Invalid, match="no name"):
        neve.Piece(np.zeros(2), (2,), (0,), name="")


def declared(where, offset, extent, logical="w", dtype="F32", whole=(8, 8)):
    return _pieces.Declared(where, logical, dtype, whole, offset, extent)


def test_overlap_inside_a_rank_is_named():
    with pytest.raises(neve.Invalid) as caught:
        _pieces.check_declared([declared("a", (0, 0), (4, 4)), declared("c", (4, 0), (4, 8)), declared("b", (3, 3), (1, 5))])
    assert "'a' and 'b' both hold elements of 'w': [4, 4] at [0, 0] and [1, 5] at [3, 3]" in str(caught.value)
    with pytest.raises(neve.Invalid, match="both hold"):   # the same box twice too, also without dimensions
        _pieces.check_declared([declared("a", (), (), whole=()), declared("b", (), (), whole=())])


def test_boxes_side_by_side_and_empty_ones_are_fine():
    _pieces.check_declared([declared("a", (0, 0), (4, 4)), declared("b", (0, 4), (4, 4)), declared("c", (4, 0), (4, 8)),
                            declared("d", (2, 2), (0, 8)), declared("e", (0, 0), (8, 8), logical="v")])


@pytest.mark.parametrize("other", [{"dtype": "F64"}, {"whole": (8, 9)}], ids=str)
def test_pieces_of_one_name_that_disagree_are_named(other):
    with pytest.raises(neve.Invalid, match="'b' is a piece of 'w'.* but by 'a'"):
        _pieces.check_declared([declared("a", (0, 0), (4, 4)), declared("b", (4, 4), (1, 1), **other)])


def test_checking_many_pieces_takes_no_time_by_their_square():
    rows = [declared(str(row), (row, 0), (1, 8), whole=(20_000, 8)) for row in range(20_000)]
    compared = 0

    class Counted(tuple):
        def __getitem__(self, index):
            nonlocal compared
            compared += 1
            return tuple.__getitem__(self, index)

    rows = [row._replace(extent=Counted(row.extent)) for row in rows]
    _pieces.check_declared(rows)
    assert compared <= 4 * len(rows)
