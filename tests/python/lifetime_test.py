"""What a save or a restore has to do with goes when its owner lets it go, without waiting for the garbage collector, which may not
come by for hours: memory of the size of a model hangs on it."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
import neve  # noqa: E402


@pytest.fixture(autouse=True)
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["plain", "odd"])
def state(request):
    made = {"w": torch.arange(12.0).reshape(3, 4), "list": [torch.ones(2), (torch.zeros(3), "text")], "step": 3}
    made["view"] = made["w"][1]
    if request.param == "odd":
        made["parameter"] = torch.nn.Parameter(torch.ones(5))
        made["sparse"] = torch.eye(3).to_sparse()
        made["generator"] = torch.Generator()
        made["transposed"] = torch.arange(6.0).reshape(2, 3).t()
        made["expanded"] = torch.ones(1).expand(4)
        made["half"] = torch.ones(3, dtype=torch.bfloat16)
    return made


def tensors_of(thing):
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        return [tensor for item in thing for tensor in tensors_of(item)]
    return []


def watched(thing):
    found = [weakref.ref(tensor) for tensor in tensors_of(thing)]
    assert found
    return found


def alive(references):
    return [tuple(reference().shape) for reference in references if reference() is not None]


def model_and_optimizer():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_saved_state_goes(tmp_path, state):
    with neve.Checkpointer(tmp_path, tiers=["ram:?slots=2"]) as checkpointer:
        checkpointer.save(1, state).wait("ram")
        references = watched(state)
        state.clear()
        assert alive(references) == []


def test_a_restored_state_goes(tmp_path, state):
    with neve.Checkpointer(tmp_path, tiers=["ram:?slots=2"]) as checkpointer:
        checkpointer.save(1, state).wait("ram")
        found = checkpointer.restore()
        references = watched(found.state)
        del found
        assert alive(references) == []


@pytest.mark.parametrize("atomic", [False, True])
def test_a_target_goes(tmp_path, state, atomic):
    with neve.Checkpointer(tmp_path, tiers=["ram:?slots=2"]) as checkpointer:
        checkpointer.save(1, state).wait("ram")
        checkpointer.restore(into=state, atomic=atomic)
        references = watched(state)
        state.clear()
        assert alive(references) == []


def test_a_model_and_its_optimizer_go(tmp_path):
    with neve.Checkpointer(tmp_path, tiers=["ram:?slots=2"]) as checkpointer:
        model, optimizer = model_and_optimizer()
        checkpointer.save(1, {"model": model, "optimizer": optimizer}).wait("ram")
        checkpointer.restore(into={"model": model, "optimizer": optimizer})
        references = watched(list(model.parameters())) + watched(list(optimizer.state_dict()["state"][0].values()))
        own = weakref.ref(model)
        del model, optimizer
        gc.collect()   # torch's own objects refer to each other in circles
        assert alive(references) == [] and own() is None


def test_pieces_go(tmp_path):
    state = {"w": neve.Piece(torch.ones(4, 2), (8, 2), (0, 0)), "whole": torch.ones(3)}
    with neve.Checkpointer(tmp_path, tiers=["ram:?slots=2"]) as checkpointer:
        checkpointer.save(1, state).wait("ram")
        checkpointer.restore(into=state)
        found = checkpointer.restore()
        references = [weakref.ref(item) for item in (state["w"].tensor, state["whole"], found.state["w"].tensor)]
        state.clear()
        del found
        assert alive(references) == []


def test_a_refused_target_goes(tmp_path, state):
    with neve.Checkpointer(tmp_path, tiers=["ram:?slots=2"]) as checkpointer:
        checkpointer.save(1, state).wait("ram")
        target = {"w": torch.zeros(5), "other": torch.zeros(7)}
        with pytest.raises(neve.Invalid):
            checkpointer.restore(into=target)
        references = watched(target)
        target.clear()
        assert alive(references) == []


@pytest.mark.parametrize("how", [neve.save, lambda state, path: neve.async_save(state, path).wait()], ids=["save", "async_save"])
@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_what_went_into_a_file_goes(tmp_path, state, how, name):
    if name.endswith("safetensors"):
        state = {"w": torch.ones(3, 4), "more": torch.ones(2)}
    how(state, tmp_path / name)
    references = watched(state)
    state.clear()
    assert alive(references) == []


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_what_came_out_of_a_file_goes(tmp_path, state, name):
    if name.endswith("safetensors"):
        state = {"w": torch.ones(3, 4), "more": torch.ones(2)}
    neve.save(state, tmp_path / name)
    loaded = neve.load(tmp_path / name)
    references = watched(loaded)
    del loaded
    assert alive(references) == []
