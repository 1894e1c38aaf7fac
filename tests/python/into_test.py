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
    class Picky:
        def load_state_dict(self, state):
            raise ValueError("not like that")

    restore = saved({"model": torch.nn.Linear(2, 2)})
    with pytest.raises(neve.Invalid, match="model: load_state_dict.*Picky refused.*not like that.*were written: model"):
        restore(into={"model": Picky()})


def test_a_module_that_has_changed_is_listed_before_anything_is_written(saved):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    restore = saved({"m": model, "first": torch.ones(1)})
    for as_saved in (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)),
                     torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Sequential(model, torch.nn.Linear(2, 2))):
        target = {"first": torch.zeros(1), "m": as_saved}
        before = copy.deepcopy(as_saved.state_dict())
        with pytest.raises(neve.Invalid, match="nothing was changed.*m\\."):
            restore(into=target)
        assert not target["first"].any()
        assert_same(as_saved.state_dict(), before)


def test_a_module_wrapped_since_is_hinted_at(saved):
    restore = saved({"m": torch.nn.Sequential(collections.OrderedDict(module=torch.nn.Linear(2, 2)))})
    with pytest.raises(neve.Invalid, match="in the target but not saved: m.weight, m.bias.*saved names begin with 'm.module.'"):
        restore(into={"m": torch.nn.Linear(2, 2)})


def test_not_strict_restores_what_of_a_module_fits(saved):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    restore = saved({"m": model})
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3), torch.nn.Linear(1, 1, bias=False))
    found = restore(into={"m": other}, strict=False)
    assert found.missing == ["m.2.weight", "m.1.weight", "m.1.bias"] and found.unexpected == ["m.1.weight", "m.1.bias"]
    assert torch.equal(other[0].weight, model[0].weight)


def test_an_optimizer_of_other_groups_is_refused_before_anything_is_written(saved):
    optimizer = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
    for state in (optimizer, optimizer.state_dict()):
        restore = saved({"first": torch.ones(1), "o": state})
        target = {"first": torch.zeros(1), "o": torch.optim.Adam(torch.nn.Linear(2, 2, bias=False).parameters())}
        with pytest.raises(neve.Invalid, match=r"o: groups of \[2\] parameters saved, of \[1\]"):
            restore(into=target)
        assert not target["first"].any()


def test_include_takes_part_of_a_module_but_not_of_an_unknown_object(saved):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    restore = saved({"m": model})
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    last = other[1].weight.clone()
    restore(into={"m": other}, include="m.0")
    assert torch.equal(other[0].weight, model[0].weight) and torch.equal(other[1].weight, last)

    class Holder:
        state = None

        def load_state_dict(self, state):
            self.state = state

    holder = Holder()
    with pytest.raises(neve.Invalid, match="takes all of a state"):
        restore(into={"m": holder}, include="m.0")
    assert holder.state is None


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
def test_DCP_10_a_common_prefix_is_hinted_at(saved, saved_prefix, target_prefix):
    restore = saved({saved_prefix + name: torch.ones(1) for name in ("a.w", "b.w")})
    with pytest.raises(neve.Invalid, match=f"begin with '{(saved_prefix or target_prefix)}'"):
        restore(into={target_prefix + name: torch.zeros(1) for name in ("a.w", "b.w")})


def test_include_restores_only_what_it_names(saved):
    restore = saved({"model": {"w": torch.ones(2)}, "optimizer": {"m": torch.ones(2)}})
    target = {"model": {"w": torch.zeros(2)}, "optimizer": {"m": torch.zeros(2)}, "other": 1}
    restore(into=target, include="model.*")
    assert_same(target, {"model": {"w": torch.ones(2)}, "optimizer": {"m": torch.zeros(2)}, "other": 1})


def test_include_leaves_the_other_items_of_a_list_alone(saved):
    restore = saved({"l": [torch.ones(2), 5, "s"], "t": (torch.ones(1), 5), "v": [1, {"q": 2, "r": 3}], "p": Pair(torch.ones(1), 5)})
    target = {"l": [torch.zeros(2), 77, "tt"], "t": (torch.zeros(1), 6), "v": [8, {"q": 9, "r": 9}], "p": Pair(torch.zeros(1), 6)}
    restore(into=target, include=["l.0", "t.0", "v.1.q", "p.0"])
    expected = {"l": [torch.ones(2), 77, "tt"], "t": (torch.ones(1), 6), "v": [8, {"q": 2, "r": 9}], "p": Pair(torch.ones(1), 6)}
    assert_same(target, expected)
    with pytest.raises(neve.Invalid, match="l: include= leaves out item 0"):
        restore(into={"l": []}, include="l.1")


