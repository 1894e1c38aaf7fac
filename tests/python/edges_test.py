"""Values at the edges of what can be described: no save of them may be refused wrongly, or lost when it is read."""

import collections
import dataclasses
import errno
from collections import OrderedDict

import numpy
import pytest
import torch
from same import assert_same

import neve
from neve import _values
from neve._describe import Describer


@dataclasses.dataclass
class Output(OrderedDict):
    logits: object = None


@dataclasses.dataclass
class Failure(Exception):
    code: int = 0


class Slotted:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class Child(Slotted):
    seen: int = 1


@dataclasses.dataclass
class Link:
    next: object = None


Pair = collections.namedtuple("Pair", "left right")


class Named(Pair):
    """A namedtuple whose instances may have attributes."""


def output():
    made = Output(3)
    made["extra"] = 5
    return made


def child():
    made = Child()
    made.hidden = 9
    return made


def named(left):
    made = Named(left, 2)
    made.note = "kept"
    return made


@pytest.mark.filterwarnings("ignore:neve pickles")
@pytest.mark.parametrize("weight", [1, torch.ones(2)], ids=["plain", "with a tensor"])
def test_classes_that_hold_more_than_their_fields_are_pickled_whole(around, weight):
    back = around({"o": output(), "c": child(), "n": named(weight), "e": Failure(4), "w": torch.ones(2)}, weights_only=False)
    assert type(back["o"]) is Output and back["o"].logits == 3 and back["o"]["extra"] == 5
    assert back["c"].hidden == 9 and back["n"].note == "kept" and back["e"].code == 4


@pytest.mark.filterwarnings("ignore:neve pickles")
def test_a_namedtuple_that_gets_an_attribute_is_a_changed_structure():
    describer = Describer()
    state = {"n": Named(torch.ones(1), 2)}
    assert not describer.capture(state).structure.opaque
    state["n"].note = "new"
    assert describer.capture(state).structure.opaque == ["n (" + _values.class_name(Named) + ")"]


def test_classes_without_more_than_their_fields_need_no_pickle():
    assert not Describer().capture({"c": Child(), "n": Named(1, 2), "l": Link(3), "w": torch.ones(1)}).structure.opaque


LONG = {"three bytes a character": "\u6a21" * 1024, "four": "\U0001f600" * 1000, "surrogates": "\ud800" * 1000, "plain": "x" * 4094,
        "quotes": "'" * 1024, "bytes": b"\xff" * 3060, "digits": 10**5000, "negative digits": -(10**4095)}


@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
def test_text_and_digits_about_the_longest_stay_what_they_are(around, value):
    assert_same(around({"w": torch.ones(2), "v": value, "l": [value]}), {"w": torch.ones(2), "v": value, "l": [value]})


@pytest.mark.parametrize("length", [511, 512, 513, 682, 683, 767, 768, 1023, 1024, 1025, 3069, 3070, 4093, 4094, 4095, 4096, 4097])
def test_a_string_of_any_length_is_described(length):
    for character in ("x", "'", "\u00e9", "\u6a21", "\U0001f600"):
        Describer().capture({"w": torch.ones(1), "s": character * length, "b": b"x" * length, "n": 10**length})


def test_names_that_are_ours_are_the_users_too(around):
    state = {"neve.blob.0": torch.ones(1), "neve": {"base": {"1": torch.zeros(2)}}, "neve.blob.x": torch.ones(3), "long": "y" * 9000,
             "self": torch.arange(5.0).unfold(0, 3, 1)}
    assert_same(around(state), state)


def test_an_int_of_very_many_digits_is_a_key(around):
    state = {10**5000: torch.ones(1), (10**5000, 1): 2, "n": {-(10**5000): 1}}
    back = around(state)
    assert list(back) == list(state) and back["n"] == state["n"] and torch.equal(back[10**5000], torch.ones(1))


@pytest.mark.parametrize("value", [numpy.bytes_(b"a\0"), numpy.str_("a\0\0"), numpy.str_("\ud800\0"), numpy.bytes_(b"\0"),
                                   numpy.str_(""), numpy.bytes_(b"")], ids=repr)
def test_a_numpy_scalar_keeps_the_zeros_at_its_end(value):
    back = _values.decode(_values.encode(value))
    assert type(back) is type(value) and back.tobytes() == value.tobytes() and len(back) == len(value)


