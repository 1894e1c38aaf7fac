"""Saves from a device, on a simulated one that reads host memory: what Python does around the engine's copies."""

import gc
import logging
import threading
import weakref

import pytest
import torch

import neve
from neve import _device, _torn
from piece_walk_test import distributed, rank_of


@pytest.fixture
def device(monkeypatch):
    """Host tensors that count as those of device 0, which the engine reads late and on its own."""
    monkeypatch.setenv("NEVE_DEVICE", "simulated")
    monkeypatch.setattr(_device, "_usable", None)
    monkeypatch.setattr(_device, "ordinal", lambda device: 0)
    monkeypatch.setattr(_device, "current_streams", lambda ordinals: [(ordinal, 0) for ordinal in ordinals])


@pytest.fixture
def fences(monkeypatch):
    """The save ids of the fences that were kept, in order."""
    kept = []
    fence = neve.Ticket.fence

    def recorded(ticket):
        kept.append(ticket.step)
        fence(ticket)
        ticket.wait("captured", 60)   # host memory knows no stream: the test waits itself

    monkeypatch.setattr(neve.Ticket, "fence", recorded)
    return kept


def training(count=3):
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(count):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4, 7) + torch.rand(4, 7)).sum().backward()
    optimizer.step()


def copy_of(state):
    return {name: value.clone() for name, value in state.items()}


def test_a_state_on_a_device_comes_back_as_it_was(device, tmp_path):
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ticket = ckpt.save(1, {"model": model, "optimizer": optimizer})
        ticket.wait(timeout=60)
        wanted = copy_of(model.state_dict())
        step(model, optimizer)
        ckpt.restore(into={"model": model, "optimizer": optimizer})
        for name, value in model.state_dict().items():
            assert torch.equal(value, wanted[name]), name


def test_the_fence_is_kept_before_the_next_step_and_only_once(device, fences, tmp_path):
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ticket = ckpt.save(1, {"model": model, "optimizer": optimizer}, fence=optimizer)
        wanted = copy_of(model.state_dict())
        assert not ticket.fenced and fences == []
        step(model, optimizer)
        assert ticket.fenced and fences == [1]
        step(model, optimizer)
        assert fences == [1]
        ticket.wait(timeout=60)
        found = ckpt.restore()
        for name, value in wanted.items():
            if "running" not in name and "num_batches" not in name:
                assert torch.equal(found.state["model"][name], value), name


def test_a_list_of_optimizers_is_fenced_by_the_first_that_steps(device, fences, tmp_path):
    model, first = training()
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ckpt.save(1, model, fence=[first, second])
        second.step()
        assert fences == [1]
        first.step()
        assert fences == [1]


def test_what_optimizers_do_not_hold_is_not_fenced(device):
    model, optimizer = training()
    kept = _device.kept_storages([optimizer])
    for name, value in model.state_dict().items():
        buffer = "running" in name or "num_batches" in name
        assert (value.untyped_storage().data_ptr() in kept) == (not buffer), name
    for state in optimizer.state.values():
        assert all(item.untyped_storage().data_ptr() in kept for item in state.values() if torch.is_tensor(item))


def test_a_fence_keeps_the_local_parts_of_dtensors(device, tmp_path):
    from torch.distributed.tensor import Shard

    with rank_of(1, 0) as mesh, neve.Checkpointer(tmp_path / "job") as ckpt:
        weight = torch.nn.Parameter(distributed(torch.arange(8.0), mesh, Shard(0)))
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
        weight.grad = distributed(torch.ones(8), mesh, Shard(0))
        optimizer.step()
        locals_of = [weight._local_tensor, optimizer.state[weight]["momentum_buffer"]._local_tensor]
        assert _device.kept_storages([optimizer]) == {local.untyped_storage().data_ptr() for local in locals_of}
        ticket = ckpt.save(1, {"weight": weight}, fence=optimizer)
        optimizer.step()     # its hook is the fence
        assert ticket.fenced
        ticket.wait("ram", 60)
        assert torch.equal(ckpt.restore().state["weight"].tensor, torch.arange(8.0) - 0.5)


