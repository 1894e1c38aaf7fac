"""Restoring in place where memory is shared or an object loads itself: refused before anything is written, or left alone."""

import copy
import dataclasses
import random

import numpy
import pytest
import torch
from same import assert_same

import neve


@dataclasses.dataclass
class Rates:
    lr: float
    warmup: int = 3


@pytest.fixture
def saved(job):
    """Saves a state, and gives restore() of a Checkpointer that has it."""

    def save(state):
        checkpointer = job(name=f"into-{random.randrange(1 << 40)}")
        checkpointer.save(3, state).wait("done", 60)
        return checkpointer.restore

    return save


def layers(*sizes):
    return torch.nn.Sequential(*[torch.nn.Linear(inputs, outputs) for inputs, outputs in sizes])


@pytest.mark.parametrize("change", [lambda module: module.double(), lambda module: module.to("meta")])
def test_a_module_of_another_dtype_or_without_memory_is_refused_before_anything_is_written(saved, change):
    restore = saved({"a": torch.ones(1), "m": layers((2, 2), (2, 2))})
    target = {"a": torch.zeros(1), "m": change(layers((2, 2), (2, 2)))}
    with pytest.raises(neve.Invalid, match="nothing was changed.*m.0.weight") as caught:
        restore(into=target)
    assert "written" not in str(caught.value) and not target["a"].any()
    assert "m.0.weight" in restore(into=target, strict=False).missing and target["a"].all()


def test_a_module_tied_where_the_save_is_not_is_refused(saved):
    apart, tied = layers((2, 2), (2, 2)), layers((2, 2), (2, 2))
    tied[1].weight = tied[0].weight
    before = copy.deepcopy(tied.state_dict())
    with pytest.raises(neve.Invalid, match="m.1.weight: it shares memory with m.0.weight|m.1.weight: one tensor with m.0.weight"):
        saved({"m": apart})(into={"m": tied})
    assert_same(tied.state_dict(), before)
    other = copy.deepcopy(tied)
    torch.nn.init.zeros_(other[0].weight)
    saved({"m": tied})(into={"m": other})
    assert_same(other.state_dict(), tied.state_dict())


def test_a_module_and_a_tensor_that_share_memory_only_in_the_target_are_refused(saved):
    module = torch.nn.Linear(2, 2)
    restore = saved({"m": module, "w": torch.ones(4)})
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(neve.Invalid, match="shares memory"):
        restore(into={"m": module, "w": module.weight.detach().view(4)})
    assert_same(module.state_dict(), before)


def test_not_strict_fills_the_first_of_the_targets_that_share_memory(saved):
    restore = saved({"x": torch.ones(4), "y": torch.full((4,), 2.0), "z": torch.full((4,), 3.0), "cuda:0": torch.ones(2)})
    shared = torch.zeros(4)
    found = restore(into={"x": shared, "y": shared.view(4), "z": shared[:], "cuda:0": torch.zeros(3)}, strict=False)
    assert shared.tolist() == [1] * 4 and set(found.missing) == {"y", "z", "cuda:0"}


def test_not_strict_leaves_a_module_alone_where_it_is_tied_and_the_save_is_not(saved):
    apart, tied = layers((2, 2), (2, 2)), layers((2, 2), (2, 2))
    tied[1].weight = tied[0].weight
    found = saved({"m": apart})(into={"m": tied}, strict=False)
    assert found.missing == ["m.1.weight"] and torch.equal(tied[0].weight, apart[0].weight)


@pytest.mark.parametrize("strict", [True, False])
def test_an_optimizer_of_other_groups_is_refused_strict_or_not(saved, strict):
    def trainer(*sizes):
        return torch.optim.AdamW(layers(*sizes).parameters())

    restore = saved({"a": torch.ones(1), "o": trainer((2, 2))})
    target = {"a": torch.zeros(1), "o": trainer((2, 2), (2, 2))}
    with pytest.raises(neve.Invalid, match="nothing was changed") as caught:
        restore(into=target, strict=strict)
    assert "written" not in str(caught.value) and not target["a"].any()


def test_include_takes_one_field_of_a_dataclass_of_numbers(saved):
    restore = saved({"w": torch.ones(1), "rates": Rates(0.5, 7)})
    rates = Rates(0.1, 1)
    restore(into={"w": torch.zeros(1), "rates": rates}, include="rates.warmup")
    assert rates == Rates(0.1, 7)


