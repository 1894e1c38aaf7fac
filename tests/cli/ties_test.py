"""ST_02: one tensor object at two places of a state is two names for everybody who looks at it."""

import json

import neve as neve_library
import numpy
import pytest
import torch


@pytest.fixture(params=["pt", "safetensors", "job"])
def tied(request, tmp_path):
    """A place that holds one tensor object as `embed` and as `out.head`, and one that lacks the second."""
    w = torch.arange(6.0)
    places = []
    for name, state in (("tied", {"embed": w, "out": {"head": w}, "b": torch.ones(2)}), ("one", {"embed": w, "b": torch.ones(2)})):
        if request.param == "job":
            with neve_library.Checkpointer(tmp_path / name, tiers=[f"file:{tmp_path}"]) as checkpointer:
                checkpointer.save(1, state).wait(timeout=60)
            places.append(name)
        else:
            neve_library.save(state, tmp_path / f"{name}.{request.param}")
            places.append(f"{name}.{request.param}")
    return places


def test_ST_02_inspect_and_stats_show_both_names(neve, tied):
    shown = {tensor["name"]: tensor for tensor in neve("inspect", tied[0], "--json").json["tensors"]}
    assert set(shown) == {"embed", "out.head", "b"}
    assert shown["out.head"]["alias_of"] == "embed" and shown["embed"]["alias_of"] is None
    assert (shown["out.head"]["shape"], shown["out.head"]["offset"]) == ([6], shown["embed"]["offset"])
    stats = {tensor["name"]: tensor for tensor in neve("stats", tied[0], "--json").json["tensors"]}
    assert stats["out.head"] == dict(stats["embed"], name="out.head")


def test_ST_02_a_name_that_one_side_lacks_is_a_difference(neve, tied):
    answer = neve("diff", *tied, "--json")
    assert answer.code == 1 and not answer.json["equal"]
    assert (answer.json["only_a"], answer.json["only_b"], answer.json["changed"]) == (["out.head"], [], [])
    assert neve("diff", *reversed(tied), "--json").json["only_b"] == ["out.head"]
    assert neve("diff", tied[0], tied[0]).code == 0


def test_ST_02_a_target_without_a_tree_gets_every_name(neve, tied, tmp_path):
    answer = neve("convert", tied[0], "o.npz", "--json")
    assert answer.code == 0 and answer.json["tensors"] == 3
    with numpy.load(tmp_path / "o.npz") as arrays:
        assert set(arrays) == {"embed", "out.head", "b"} and (arrays["out.head"] == numpy.arange(6)).all()
    assert neve("convert", tied[0], "hf", "--to", "hf").code == 0
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {"embed", "out.head", "b"}
    assert neve("diff", tied[0], "o.npz").code == 0
    assert neve("convert", tied[0], "left.npz", "--drop", "out.head").code == 0
    with numpy.load(tmp_path / "left.npz") as arrays:
        assert set(arrays) == {"embed", "b"}


def test_ST_02_a_target_with_a_tree_keeps_it_one_object(neve, tied, tmp_path):
    for name in ("o.pt", "o.safetensors"):
        assert neve("convert", tied[0], name).code == 0
        state = neve_library.load(tmp_path / name)
        assert state["embed"] is state["out"]["head"], name
        assert neve("diff", tied[0], name).code == 0
