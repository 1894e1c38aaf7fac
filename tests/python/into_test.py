"""Restoring in place: what is filled, replaced, added, listed, and what a failure leaves behind."""

import collections
import copy
import dataclasses
import random

import numpy
import pytest
import torch
from same import assert_same

import neve


@dataclasses.dataclass
class Progress:
    step: int
    weights: object


Pair = collections.namedtuple("Pair", "left right")


@pytest.fixture
def saved(job):
    """Saves a state, and gives restore() of a Checkpointer that has it."""

    def save(state):
        checkpointer = job(name=f"into-{random.randrange(1 << 40)}")
        checkpointer.save(3, state).wait("done", 60)
        return checkpointer.restore

    return save


def test_tensors_and_arrays_are_filled_in_place(saved):
    restore = saved({"w": torch.arange(6.0).view(2, 3), "a": numpy.arange(3), "l": [torch.ones(2)]})
    target = {"w": torch.zeros(2, 3), "a": numpy.zeros(3, int), "l": [torch.zeros(2)]}
    w, a, inner, row = target["w"], target["a"], target["l"], target["l"][0]
    found = restore(into=target)
    assert found.state is target and found.step == 3
    assert target["w"] is w and target["a"] is a and target["l"] is inner and inner[0] is row
    assert_same(target, {"w": torch.arange(6.0).view(2, 3), "a": numpy.arange(3), "l": [torch.ones(2)]})


def test_targets_of_other_strides_are_filled_with_the_logical_values(saved):
    restore = saved({"w": torch.arange(24.0).view(2, 3, 2, 2),
                     "t": torch.arange(6.0).view(2, 3).t(), "e": torch.ones(1).expand(4, 4)})
    target = {"w": torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
              "t": torch.zeros(3, 2), "e": torch.zeros(4, 4)}
    restore(into=target)
    assert torch.equal(target["w"], torch.arange(24.0).view(2, 3, 2, 2)) and target["w"].stride() == (12, 1, 6, 3)
    assert torch.equal(target["t"], torch.arange(6.0).view(2, 3).t()) and torch.equal(target["e"], torch.ones(4, 4))


def test_numbers_strings_and_none_are_replaced_inside_their_containers(saved):
    restore = saved({"w": torch.ones(1), "n": 5, "s": "new", "none": None, "l": [1, {"lr": 0.5}], "was": 3})
    inner = {"lr": 0.1}
    target = {"w": torch.zeros(1), "n": 0, "s": "old", "none": 3, "l": [0, inner], "was": None}
    restore(into=target)
    assert target["n"] == 5 and target["s"] == "new" and target["none"] is None and target["was"] == 3
    assert target["l"][1] is inner and inner["lr"] == 0.5 and target["l"][0] == 1


def test_a_list_of_numbers_takes_the_saved_length(saved):
    restore = saved({"w": torch.ones(1), "losses": [1.0, 2.0]})
    losses = [5.0, 6.0, 7.0]
    target = {"w": torch.zeros(1), "losses": losses}
    restore(into=target)
    assert losses == [1.0, 2.0] and target["losses"] is losses


def test_tuples_are_rebuilt_around_the_targets_tensors(saved):
    restore = saved({"t": (torch.ones(2), 5), "p": Pair(torch.ones(1), "x")})
    kept = torch.zeros(2)
    target = {"t": (kept, 0), "p": Pair(torch.zeros(1), "")}
    restore(into=target)
    assert target["t"][0] is kept and torch.equal(kept, torch.ones(2)) and target["t"][1] == 5
    assert type(target["p"]) is Pair and target["p"].right == "x"


def test_a_root_that_is_no_container_comes_back_as_the_new_value(saved):
    assert saved((torch.ones(1), 2))(into=(torch.zeros(1), 0)).state[1] == 2
    tensor = torch.zeros(3)
    found = saved(torch.ones(3))(into=tensor)
    assert found.state is tensor and torch.equal(tensor, torch.ones(3))


