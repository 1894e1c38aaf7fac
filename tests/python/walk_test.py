"""Describing a state: what stays the same structure, what is noticed as a change, what is refused. Needs no library."""

import random
import threading
import types
import warnings
from collections import OrderedDict, defaultdict

import numpy
import pytest
import torch

import neve
from neve._describe import Describer


def tree(state):
    return Describer().capture(state).structure.tree


def names(state):
    return [spec.name for spec in Describer().capture(state).structure.specs]


def test_an_ordinary_state_costs_the_tree_nothing_for_each_tensor():
    state = {"model": {f"layer.{index}.weight": torch.zeros(2) for index in range(1000)}, "step": 1}
    assert tree(state) == '{"d":[["model",{"d":[1000]}],["step","v"]]}'


def test_a_subtree_without_tensors_is_one_value():
    assert tree({"a": torch.zeros(1), "b": {"c": [1, {"d": 2}]}}) == '{"d":[1,["b","v"]]}'
    assert tree({"a": [1, 2], "b": {}}) == '"v"'


def test_names_are_dotted_paths_and_list_places():
    assert names({"m": {"a.b": torch.zeros(1)}, "l": [torch.zeros(1), torch.ones(1)], 3: torch.zeros(1)}) == [
        "m.a.b", "l.0", "l.1", "~i3"]
    assert names(torch.zeros(1)) == ["~tensor"]


def test_PT_27_paths_that_would_clash_stay_two_tensors():
    assert names({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(2)}) == ["a.b", "a.b~#2"]
    assert names({"neve.blob.0": torch.zeros(1), "__metadata__": torch.zeros(1)}) == ["neve.blob.0~#2", "__metadata__~#2"]


def some_tensor(random):
    """One of the ordinary kinds as a rule, else one of those that something is to be said of."""
    tensor = torch.zeros(random.choice([(), (3,), (2, 3), (1, 4), (0, 2)]), dtype=random.choice([torch.float32, torch.int64, torch.bool]))
    odd = random.randrange(60)
    if odd < 30:
        return tensor
    if odd < 45:
        return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point() and random.random() < 0.5)
    if odd == 45:
        tensor.note = "kept"
    return {46: lambda: torch.zeros(2, dtype=torch.complex128), 47: lambda: torch.zeros(2, dtype=torch.complex64).conj(),
            48: lambda: torch.eye(3).to_sparse(), 49: lambda: torch.zeros(2, device="meta"), 50: lambda: torch.zeros(3, 4).t(),
            51: lambda: torch.zeros(1).expand(5), 52: lambda: torch.empty(0).set_(torch.zeros(8).untyped_storage(), 2, (1, 3), (7, 1)),
            53: lambda: numpy.zeros(3), 54: lambda: 7, 55: lambda: [torch.zeros(1), "x"], 56: lambda: "text",
            57: lambda: neve.Piece(torch.zeros(2), (4,), (2,))}.get(odd, lambda: tensor)()


@pytest.mark.parametrize("round", range(20))
def test_many_tensors_are_described_together_as_they_are_one_by_one(round, monkeypatch):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    source = random.Random(seed)
    things = [some_tensor(source) for _ in range(source.choice([7, 8, 40, 300, 900]))]
    things += source.sample(things, 3)     # the same objects again
    keys = [f"w{index}" for index in range(len(things))]
    for index, key in ((3, "neve.blob.1"), (5, 5), (6, "m.x")):
        keys[index] = key
    state = {"m": {"x": torch.zeros(1)}, "first": dict(zip(keys, things)), "list": things[:50], "m.x": torch.ones(1)}

    def described():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            capture = Describer().capture(state)
        structure = capture.structure
        specs = [(spec.name, spec.dtype, spec.shape, spec.strides, spec.part) for spec in structure.specs]
        return (structure.tree, specs, structure.misread, structure.opaque, structure.dropped, structure._torch_index,
                structure._references, capture._values)

    together = described()
    monkeypatch.setattr("neve._walk._FEW", 1 << 60)
    assert described() == together


