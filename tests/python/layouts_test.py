"""Every layout into every other: random tensors cut over random meshes, saved by one world of ranks and restored by another, bit for bit.

The ranks are threads of this process, each with a Checkpointer of its own; they meet through a folder.
"""

import random

import numpy as np
import pytest

import neve
from neve._pieces import Boxes, Split, boxes_of
from rank_threads import World


class Layout:
    """A mesh, and for each tensor how it is cut over it."""

    def __init__(self, chosen, size, shapes):
        self.size = size
        self.mesh = chosen.choice([mesh for mesh in ((size,), *((a, size // a) for a in range(2, size) if size % a == 0))])
        self.splits = {name: [Split(None) if not shape or chosen.random() < 0.3 else
                              Split(chosen.randrange(len(shape)), chosen.choice((1, 1, 1, 2))) for _ in self.mesh]
                       for name, shape in shapes.items()}

    def state(self, rank, tensors, fill=True):
        """What a rank holds, as Pieces; zeros unless `fill`."""
        coordinate = [int(index) for index in np.unravel_index(rank, self.mesh)]
        state = {}
        for name, whole in tensors.items():
            pieces = []
            for box in boxes_of(whole.shape, self.mesh, coordinate, self.splits[name]):
                part = np.asarray(whole[tuple(slice(begin, begin + count) for begin, count in zip(box.offset, box.extent))])
                pieces.append(neve.Piece(part.copy() if fill else np.zeros_like(part), whole.shape, box.offset))
            state[name] = pieces[0] if len(pieces) == 1 else Boxes(pieces)
        return state

    def __repr__(self):
        return f"{self.mesh} {self.splits}"


def tensors_of(chosen):
    shapes = {f"t{index}": tuple(chosen.randint(0 if chosen.random() < 0.1 else 1, 9) for _ in range(chosen.randint(0, 3)))
              for index in range(6)}
    makers = [lambda shape: np.random.default_rng(chosen.randrange(2**32)).integers(0, 255, shape, np.uint8),
              lambda shape: np.random.default_rng(chosen.randrange(2**32)).standard_normal(shape).astype(np.float32),
              lambda shape: np.random.default_rng(chosen.randrange(2**32)).standard_normal(shape)]
    return {name: np.asarray(chosen.choice(makers)(shape)) for name, shape in shapes.items()}


def parts(place):
    return place.pieces if isinstance(place, Boxes) else [place]


def check_filled(state, expected):
    for name, place in state.items():
        for got, wanted in zip(parts(place), parts(expected[name])):
            assert got.offset == wanted.offset and got.tensor.dtype == wanted.tensor.dtype
            assert got.tensor.tobytes() == wanted.tensor.tobytes(), (name, got, wanted)


@pytest.mark.parametrize("case", range(6))
def test_DCP_06_random_layouts_into_others(quick_folder, case):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    tensors = tensors_of(chosen)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    sizes = (1, 2, 3, 4, 6)
    saved = Layout(chosen, chosen.choice(sizes), shapes)
    print(saved)

    def save(rank, checkpointer):
        state = {**saved.state(rank, tensors), "step": 5, "plain": np.arange(3)}
        checkpointer.save(5, state).wait("complete", 60)

    World(quick_folder, saved.size).run(save)
    for size in (saved.size, chosen.choice(sizes), chosen.choice(sizes)):
        wanted = Layout(chosen, size, shapes)
        print(wanted)

        def restore(rank, checkpointer):
            into = {**wanted.state(rank, tensors, fill=False), "step": 0, "plain": np.zeros(3, np.int64)}
            assert checkpointer.restore(into=into).step == 5
            assert into.pop("step") == 5 and into.pop("plain").tolist() == [0, 1, 2]
            check_filled(into, wanted.state(rank, tensors))

        World(quick_folder, size).run(restore)

    def whole(rank, checkpointer):
        target = {name: np.zeros_like(tensor) for name, tensor in tensors.items()}
        found = checkpointer.restore(into={**target, "step": 0, "plain": np.zeros(3, np.int64)})
        for name, tensor in tensors.items():
            assert found.state[name].tobytes() == tensor.tobytes(), name

    World(quick_folder, 2).run(whole)


def test_without_a_target_another_world_gets_whole_tensors(quick_folder):
    table = np.arange(24, dtype=np.int32).reshape(8, 3)

    def save(rank, checkpointer):
        piece = neve.Piece(table[rank * 4:rank * 4 + 4].copy(), (8, 3), (rank * 4, 0))
        checkpointer.save(1, {"w": piece, "n": 3}).wait("complete", 60)

    World(quick_folder, 2).run(save)
    for state in World(quick_folder, 3).run(lambda rank, checkpointer: checkpointer.restore().state):
        assert state["w"].tolist() == table.tolist() and state["n"] == 3
    for rank, state in enumerate(World(quick_folder, 2).run(lambda rank, checkpointer: checkpointer.restore().state)):
        assert type(state["w"]) is neve.Piece and state["w"].offset == (rank * 4, 0)


def test_DCP_03_what_ranks_have_otherwise_is_named_and_rank_0s_taken_where_asked(quick_folder):
    World(quick_folder, 2).run(lambda rank, checkpointer: checkpointer.save(
        1, {"w": np.full(2, rank), "seed": rank, "same": 5}).wait("complete", 60))

    def refused(rank, checkpointer):
        for include in ("w", "seed"):
            with pytest.raises(neve.Unsupported) as caught:
                checkpointer.restore(include=include)
            assert "rank" in str(caught.value) and "take_rank0" in str(caught.value), caught.value

    def taken(rank, checkpointer):
        found = checkpointer.restore(take_rank0=["w", "se*"]).state
        assert found["w"].tolist() == [0, 0] and found["seed"] == 0 and found["same"] == 5
        with pytest.raises(neve.Invalid, match="take_rank0"):
            checkpointer.restore(take_rank0=[])

    World(quick_folder, 3).run(refused)
    World(quick_folder, 3).run(taken)
    World(quick_folder, 2).run(lambda rank, checkpointer: check_own(rank, checkpointer.restore().state))


def check_own(rank, state):
    """The world that saved gets each rank's own."""
    assert state["w"].tolist() == [rank, rank] and state["seed"] == rank


def test_stages_of_a_pipeline_move_to_other_ranks(quick_folder):
    layers = {f"layer{index}": np.full((2, 2), float(index)) for index in range(4)}

    def held(rank, size):
        return {name: layer for index, (name, layer) in enumerate(layers.items()) if index * size // len(layers) == rank}

    World(quick_folder, 4).run(lambda rank, checkpointer: checkpointer.save(1, {"model": {
        name: neve.Piece(layer.copy(), layer.shape, (0, 0)) for name, layer in held(rank, 4).items()}}).wait("complete", 60))

    def restore(rank, checkpointer):
        into = {"model": {name: np.zeros_like(layer) for name, layer in held((rank + 1) % size, size).items()}}
        checkpointer.restore(into=into, include=[f"model.{name}" for name in into["model"]])
        assert all(into["model"][name].tolist() == layers[name].tolist() for name in held((rank + 1) % size, size))

    for size in (2, 4):
        World(quick_folder, size).run(restore)
