"""Boxes that several ranks hold: copies of one another, of which a good one stands for a bad one, and which must be equal."""

import numpy as np
import pytest
from rank_threads import World

import neve

WIDE = 700_001   # floats of a row: a rank's rows take several chunks, of which the first holds the header


def replicated(rank, fill=True, columns=6, differ=False):
    """Two columns of a mesh of two by two: ranks 0 and 2, and 1 and 3, hold the same box."""
    whole = np.arange(4.0 * columns, dtype=np.float32).reshape(4, columns)
    half = slice(2 * (rank % 2), 2 * (rank % 2) + 2)
    part = whole[half].copy() if fill else np.zeros((2, columns), np.float32)
    if differ and rank == 2:
        part[1, 3] = -1
    last = whole[half, :2].copy() if fill else np.zeros((2, 2), np.float32)
    return {"w": neve.Piece(part, whole.shape, (half.start, 0)), "z": neve.Piece(last, (4, 2), (half.start, 0)), "rng": rank}


def whole_of(columns=6):
    return np.arange(4.0 * columns, dtype=np.float32).reshape(4, columns)


def save(folder, **options):
    def body(rank, checkpointer):
        checkpointer.save(1, replicated(rank, **options)).wait("complete", 60)

    World(folder, 4).run(body)


def image_of(folder, rank):
    return next((folder / "job").glob(f"step-*/shard-{rank:05d}-of-*.safetensors"))


def spoil(folder, rank):
    """Another byte at the end of a rank's image, where the last of its pieces lies, in a chunk with rows of the other."""
    path = image_of(folder, rank)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("columns", [6, WIDE])
def test_copies_that_differ_are_an_error_on_another_layout(tmp_path, columns):
    save(tmp_path, columns=columns, differ=True)

    def fresh(rank, checkpointer):
        with pytest.raises(neve.Unsupported, match=r'"w" has different bytes on ranks 0 and 2 in the box \[0:2, 0:\d+\]'):
            checkpointer.restore(include="w")
        taken = checkpointer.restore(include="w", take_rank0="w").state["w"]
        assert (taken == whole_of(columns)).all()

    World(tmp_path, 2).run(fresh)

    def same(rank, checkpointer):   # each rank has its own back, but rows that others hold are an error
        state = replicated(rank, fill=False, columns=columns)
        checkpointer.restore(into=state)
        assert (state["w"].tensor == replicated(rank, columns=columns, differ=True)["w"].tensor).all()
        rows = {**state, "w": neve.Piece(np.zeros((1, columns), np.float32), (4, columns), (rank, 0))}
        with pytest.raises(neve.Unsupported, match="different bytes on ranks 0 and 2"):
            checkpointer.restore(into=rows)

    World(tmp_path, 4).run(same)


def test_a_good_copy_stands_for_a_bad_one_in_the_same_world(tmp_path):
    save(tmp_path, columns=WIDE)
    spoil(tmp_path, 0)

    def body(rank, checkpointer):
        expected = replicated(rank, columns=WIDE)
        for options in ({}, {"atomic": True}):
            state = replicated(rank, fill=False, columns=WIDE)
            found = checkpointer.restore(into=state, **options)
            made = checkpointer.restore(**options).state
            assert found.state["rng"] == made["rng"] == rank
            for name in ("w", "z"):
                assert (state[name].tensor == expected[name].tensor).all()
                assert (made[name].tensor == expected[name].tensor).all() and made[name].offset == expected[name].offset
        part = {"w": neve.Piece(np.zeros((2, 5), np.float32), (4, WIDE), (2 * (rank % 2), WIDE - 5)),
                "z": neve.Piece(np.zeros((1, 1), np.float32), (4, 2), (2 * (rank % 2) + 1, 1)), "rng": None}
        for options in ({}, {"atomic": True}):
            part["w"].tensor[:] = part["z"].tensor[:] = 0
            checkpointer.restore(into=part, **options)
            assert (part["w"].tensor == expected["w"].tensor[:, -5:]).all() and part["rng"] == rank
            assert part["z"].tensor == expected["z"].tensor[1, 1]

    World(tmp_path, 4).run(body)
    World(tmp_path, 2).run(lambda rank, checkpointer: check_whole(checkpointer, WIDE))


def check_whole(checkpointer, columns):
    for options in ({}, {"atomic": True}):
        assert (checkpointer.restore(include="w", **options).state["w"] == whole_of(columns)).all()


@pytest.mark.parametrize("options", [{}, {"atomic": True}])
def test_without_a_good_copy_the_loss_is_told_and_nothing_else_is_taken(tmp_path, options):
    save(tmp_path, columns=WIDE)
    spoil(tmp_path, 1)
    spoil(tmp_path, 3)

    def body(rank, checkpointer):
        state = replicated(rank, fill=False, columns=WIDE)
        with pytest.raises(neve.DataLoss, match="rank 1|rank 3"):
            checkpointer.restore(into=state, **options)
        if options:
            assert not state["w"].tensor.any() and not state["z"].tensor.any()

    World(tmp_path, 4).run(body)


def test_include_narrows_what_ranks_must_have_alike(tmp_path):
    save(tmp_path)

    def body(rank, checkpointer):
        with pytest.raises(neve.Unsupported, match=r'(?s)include=.*"rng" has different values'):
            checkpointer.restore()
        assert set(checkpointer.restore(include="w").state) == {"w"}
        into = {"w": neve.Piece(np.zeros((4, 2), np.float32), (4, 6), (0, 2 * rank))}
        checkpointer.restore(into=into, include=["w"])
        assert (into["w"].tensor == whole_of()[:, 2 * rank:2 * rank + 2]).all()

    World(tmp_path, 3).run(body)


def test_ranks_that_differ_elsewhere_cut_their_boxes_anew_in_the_same_world(tmp_path):
    save(tmp_path)

    def body(rank, checkpointer):
        into = {**replicated(rank), "w": neve.Piece(np.zeros((1, 6), np.float32), (4, 6), (rank, 0)), "rng": None}
        checkpointer.restore(into=into)
        assert (into["w"].tensor == whole_of()[rank]).all() and into["rng"] == rank   # what is no piece is its own

    World(tmp_path, 4).run(body)


@pytest.mark.parametrize("value", [7, 8])
def test_a_copy_stored_once_equals_one_stored_in_full(tmp_path, value):
    """An expanded box is stored once; ranks that hold the same elements in full agree with it, others do not."""
    def body(rank, checkpointer):
        row = np.broadcast_to(np.full((1, 5), 7, np.float32), (3, 5)) if rank == 0 else np.full((3, 5), 7, np.float32)
        if rank == 1:
            row[2, 4] = value
        checkpointer.save(1, {"w": neve.Piece(row, (3, 5), (0, 0))}).wait("complete", 60)

    World(tmp_path, 2).run(body)
    with neve.Checkpointer(tmp_path / "job", [f"file:{tmp_path}"]) as checkpointer:
        if value == 7:
            assert checkpointer.restore().state["w"].tolist() == [[7] * 5] * 3
        else:
            with pytest.raises(neve.Unsupported, match='"w" has different bytes on ranks 0 and 1'):
                checkpointer.restore()