def test_a_tensor_without_a_storage_is_kept_by_no_fence():
    dense, sparse = torch.zeros(3), torch.eye(3).to_sparse()
    optimizer = torch.optim.SGD([dense], lr=0.1)
    optimizer.state[dense]["seen"] = sparse
    assert _device.kept_storages([optimizer]) == {dense.untyped_storage().data_ptr()}


def test_a_step_without_its_hook_is_fenced_by_the_next_save_with_a_warning(device, fences, tmp_path, caplog):
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ckpt.save(1, model, fence=optimizer)
        with caplog.at_level(logging.WARNING, "neve"):
            ckpt.save(2, model, fence=optimizer)
        assert fences == [1]
        assert "step 1" in caplog.text and "ticket.fence()" in caplog.text


def test_a_fence_that_the_program_kept_itself_is_no_reason_to_warn(device, fences, tmp_path, caplog):
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ckpt.save(1, model, fence=optimizer).fence()
        with caplog.at_level(logging.WARNING, "neve"):
            ckpt.save(2, model)
        assert "fence" not in caplog.text


def test_fence_takes_optimizers_only(device, tmp_path):
    model, _ = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        with pytest.raises(neve.Invalid, match="optimizer"):
            ckpt.save(1, model, fence=model)
        ckpt.save(1, model).wait(timeout=60)


def test_tensors_live_until_they_are_captured(device, monkeypatch, tmp_path):
    captured = threading.Event()
    wait = neve.Ticket.wait

    def late(ticket, stage="done", timeout=None):
        if stage == "captured":
            captured.wait(60)
        wait(ticket, stage, timeout)

    monkeypatch.setattr(neve.Ticket, "wait", late)
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        state = {"t": torch.full((1000,), 3.0)}
        gone = threading.Event()
        weakref.finalize(state["t"], gone.set)
        ticket = ckpt.save(1, state)
        state.clear()
        gc.collect()
        assert not gone.is_set()
        captured.set()
        assert gone.wait(60)
        ticket.wait(timeout=60)


def test_without_a_driver_tensors_are_copied_to_the_host(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("NEVE_DEVICE", "")
    monkeypatch.setattr(_device, "_usable", False)
    monkeypatch.setattr(_device, "ordinal", lambda device: 0)
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ticket = ckpt.save(1, model, fence=optimizer)
        ticket.wait(timeout=60)
        assert not ticket.fenced


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setenv("NEVE_CHECK_TORN", "1")


def test_a_tensor_changed_before_its_fence_is_named(device, checked, tmp_path):
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ticket = ckpt.save(1, {"model": model}, fence=optimizer)
        with torch.no_grad():
            model[2].bias.add_(1)
        with pytest.raises(neve.Invalid, match=r"model\.2\.bias \(version"):
            ticket.fence()


def test_a_tensor_changed_past_torch_is_named_by_its_bytes(device, checked, tmp_path):
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ticket = ckpt.save(1, {"model": model}, fence=optimizer)
        model[0].weight.detach().numpy()[0, 0] += 1
        with pytest.raises(neve.Invalid, match=r"model\.0\.weight \(its bytes differ"):
            ticket.fence()


def test_an_unchanged_state_passes_the_check(device, checked, tmp_path):
    model, optimizer = training()
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ticket = ckpt.save(1, {"model": model}, fence=optimizer)
        ticket.fence()
        ckpt.save(2, {"model": model}).wait(timeout=60)


def test_ASY_01_a_host_tensor_changed_by_another_thread_during_the_save_is_named(checked, monkeypatch, tmp_path):
    state = {"w": torch.zeros(10), "b": torch.zeros(3)}
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ckpt.save(1, state).wait(timeout=60)
        seen = _torn.Watch.check

        def check(watch, until):
            state["b"].add_(1)   # as if it had happened while save() was copying
            seen(watch, until)

        monkeypatch.setattr(_torn.Watch, "check", check)
        with pytest.raises(neve.Invalid, match=r"b \(version"):
            ckpt.save(2, state)
