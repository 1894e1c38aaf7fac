"""Names of tensors: keys come back from their escapes, names are unique, patterns select."""

import numpy
import pytest

import neve
from neve import _names

KEYS = ["a", "a.b", "a/b", "", "~", "~e", "~~x", "é", "日本", "a\nb", "\x7f", "\ud800", "\ud83d\ude00", "x" * 100_000, 1, -1,
        10**5000, True, False, None, 1.5, -0.0, float("inf"), b"", b"\xff", (2, "x"), (), numpy.int64(3), frozenset({1})]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: type(key).__name__)
def test_PT_27_a_key_comes_back_from_its_escape(key):
    escaped = _names.escape(key)
    back = _names.unescape(escaped)
    assert type(back) is type(key) and back == key
    escaped.encode("utf-8")
    assert escaped and (escaped[0] == "~" or escaped == key)


def test_an_escape_never_equals_that_of_another_key():
    assert len({_names.escape(key) for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize("component", ["", "~", "~x", "~i", "~i1.5", "~dzz", "~y=", "~y*", "~jAA", "~pAA", "~e1", "~t1", "~jMQ"])
def test_a_malformed_escape_is_damaged(component):
    with pytest.raises(neve.Damaged):
        _names.unescape(component)


def test_names_are_unique_and_reserved_ones_are_not_given():
    table = _names.NameTable()
    assert table.take("a.b") == ("a.b", True)
    assert table.take("a.b") == ("a.b~#2", False)
    assert table.take("a.b") == ("a.b~#3", False)
    assert table.take("__metadata__") == ("__metadata__~#2", False)
    assert table.take("neve.blob.0") == ("neve.blob.0~#2", False)


def test_paths_in_messages_read_like_code():
    assert _names.pretty_path(("a", "b", _names.Index(2), "lock")) == "a.b[2].lock"
    assert _names.pretty_path(("x.y", 1)) == "['x.y'][1]"
    assert _names.pretty_path(()) == "the state itself"


@pytest.mark.parametrize("pattern, name, selected", [
    ("model.*", "model.w", True), ("model", "model.w", True), ("model", "models.w", False), ("*.w", "a.b.w", True),
    ("opt", "model.opt", False), ("m?del.w", "model.w", True), ("model.w", "model.w", True)])
def test_patterns_select_names_and_all_below_them(pattern, name, selected):
    assert _names.glob_filter([pattern])(name) is selected


def test_no_pattern_selects_nothing():
    assert not _names.glob_filter([])("a")