@pytest.mark.filterwarnings("ignore:neve pickles")
def test_a_numpy_void_is_not_lost(around):
    assert around({"v": numpy.void(b"abc"), "w": torch.ones(1)}, weights_only=False)["v"].tobytes() == b"abc"


def nested(depth, innermost, wrap=lambda inner: [inner]):
    for _ in range(depth):
        innermost = wrap(innermost)
    return innermost


WRAPS = {"list": lambda inner: [inner], "tuple": lambda inner: (inner,), "dict": lambda inner: {"k": inner}}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_a_state_may_nest_to_the_limit_and_is_refused_by_name_beyond(around, wrap):
    for leaf in (1, torch.ones(1)):
        state = nested(_values.DEPTH_MAX - 1, leaf, wrap)
        assert_same(around({"deep": state}), {"deep": state})
        with pytest.raises(neve.Invalid, match=r"'deep.* is nested too deep: .*128 deep"):
            Describer().capture({"deep": wrap(state)})


def test_values_that_nest_to_the_limit_are_decoded():
    for wrap in (*WRAPS.values(), lambda inner: frozenset([inner])):
        value = nested(_values.DEPTH_MAX, 1, wrap)
        assert _values.decode(_values.encode(value)) == value
        with pytest.raises(_values.TooDeep):
            _values.encode(wrap(value))


def test_a_value_that_gets_too_deep_later_is_refused_by_name():
    describer = Describer()
    describer.capture({"w": torch.ones(1), "v": [1]})
    with pytest.raises(neve.Invalid, match="'v.*nested too deep"):
        describer.capture({"w": torch.ones(1), "v": nested(200, 1)})


def test_a_tensor_with_attributes_may_become_anything(around):
    weight = torch.ones(2)
    weight.flag = 1
    describer = Describer()
    describer.capture({"a": weight})
    for other in (None, 3, "s", [torch.ones(1)], numpy.ones(2)):
        describer.capture({"a": other})
        describer.capture({"a": weight})


def test_a_copied_object_in_two_places_comes_back_as_one(around, job):
    """Lazily conjugated and negated tensors, and arrays whose strides cannot be stored, are saved by copies of their values."""
    z = torch.tensor([1 + 2j, 3 - 4j])
    lazy, negated, backwards = z.conj(), z.conj().imag, numpy.arange(4)[::-1]
    found = around({"a": lazy, "b": lazy, "c": negated, "d": [negated], "e": backwards, "f": backwards, "g": z.conj()})
    assert found["a"] is found["b"] and found["c"] is found["d"][0] and found["e"] is found["f"]
    assert found["a"] is not found["g"] and torch.equal(found["a"], lazy.resolve_conj()) and torch.equal(found["a"], found["g"])
    assert torch.equal(found["c"], negated.resolve_neg()) and found["e"].tolist() == [3, 2, 1, 0]
    with job(name="steps") as checkpointer:   # found again at each save of the structure, and told apart when it is so no more
        checkpointer.save(1, {"a": lazy, "b": lazy, "e": backwards, "f": backwards}).wait("done", 60)
        other = (z * 2).conj()
        checkpointer.save(2, {"a": lazy, "b": other, "e": backwards, "f": numpy.arange(4)[::-1]}).wait("done", 60)
        checkpointer.save(3, {"a": other, "b": other, "e": backwards, "f": backwards}).wait("done", 60)
        second, third = checkpointer.restore(step=2).state, checkpointer.restore(step=3).state
    assert second["a"] is not second["b"] and torch.equal(second["b"], other.resolve_conj()) and second["e"] is not second["f"]
    assert third["a"] is third["b"] and torch.equal(third["a"], other.resolve_conj()) and third["e"] is third["f"]


def test_containers_in_two_places_come_back_as_copies(around):
    inner = {"w": torch.ones(2), "n": 1}
    found = around({"a": inner, "b": inner})
    assert found["a"] is not found["b"] and found["a"]["w"] is found["b"]["w"]


def test_a_ram_folder_that_cannot_be_made_is_unavailable(job, tmp_path, monkeypatch):
    monkeypatch.setenv("NEVE_RAM_DIR", str(tmp_path / "no" / "such" / "dir"))
    with pytest.raises(neve.Unavailable, match="NEVE_RAM_DIR") as raised:
        job(name="ram").save(1, {"w": torch.ones(2)}).wait("done", 60)
    assert raised.value.errno == errno.ENOENT