def unchanged(describer, state):
    before = describer._structure
    return describer.capture(state).structure is before


def fresh():
    return {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3), "n": 1, "l": [torch.zeros(1), {"k": torch.zeros(1)}]}


SAME = {
    "a number": lambda s: s.update(n=2), "a number's type": lambda s: s.update(n=[1, "x"]),
    "another tensor object": lambda s: s.update(w=torch.ones(2, 3)), "values in place": lambda s: s["w"].add_(1),
}
OTHER = {
    "resize_": lambda s: s["b"].resize_(5), ".data": lambda s: setattr(s["w"], "data", torch.zeros(3, 2)),
    "t_": lambda s: s["w"].t_(), "set_": lambda s: s["b"].set_(torch.zeros(4)),
    "dtype": lambda s: s.update(b=torch.zeros(3, dtype=torch.int32)), "strides": lambda s: s.update(w=torch.zeros(3, 2).t()),
    "a key": lambda s: s.update(z=torch.zeros(1)), "a removed key": lambda s: s.pop("b"),
    "key order": lambda s: s.update(w=s.pop("w")),
    "a key's type": lambda s: s.update({numpy.str_("b"): s.pop("b")}), "an item": lambda s: s["l"].append(torch.zeros(1)),
    "a tuple for a list": lambda s: s.update(l=tuple(s["l"])),
    "an OrderedDict": lambda s: s["l"].__setitem__(1, OrderedDict(s["l"][1])),
    "a tensor for a number": lambda s: s.update(n=torch.zeros(1)), "a number for a tensor": lambda s: s.update(b=1),
    "requires_grad": lambda s: s["b"].requires_grad_(), "an attribute": lambda s: setattr(s["b"], "flag", True),
    "a Parameter": lambda s: s.update(b=torch.nn.Parameter(s["b"], requires_grad=False)),
    "now one object": lambda s: s["l"].__setitem__(0, s["b"]),
    "a lazy conjugate": lambda s: s.update(b=torch.zeros(3, dtype=torch.cfloat).conj().imag),
    "sparse": lambda s: s.update(b=torch.zeros(3).to_sparse()), "an array": lambda s: s.update(b=numpy.zeros(3, "f4")),
    "a tensor inside a value": lambda s: s.update(n=[1, torch.zeros(1)]), "a long value": lambda s: s.update(n="x" * 5000),
    "meta": lambda s: s.update(b=torch.zeros(3, device="meta")),
}


@pytest.mark.parametrize("change", SAME)
def test_the_structure_stays_when(change):
    state, describer = fresh(), Describer()
    describer.capture(state)
    SAME[change](state)
    assert unchanged(describer, state)


@pytest.mark.parametrize("change", OTHER)
def test_the_structure_changes_with(change):
    state, describer = fresh(), Describer()
    describer.capture(state)
    OTHER[change](state)
    assert not unchanged(describer, state)
    assert unchanged(describer, state)


def test_a_growing_list_of_numbers_does_not_change_the_structure():
    state, describer = {"w": torch.zeros(1), "losses": [0.5]}, Describer()
    describer.capture(state)
    changes = 0
    for index in range(3000):
        state["losses"].append(index / 7)
        changes += not unchanged(describer, state)
    assert changes == 1   # when it became a blob
    state["losses"] = []
    assert unchanged(describer, state)


def test_untying_is_noticed():
    tensor = torch.zeros(1)
    state, describer = {"a": tensor, "b": tensor}, Describer()
    describer.capture(state)
    state["b"] = torch.zeros(1)
    assert not unchanged(describer, state)


def test_ASY_02_no_tensor_is_kept_by_the_structure():
    import gc
    import weakref

    state, describer = {"w": torch.zeros(100)}, Describer()
    describer.capture(state)
    seen = weakref.ref(state["w"])
    state["w"] = torch.ones(100)
    gc.collect()
    assert seen() is None


