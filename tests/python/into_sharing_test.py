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