def test_include_names_numbers_in_a_subtree_without_tensors(saved):
    restore = saved({"w": torch.ones(1), "opt": {"lr": 0.5, "wd": 1}, "v": (1, [2, 3]), "long": {"a": "x" * 9000, "b": 1}})
    assert restore(include="opt.lr").state == {"opt": {"lr": 0.5}}
    assert restore(include="v.1.0").state == {"v": (None, [2, None])}
    assert restore(include="long.b").state == {"long": {"b": 1}}
    assert restore(include="long.*").state == {"long": {"a": "x" * 9000, "b": 1}}
    target = {"opt": {"lr": 0.1, "wd": 9}}
    restore(into=target, include="opt.lr")
    assert target == {"opt": {"lr": 0.5, "wd": 9}}


@pytest.mark.parametrize("include", ["modle.*", ["model", "optimizer.lr"], []])
def test_include_that_matches_nothing_is_refused(saved, include):
    restore = saved({"model": {"w": torch.ones(1)}, "epoch": 3})
    for into in (None, {"model": {"w": torch.zeros(1)}}):
        with pytest.raises(neve.Invalid, match="include.*(matches no name|names nothing)"):
            restore(into=into, include=include)
    with pytest.raises(neve.Invalid, match="its names begin with epoch, model"):
        restore(include="modle.*")


def overlapping_targets():
    full, flat, matrix = torch.zeros(6), torch.full((10,), 7.0), torch.zeros(4, 4)
    apart, six = {"x": torch.ones(6), "y": torch.full((6,), 2.0)}, torch.arange(10.0)
    return {
        "one tensor for two overlapping views": ({"x": six[0:6], "y": six[4:10]}, {"x": full, "y": full}),
        "a view of the other": (apart, {"x": full, "y": full.view(6)}),
        "in part": (apart, {"x": flat[0:6], "y": flat[4:10]}),
        "an array of the other": (apart, {"x": full, "y": full.numpy()}),
        "a window on itself": ({"x": torch.arange(9.0).view(3, 3)}, {"x": torch.zeros(5).unfold(0, 3, 1)}),
        "expanded": ({"x": torch.arange(6.0).view(2, 3)}, {"x": torch.zeros(1, 3).expand(2, 3)}),
        "an overlap elsewhere than saved": ({"x": six[0:6], "y": six[4:10]}, {"x": flat[0:6], "y": flat[3:9]}),
        "columns that meet": ({"x": torch.ones(4, 2), "y": torch.zeros(4, 3)}, {"x": matrix[:, :2], "y": matrix[:, 1:]}),
        "another type": ({"x": torch.ones(6), "y": torch.zeros(6, dtype=torch.int32)}, {"x": full, "y": full.view(torch.int32)}),
    }


@pytest.mark.parametrize("case", overlapping_targets())
def test_targets_that_share_memory_where_the_save_does_not_are_refused(saved, case):
    state, target = overlapping_targets()[case]
    restore = saved({"first": torch.ones(1), **state})
    target = {"first": torch.zeros(1), **target}
    before = copy.deepcopy(target)
    with pytest.raises(neve.Invalid, match="nothing was changed.*(share|in the target)"):
        restore(into=target)
    assert_same(target, before)


def test_targets_that_share_memory_as_the_save_does_are_filled(saved):
    base, other, matrix = torch.arange(12.0), torch.zeros(12), torch.zeros(4, 4)
    state = {"x": base.view(3, 4), "t": base.view(3, 4).t(), "w": base.unfold(0, 3, 1), "i": base.view(torch.int32)[2:5],
             "e": torch.ones(1, 2).expand(3, 2), "q": torch.ones(4, 2), "k": torch.full((4, 2), 2.0)}
    target = {"x": other.view(3, 4), "t": other.view(3, 4).t(), "w": other.unfold(0, 3, 1), "i": other.view(torch.int32)[2:5],
              "e": torch.zeros(1, 2).expand(3, 2), "q": matrix[:, :2], "k": matrix[:, 2:]}
    saved(state)(into=target)
    assert_same(target, state, strides=False)
    assert matrix.tolist() == [[1, 1, 2, 2]] * 4
    columns = torch.zeros(4, 3).t()   # both in another order than they were saved in, and the same of each other
    target = {"x": columns, "t": columns.t()}
    saved({"x": state["x"], "t": state["t"]})(into=target)
    assert torch.equal(target["x"], state["x"])


def test_a_target_that_cannot_be_changed_is_refused_before_anything_is_written(saved):
    restore = saved({"first": torch.ones(1), "x": numpy.arange(3.0)})
    array = numpy.zeros(3)
    array.flags.writeable = False
    with torch.inference_mode():
        frozen = torch.zeros(3, dtype=torch.float64)
    for target, why in ((array, "read-only"), (frozen, "inference tensor")):
        first = torch.zeros(1)
        with pytest.raises(neve.Invalid, match=f"x: .*{why}"):
            restore(into={"first": first, "x": target})
        assert not first.any()


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


def test_an_optimizer_with_groups_too_long_for_the_values_is_restored(around):
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(1500)]
    optimizer = torch.optim.SGD(parameters, lr=0.25, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.ones(1)
    optimizer.step()
    fresh = torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
    around({"optimizer": optimizer}, into={"optimizer": fresh})
    assert fresh.param_groups[0]["lr"] == 0.25 and len(fresh.state) == 1500