def test_DCP_11_moments_are_added_to_an_empty_optimizer(saved):
    torch.manual_seed(0)

    def trainer():
        model = torch.nn.Linear(4, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).pow(2).sum().backward()
        optimizer.step()

    model, optimizer = trainer()
    for _ in range(3):
        step(model, optimizer)
    restore = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    for as_objects in (True, False):
        again, fresh = trainer()
        if as_objects:
            restore(into={"model": again, "optimizer": fresh})
        else:
            target = {"model": again.state_dict(), "optimizer": fresh.state_dict()}
            restore(into=target)
            assert set(target["optimizer"]["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
            fresh.load_state_dict(target["optimizer"])
        assert_same(fresh.state_dict(), optimizer.state_dict())
        expected, continued = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
        other = torch.optim.AdamW(expected.parameters(), lr=0.1)
        other.load_state_dict(continued)
        step(expected, other)
        step(again, fresh)
        assert_same(again.state_dict(), expected.state_dict())


def test_objects_saved_as_objects_get_load_state_dict(saved):
    model = torch.nn.Linear(2, 2)
    restore = saved({"model": model})
    other = torch.nn.Linear(2, 2)
    weight = other.weight
    restore(into={"model": other})
    assert torch.equal(other.weight, model.weight) and other.weight is weight
    plain = {"model": torch.nn.Linear(2, 2).state_dict()}
    restore(into=plain)
    assert torch.equal(plain["model"]["weight"], model.weight)


def test_an_object_that_refuses_is_said_with_its_path(saved):
    restore = saved({"model": torch.nn.Linear(2, 2)})
    with pytest.raises(neve.Invalid, match="model: load_state_dict.*Linear refused"):
        restore(into={"model": torch.nn.Linear(3, 2)})


def test_all_that_does_not_fit_is_listed_and_nothing_is_written(saved):
    restore = saved({"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(2), "d": {"x": 1}, "n": 1})
    target = {"a": torch.zeros(2), "b": torch.zeros(4), "c": torch.zeros(2, dtype=torch.float64), "d": [1], "n": 0,
              "extra": {"k": torch.zeros(1), "m": 1}}
    before = copy.deepcopy(target)
    with pytest.raises(neve.Invalid) as caught:
        restore(into=target)
    text = str(caught.value)
    assert "extra.k, extra.m" in text and "b: F32 [3] saved, F32 [4] in the target" in text
    assert "c: F32 [2] saved, F64 [2] in the target" in text and "d: saved as a dict, in the target a list" in text
    assert "step 3" in text
    assert_same(target, before)


def test_not_strict_lists_what_does_not_fit_and_restores_the_rest(saved):
    restore = saved({"a": torch.ones(2), "b": torch.ones(3), "new": 7})
    target = {"a": torch.zeros(2), "b": torch.zeros(4), "extra": torch.zeros(1)}
    found = restore(into=target, strict=False)
    assert found.missing == ["extra", "b"] and found.unexpected == ["b"]
    assert torch.equal(target["a"], torch.ones(2)) and torch.equal(target["b"], torch.zeros(4)) and target["new"] == 7


@pytest.mark.parametrize("saved_prefix, target_prefix", [("module.", ""), ("", "module."), ("_orig_mod.module.", "")])
def test_a_common_prefix_is_hinted_at(saved, saved_prefix, target_prefix):
    restore = saved({saved_prefix + name: torch.ones(1) for name in ("a.w", "b.w")})
    with pytest.raises(neve.Invalid, match=f"begin with '{(saved_prefix or target_prefix)}'"):
        restore(into={target_prefix + name: torch.zeros(1) for name in ("a.w", "b.w")})


def test_include_restores_only_what_it_names(saved):
    restore = saved({"model": {"w": torch.ones(2)}, "optimizer": {"m": torch.ones(2)}})
    target = {"model": {"w": torch.zeros(2)}, "optimizer": {"m": torch.zeros(2)}, "other": 1}
    restore(into=target, include="model.*")
    assert_same(target, {"model": {"w": torch.ones(2)}, "optimizer": {"m": torch.zeros(2)}, "other": 1})


def test_tied_targets_are_filled_whatever_ties_them(saved):
    t = torch.arange(3.0)
    restore = saved({"a": t, "b": t, "c": t.view(3, 1), "d": t[1:]})
    tied = torch.zeros(3)
    target = {"a": tied, "b": tied, "c": tied.view(3, 1), "d": tied[1:]}
    restore(into=target)
    assert tied.tolist() == [0, 1, 2] and target["b"] is tied
    apart = {"a": torch.zeros(3), "b": torch.zeros(3), "c": torch.zeros(3, 1), "d": torch.zeros(2)}
    restore(into=apart)
    assert apart["a"].tolist() == apart["b"].tolist() == [0, 1, 2] and apart["c"].tolist() == [[0], [1], [2]]
    assert apart["d"].tolist() == [1, 2]


def test_partly_overlapping_tensors_fill_separate_targets(saved):
    full = torch.arange(10.0)
    restore = saved({"x": full[0:6], "y": full[4:10]})
    target = {"x": torch.zeros(6), "y": torch.zeros(6)}
    restore(into=target)
    assert_same(target, {"x": full[0:6], "y": full[4:10]})


def test_a_target_tied_where_the_save_is_not_is_refused(saved):
    restore = saved({"a": torch.ones(2), "b": torch.zeros(2)})
    tied = torch.full((2,), 7.0)
    with pytest.raises(neve.Invalid, match="one tensor with a in the target"):
        restore(into={"a": tied, "b": tied})
    assert tied.tolist() == [7, 7]


def test_parameters_keep_their_identity_and_autograd_notices(saved):
    restore = saved({"w": torch.ones(2)})
    parameter = torch.nn.Parameter(torch.zeros(2))
    version = parameter._version
    restore(into={"w": parameter})
    assert parameter.tolist() == [1, 1] and parameter.requires_grad and parameter._version > version


def test_dataclasses_and_generators_are_filled_in_place(saved):
    generator, other = torch.Generator().manual_seed(1), numpy.random.default_rng(1)
    restore = saved({"p": Progress(4, torch.ones(1)), "g": generator, "n": other, "w": torch.zeros(1)})
    expected = torch.rand(3, generator=generator), other.random(3).tolist()
    target = {"p": Progress(0, torch.zeros(1)), "g": torch.Generator(), "n": numpy.random.default_rng(), "w": torch.zeros(1)}
    progress, weights = target["p"], target["p"].weights
    restore(into=target)
    assert target["p"] is progress and progress.step == 4 and progress.weights is weights and weights.item() == 1
    assert torch.equal(torch.rand(3, generator=target["g"]), expected[0]) and target["n"].random(3).tolist() == expected[1]


def test_torch_and_numpy_fill_each_other(saved):
    restore = saved({"a": numpy.arange(3.0), "t": torch.arange(3.0)})
    target = {"a": torch.zeros(3, dtype=torch.float64), "t": numpy.zeros(3, "f4")}
    restore(into=target)
    assert target["a"].tolist() == target["t"].tolist() == [0, 1, 2]


def test_sparse_and_meta_targets(saved):
    restore = saved({"s": torch.eye(2).to_sparse(), "m": torch.zeros(2, device="meta")})
    target = {"s": torch.zeros(2, 2).to_sparse(), "m": torch.zeros(2, device="meta")}
    restore(into=target)
    assert torch.equal(target["s"].to_dense(), torch.eye(2)) and target["m"].is_meta
    with pytest.raises(neve.Invalid, match="m: a meta tensor"):
        restore(into={"s": torch.zeros(2, 2).to_sparse(), "m": torch.zeros(2)})


def damage(folder, step, offset_from_end=1):
    """Flips a bit near the end of the newest image of a step."""
    image = sorted(folder.glob(f"step-{step:012d}.*/*.safetensors"))[-1]
    data = bytearray(image.read_bytes())
    data[-offset_from_end] ^= 1
    image.write_bytes(data)


def test_a_failed_restore_in_place_says_what_was_written_and_refuses_the_next_save(job, tmp_path):
    big = 6 << 20
    state = {"a": torch.ones(big // 4), "z": torch.ones(big // 4)}
    checkpointer = job(tmp_path / "run", [f"file:{tmp_path}"], job="run")
    checkpointer.save(1, state).wait("done", 60)
    checkpointer.save(2, state).wait("done", 60)
    damage(tmp_path / "run", 2)
    target = {"a": torch.zeros(big // 4), "z": torch.zeros(big // 4)}
    with pytest.raises(neve.DataLoss) as caught:
        checkpointer.restore(into=target)
    if "were written" in str(caught.value):
        with pytest.raises(neve.Invalid, match="refused"):
            checkpointer.save(3, target)
        assert "saves_refused" in checkpointer.health()
    assert checkpointer.restore(into=target, fallback=True).step == 1
    assert_same(target, state)
    checkpointer.save(3, target).wait("done", 60)


def test_atomic_verifies_before_the_target_is_touched(job, tmp_path):
    checkpointer = job(tmp_path / "run", [f"file:{tmp_path}"], job="run")
    checkpointer.save(1, {"a": torch.ones(5 << 20), "z": torch.ones(1000)}).wait("done", 60)
    damage(tmp_path / "run", 1)
    target = {"a": torch.zeros(5 << 20), "z": torch.zeros(1000)}
    with pytest.raises((neve.DataLoss, neve.Damaged)):
        checkpointer.restore(into=target, atomic=True)
    assert not target["a"].any() and not target["z"].any()
    checkpointer.save(2, target).wait("done", 60)
