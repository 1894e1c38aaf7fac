"""`neve convert` of a step into torch's format: all that torch.save can write of a state, so that torch.load gives it back."""

import collections
import dataclasses
import enum
import subprocess

import neve
import numpy
import pytest
import torch
from child import COMMAND
from leaf_kinds_test import SAFE, Wide, facts, seeded
from torch_states import Point

pytestmark = pytest.mark.filterwarnings("ignore")

_OPAQUE_IN_A_STEP = [name for name in SAFE if name.startswith(("q", "nested", "typed", "untyped", "tensor and"))] + ["layout"]
_VALUES_ALONE = ["conjugated", "negated"]        # a step holds their values
_CLOSED = ["coo coalesced"]                      # and no gaps between rows, as its indices have


@dataclasses.dataclass
class Config:
    rate: float
    weight: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float


class Mode(enum.Flag):
    A = 1
    B = 2


class Kind(enum.Enum):
    A = 1


class Outer:
    Inner = collections.namedtuple("Inner", "x")


Outer.Inner.__qualname__ = "Outer.Inner"


def converted(tmp_path, state):
    """The step's conversion into x.pt: the command's result."""
    with neve.Checkpointer(tmp_path / "job", tiers=[f"file:{tmp_path}"], job="job") as ckpt:
        ckpt.save(1, state).wait("file")
    return subprocess.run([COMMAND, "convert", tmp_path / "job", tmp_path / "x.pt"], capture_output=True, text=True, timeout=120)


def crossed(tmp_path, state, weights_only=True):
    done = converted(tmp_path, state)
    assert done.returncode == 0, done.stderr
    return torch.load(tmp_path / "x.pt", weights_only=weights_only), done.stderr


@pytest.mark.parametrize("name", [name for name in SAFE if name not in _OPAQUE_IN_A_STEP])
def test_a_leaf_of_torch_is_what_torch_would_have_saved(tmp_path, name):
    leaf = seeded(SAFE[name])
    torch.save(leaf, tmp_path / "theirs.pt")
    wanted = torch.load(tmp_path / "theirs.pt", weights_only=True)
    back, _ = crossed(tmp_path, {"leaf": leaf, "w": torch.ones(2)})
    if name in _VALUES_ALONE:
        assert torch.equal(back["leaf"], wanted) and not back["leaf"].is_conj() and not back["leaf"].is_neg()
    elif name in _CLOSED:
        again = torch.sparse_coo_tensor(wanted._indices().contiguous(), wanted._values(), wanted.shape, is_coalesced=True)
        assert facts(back["leaf"]) == facts(again)
    else:
        assert facts(back["leaf"]) == facts(wanted)


def test_a_gradient_that_torch_drops_is_told(tmp_path):
    back, said = crossed(tmp_path, {"leaf": SAFE["coo that asks for gradients"]()})
    assert "1 sparse tensors required gradients" in said and not back["leaf"].requires_grad


def test_parameters_of_every_layout_and_with_attributes(tmp_path):
    tagged = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    tagged.tensor_model_parallel, tagged.twin = True, torch.arange(3.0)
    plain = torch.ones(3)
    plain.note = {"a": [1, None]}
    state = {"tagged": tagged, "again": tagged, "plain": plain, "sparse": torch.nn.Parameter(torch.eye(3).to_sparse()),
             "csr": torch.nn.Parameter(torch.eye(3).to_sparse_csr()), "meta": torch.nn.Parameter(torch.empty(2, device="meta"))}
    back, _ = crossed(tmp_path, state)
    assert facts(back) == facts(state) and back["again"] is back["tagged"]


def test_classes_are_named_as_torch_names_them(tmp_path):
    state = {"point": Point(torch.ones(1), [torch.arange(2.0)]), "wide": Wide(1, 2, 3, 4, torch.ones(1)),
             "default": collections.defaultdict(list, a=[torch.ones(1)]), "none": collections.defaultdict(None, b=torch.ones(1)),
             "config": Config(0.5, torch.arange(3.0)), "frozen": [Frozen(0.25), torch.ones(1)],
             "alone": {"point": Point(1, 2), "config": Config(0.5, None), "mode": Mode.A | Mode.B}}
    back, _ = crossed(tmp_path, state, weights_only=False)
    assert facts(back["config"].weight) == facts(state["config"].weight) and back["config"].rate == 0.5
    assert back["frozen"][0] == Frozen(0.25) and back["alone"] == state["alone"]
    for name in ("point", "wide", "default", "none"):
        assert facts(back[name]) == facts(state[name]), name


def test_objects_are_written_as_their_state_dict(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    back, said = crossed(tmp_path, {"model": model, "optimizer": optimizer, "step": 1})
    assert "2 objects were written as their state_dict" in said
    assert facts(dict(back["model"])) == facts(dict(model.state_dict()))
    torch.optim.AdamW(torch.nn.Linear(3, 2).parameters()).load_state_dict(back["optimizer"])
    assert facts(back["optimizer"]["state"][0]["exp_avg"]) == facts(optimizer.state_dict()["state"][0]["exp_avg"])


@pytest.mark.parametrize("leaf, said", [
    (Outer.Inner(torch.ones(1)), "torch_convert_test.Outer.Inner"), (numpy.random.default_rng(1), "made of parts"),
    (numpy.float32(1), "NumPy scalar"), (Kind.A, "torch_convert_test.Kind"), (SAFE["qint8"](), "torch")],
    ids=["class in a class", "generator", "scalar", "enum", "quantized"])
def test_what_a_pickle_of_torch_cannot_say_is_refused_by_name(tmp_path, leaf, said):
    refused = converted(tmp_path, {"w": torch.ones(1), "leaf": leaf})
    assert refused.returncode == 3 and '"leaf"' in refused.stderr and said in refused.stderr, refused.stderr
    assert not (tmp_path / "x.pt").exists()


@pytest.mark.parametrize("number", [2**64, -((1 << 1999) - 1), 1 << 1999, 10**4096, -(10**9000)],
                         ids=lambda number: f"{'-' if number < 0 else ''}{number.bit_length()} bits")
def test_a_whole_number_of_any_size_has_one_form(tmp_path, number):
    state = {"n": number, "keys": {number: torch.ones(1)}}
    torch.save(state, tmp_path / "torch.pt")
    neve.save(state, tmp_path / "neve.pt")
    with neve.Checkpointer(tmp_path / "step") as checkpointer:
        checkpointer.save(1, state).wait("file", 60)
        step = checkpointer.restore().state
    for name in ("torch.pt", "neve.pt", "step"):
        loaded = step if name == "step" else neve.load(tmp_path / name)
        assert loaded["n"] == number and list(loaded["keys"]) == [number]
        assert subprocess.run([COMMAND, "diff", tmp_path / "torch.pt", tmp_path / name], check=False).returncode == 0
    assert subprocess.run([COMMAND, "convert", tmp_path / "step", tmp_path / "back.pt"], check=False).returncode == 0
    assert torch.load(tmp_path / "back.pt", weights_only=False)["n"] == number   # weights_only knows none of over 255 bytes