def test_PT_10_an_unpicklable_leaf_is_named():
    for state, path in [({"w": torch.zeros(10), "f": lambda: 0}, "'f'"),
                        ({"a": {"b": [1, 2, {"lock": threading.Lock()}]}}, "'a.b[2].lock'"),
                        ({"o": types.SimpleNamespace(a=[types.SimpleNamespace(lock=threading.Lock())])}, "'o.a[0].lock'")]:
        with pytest.raises(neve.Unsupported) as caught:
            Describer().capture(state)
        assert path in str(caught.value) and isinstance(caught.value, TypeError)


def test_what_is_pickled_is_named_in_one_warning():
    state = {"w": torch.zeros(1), "o": types.SimpleNamespace(a=1), "p": [types.SimpleNamespace()]}
    describer = Describer()
    with pytest.warns(UserWarning, match=r"o \(types.SimpleNamespace\), p\[0\] \(types.SimpleNamespace\)") as caught:
        describer.capture(state)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describer.capture(state)


def test_PT_07_attributes_that_cannot_be_saved_are_named_in_one_warning():
    tensor = torch.ones(2)
    tensor.hook, tensor.flag = (lambda: 0), True
    with pytest.warns(UserWarning, match=r"w\.hook \(builtins.function\)"):
        capture = Describer().capture({"w": tensor})
    assert capture.structure.tree == '{"d":[["w",{"T":1,"py":"v"}]]}'


def test_a_cycle_is_refused_by_its_path():
    state = {"a": [torch.zeros(1)]}
    state["a"].append({"back": state["a"]})
    with pytest.raises(neve.Invalid, match=r"'a\[1\].back' contains itself"):
        Describer().capture(state)
    values = {"n": [1]}
    values["n"].append(values)
    with pytest.raises(neve.Invalid, match=r"'n\[1\]' contains itself"):
        Describer().capture(values)


def test_nesting_too_deep_is_refused():
    state = []
    for _ in range(100_000):
        state = [state]
    with pytest.raises(neve.Invalid, match="too deep"):
        Describer().capture(state)
    while state:   # taken apart by hand: the interpreter's own way is recursive
        state = state.pop()


def test_the_same_object_twice_is_no_cycle():
    shared = {"t": torch.zeros(1), "n": 1}
    assert tree([shared, shared]) == '{"l":[{"d":[1,["n","v"]]},{"d":[["t",{"r":"0.t"}],["n","v"]]}]}'


def test_a_defaultdict_keeps_its_kind_and_an_odd_factory_is_pickled():
    assert '"t":"D:list"' in tree(defaultdict(list, a=torch.zeros(1)))


@pytest.mark.parametrize("state, what", [
    ({"c": torch.zeros(1, dtype=torch.complex128)}, "complex128"), ({1: torch.zeros(1)}, "the key 1 is no string"),
    ({"s": torch.zeros(2).to_sparse()}, "sparse"), ({"m": torch.zeros(2, device="meta")}, "meta"),
    ({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)}, "taken"), ({"d": numpy.zeros(2, ">f4")}, ">f4")])
def test_what_plain_readers_would_misread_is_noted(state, what):
    assert what in Describer().capture(state).structure.misread[0]


def test_subclasses_and_wrapped_tensors_are_not_taken_for_plain_ones():
    class Mine(torch.Tensor):
        pass

    with pytest.raises(neve.Unsupported):   # a local class cannot be pickled
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Describer().capture({"w": torch.zeros(1).as_subclass(Mine)})


def test_a_save_after_the_first_looks_at_each_tensor_in_bulk():
    """Counted in calls, not in time: nothing of Python's runs once for each tensor of a plain dict."""
    import sys

    state, describer = {"m": {f"k{index}": torch.zeros(1) for index in range(2000)}}, Describer()
    describer.capture(state)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        describer.capture(state)
    finally:
        sys.setprofile(None)
    assert calls < 200
