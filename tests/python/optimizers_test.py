"""Optimizers in a restore: parameter groups and states go by the names of the parameters where these are known, never by place."""

import pytest
import torch

import neve


def layers(seed=0):
    torch.manual_seed(seed)
    return torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(3, 2)})


def optimizer_of(model, *groups, lr=0.0):
    """Groups of named parameters; the n-th one learns at lr + n."""
    named = dict(model.named_parameters())
    return torch.optim.AdamW([{"params": [(name, named[name]) for name in names], "lr": lr + index} for index, names in enumerate(groups)])


def trained(model, optimizer):
    (model["a"](torch.ones(3)).sum() + 2 * model["b"](torch.ones(3)).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


WEIGHTS, BIASES = ["a.weight", "b.weight"], ["a.bias", "b.bias"]


def by_name(model, optimizer):
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: entry["exp_avg"].tolist() for parameter, entry in optimizer.state.items()}


def test_groups_in_another_order_are_matched_by_name(around):
    model = layers()
    saved = trained(model, optimizer_of(model, WEIGHTS, BIASES, lr=1))
    other = layers(1)
    fresh = optimizer_of(other, BIASES[::-1], WEIGHTS[::-1], lr=7)
    around({"optimizer": saved}, into={"optimizer": fresh})
    assert [(group["lr"], group["param_names"]) for group in fresh.param_groups] == [(2, BIASES[::-1]), (1, WEIGHTS[::-1])]
    assert by_name(other, fresh) == by_name(model, saved)
    assert [len(group["params"]) for group in fresh.param_groups] == [2, 2]
    trained(other, fresh)


def test_groups_of_other_parameters_are_refused_before_anything_changes(around):
    model = layers()
    saved = trained(model, optimizer_of(model, WEIGHTS, BIASES))
    fresh = optimizer_of(layers(), ["a.weight", "a.bias"], ["b.weight", "b.bias"], lr=7)
    with pytest.raises(neve.Invalid) as caught:
        around({"optimizer": saved}, into={"optimizer": fresh})
    assert "optimizer: groups of the parameters [a.weight, b.weight]; [a.bias, b.bias] saved" in str(caught.value)
    assert not fresh.state and fresh.param_groups[0]["lr"] == 7


def test_without_names_groups_go_by_their_order(around):
    model = layers()
    saved = trained(model, torch.optim.AdamW(model.parameters(), lr=0.25))
    fresh = torch.optim.AdamW(layers(1).parameters(), lr=7)
    around({"optimizer": saved}, into={"optimizer": fresh})
    assert fresh.param_groups[0]["lr"] == 0.25 and len(fresh.state) == 4


def test_groups_of_torchs_own_state_dicts_are_matched_by_name(around):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = layers()
    saved = trained(model, optimizer_of(model, WEIGHTS, BIASES, lr=1))
    other = layers(1)
    fresh = optimizer_of(other, BIASES, WEIGHTS, lr=7)
    into = get_optimizer_state_dict(other, fresh)
    around({"optimizer": get_optimizer_state_dict(model, saved), "step": 1}, into={"optimizer": into, "step": 0})
    assert [(group["lr"], set(group["params"])) for group in into["param_groups"]] == [(2, set(BIASES)), (1, set(WEIGHTS))]
    set_optimizer_state_dict(other, fresh, into)
    assert by_name(other, fresh) == by_name(model, saved) and fresh.param_groups[0]["lr"] == 2
    third = optimizer_of(other, ["a.weight", "a.bias"], ["b.weight", "b.bias"])
    with pytest.raises(neve.Invalid, match="optimizer.param_groups: groups of the parameters"):
        around({"optimizer": get_optimizer_state_dict(model, saved)}, into={"optimizer": get_optimizer_state_dict(other, third)})


def test_DCP_11_a_state_without_a_parameter_is_named(around):
    model = layers()
    state = trained(model, optimizer_of(model, WEIGHTS, BIASES)).state_dict()
    state["state"][17] = {"exp_avg": torch.zeros(1)}
    with pytest.raises(neve.Invalid, match="saved but without a place in the target: optimizer.state.17"):
        around({"optimizer": state}, into={"optimizer": optimizer_of(layers(), WEIGHTS, BIASES)})


def test_entries_keep_the_order_of_their_parts(around):
    """The step is no moment: it has no place in an optimizer that has not made a step yet."""
    model, other = layers(), layers(1)
    saved, fresh = trained(model, optimizer_of(model, WEIGHTS, BIASES)), optimizer_of(other, WEIGHTS, BIASES)
    around({"optimizer": saved}, into={"optimizer": fresh})
    assert {tuple(entry) for entry in fresh.state.values()} == {("step", "exp_avg", "exp_avg_sq")}


def schedulers(optimizer):
    kinds = torch.optim.lr_scheduler
    return {
        "multi_step": kinds.MultiStepLR(optimizer, [2, 4, 4]), "lambda": kinds.LambdaLR(optimizer, lambda epoch: 0.9),
        "one_cycle": kinds.OneCycleLR(optimizer, 0.1, total_steps=10), "plateau": kinds.ReduceLROnPlateau(optimizer),
        "cyclic": kinds.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False), "warm": kinds.CosineAnnealingWarmRestarts(optimizer, 3),
        "chained": kinds.ChainedScheduler([kinds.ConstantLR(optimizer), kinds.MultiStepLR(optimizer, [1])]),
        "sequence": kinds.SequentialLR(optimizer, [kinds.ConstantLR(optimizer), kinds.ExponentialLR(optimizer, 0.9)], [2]),
    }


def test_torchs_schedulers_come_back_without_trust(around):
    """The milestones of a MultiStepLR are a collections.Counter."""
    saved = schedulers(torch.optim.SGD(layers().parameters(), lr=0.1))
    for scheduler in saved.values():
        scheduler.last_epoch = 7
    found = around({name: scheduler.state_dict() for name, scheduler in saved.items()})
    assert found == {name: scheduler.state_dict() for name, scheduler in saved.items()}
    assert type(found["multi_step"]["milestones"]) is type(saved["multi_step"].milestones)
    fresh = schedulers(torch.optim.SGD(layers().parameters(), lr=0.1))
    around(saved, into=fresh)
    assert all(scheduler.last_epoch == 7 for scheduler in fresh.values())
    assert fresh["multi_step"].milestones == saved["multi_step"].milestones