def test_include_takes_a_random_generator_whole_or_not_at_all(saved):
    restore = saved({"w": torch.ones(1), "g": numpy.random.RandomState(3)})
    with pytest.raises(neve.Invalid, match="matches no name"):
        restore(include="g.state.pos")
    assert restore(include="g").state["g"].rand() == numpy.random.RandomState(3).rand()


# ---- Boxes ----


def pieces(*tensors):
    """One Piece for each, of a logical tensor of its own."""
    return {f"p{index}": neve.Piece(tensor, tuple(tensor.shape), (0,) * tensor.dim()) for index, tensor in enumerate(tensors)}


@pytest.mark.parametrize("target", [
    lambda: pieces(torch.zeros(1).expand(4)),
    lambda: pieces(torch.zeros(6).as_strided((3, 2), (1, 1))),
    lambda: pieces(*(lambda memory: (memory[:4], memory[2:]))(torch.zeros(6))),
    lambda: pieces(*[torch.zeros(4).view(2, 2).t()] * 2),
    lambda: {"p0": neve.Piece(memory := torch.zeros(4), (4,), (0,)), "p1": memory},
])
def test_boxes_that_share_memory_and_would_get_different_bytes_are_refused(saved, target):
    into = target()
    state = {}
    for index, (name, place) in enumerate(into.items()):
        tensor = torch.arange(1.0, 1 + getattr(place, "tensor", place).numel()) + index
        state[name] = tensor if place is getattr(place, "tensor", place) else neve.Piece(
            tensor.view(place.tensor.shape), place.global_shape, place.offset)
    restore = saved(state)
    with pytest.raises(neve.Invalid, match="nothing was changed.*shares? memory"):
        restore(into=into)
    assert not any(getattr(place, "tensor", place).any() for place in into.values())
    found = restore(into=into, strict=False)
    assert found.missing and found.missing == found.unexpected
    for name, place in into.items():
        if name not in found.missing:
            assert torch.equal(place.tensor, state[name].tensor)


def test_boxes_that_share_memory_and_get_one_thing_are_filled(saved):
    memory = torch.arange(6.0)
    state = {**pieces(memory[:4], memory[2:], memory, torch.full((1,), 5.0).expand(4)),
             "rows": [neve.Piece(torch.full((2, 3), float(row + 1)), (4, 3), (2 * row, 0), name="rows") for row in range(2)]}
    restore = saved(state)
    memory = torch.zeros(6)
    whole = torch.zeros(4, 3)
    into = {**pieces(memory[:4], memory[2:], memory, torch.zeros(1).expand(4)),
            "rows": [neve.Piece(whole[2 * row:2 * row + 2], (4, 3), (2 * row, 0), name="rows") for row in range(2)]}
    restore(into=into)
    assert memory.tolist() == list(range(6)) and into["p3"].tensor.tolist() == [5] * 4
    assert whole.tolist() == [[1] * 3] * 2 + [[2] * 3] * 2


# ---- Places that hold no tensor ----


@pytest.mark.parametrize("other", [5, None, "x", True, 1.5])
@pytest.mark.parametrize("value", [
    torch.ones(2), numpy.ones(2), {"a": torch.ones(2)}, [torch.ones(2)], (1, torch.ones(2)), torch.ones(2).to_sparse(),
    torch.ones(2, device="meta"), neve.Piece(torch.ones(2), (2,), (0,)), torch.nn.Linear(1, 1)])
def test_a_number_or_none_is_no_place_for_a_tensor(saved, value, other):
    restore = saved({"w": value, "x": torch.ones(1)})
    into = {"w": other, "x": torch.zeros(1)}
    with pytest.raises(neve.Invalid, match="nothing was changed.*w: saved as a .*, in the target a (int|NoneType|str|bool|float)"):
        restore(into=into)
    assert into["w"] is other and not into["x"].any()
    found = restore(into=into, strict=False)
    assert "w" in found.missing and "w" in found.unexpected and into["w"] is other and into["x"].all()


def test_values_take_the_place_of_values_whatever_they_are(saved):
    restore = saved({"a": {"b": [1, {"c": None}]}, "n": None, "t": (1, 2), "l": [1], "x": torch.ones(1)})
    into = {"a": 5, "n": 3, "t": None, "l": "x", "x": torch.zeros(1)}
    restore(into=into)
    assert into["a"] == {"b": [1, {"c": None}]} and into["n"] is None and into["t"] == (1, 2) and into["l"] == [1]
