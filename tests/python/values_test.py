"""The values text: every kind of value comes back with its exact type and value, and what is malformed is refused."""

import collections
import dataclasses
import enum
import math
import random
import struct

import numpy
import pytest
import torch

import neve
from neve import _values


class Colour(enum.Enum):
    RED = 1


class Mode(enum.Flag):
    A = 1
    B = 2


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Config:
    width: int
    name: str = "x"


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float


Pair = collections.namedtuple("Pair", "left right")

VALUES = [
    None, True, False, 0, -5, 1 << 70, 10**5000, -(10**5000), 1.5, -0.0, math.inf, -math.inf, 5e-324, 1 + 2j,
    complex(math.nan, -0.0), "", "plain text", "it's", 'a "quote"', "back\\slash", "é\n\0", "\ud800", b"", b"\x00\xff",
    bytearray(b"yes"), [], [1, [2, []]], (), (1,), {}, {"a": 1, 2: (3,), None: {}}, collections.OrderedDict(b=1, a=2),
    collections.Counter({30: 2, 60: 1}), collections.Counter(), {"milestones": collections.Counter("aab")},
    set(), {1, "two"}, frozenset({b"x"}), numpy.float64(1e-3), numpy.float32("nan"), numpy.int8(-3), numpy.bool_(True),
    numpy.str_("añ"), numpy.bytes_(b"ab"), numpy.datetime64("2020-01-02"), numpy.complex64(1j), numpy.longdouble(1) / 3,
    torch.Size([2, 3]), torch.float32, torch.float8_e4m3fn, torch.device("cuda:3"), Colour.RED, Mode.A | Mode.B, Level.HIGH,
    Config(3), Config(4, "é"), Frozen(0.5), Pair(1, [2]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_comes_back_with_type_and_value(value):
    text = _values.encode(value)
    back = _values.decode(text)
    assert type(back) is type(value)
    assert back == value or _values.encode(back) == text


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_text_needs_no_escape_in_json(value):
    assert all(" " <= character <= "~" and character not in '"\\' for character in _values.encode(value))


@pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001])
def test_nan_keeps_its_bits(bits):
    value = struct.unpack(">d", struct.pack(">Q", bits))[0]
    back = _values.decode(_values.encode([value]))[0]
    assert struct.pack(">d", back) == struct.pack(">d", value)


def test_set_text_does_not_depend_on_iteration_order():
    assert _values.encode({"a", "b", "c"}) == _values.encode({"c", "b", "a"}) == "S('a''b''c')"


def test_examples_of_the_grammar():
    assert _values.encode([1, 0.5, None, True, "x", {"k": b"\xff"}]) == "[i1;d0x1.0000000000000p-1;nt'x'{'k'y_w;}]"


class NotKnown:
    pass


class SubDict(dict):
    pass


@pytest.mark.parametrize("value", [NotKnown(), SubDict(), torch.ones(1), numpy.ones(1), lambda: 0, type("T", (int,), {})(3)])
def test_what_is_no_value_is_refused(value):
    with pytest.raises(_values.NotValue):
        _values.encode([value])


def test_a_local_dataclass_is_no_value_for_no_reader_could_find_it():
    @dataclasses.dataclass
    class Local:
        a: int

    with pytest.raises(_values.NotValue):
        _values.encode(Local(1))


def test_a_dataclass_with_more_attributes_than_fields_is_no_value():
    config = Config(1)
    config.extra = 2
    with pytest.raises(_values.NotValue):
        _values.encode(config)


MALFORMED = ["", "q", "i12", "i1.5;", "ix;", "[i1;", "(", "{i1;}", "'abc", "dxx;", "x12;", "s_;", "yA;", "c i1;i2;", "Ei1;",
             "ci1;i2;", "N'f8'y;", "N'O'yAAAAAAAAAAA;", "N','y;", "N'f4,i4'yAAAAAAAAAAA;", "S([])",
             "{[]n}", "@i1;n", "Zi1;", "D'nowhere'", "i1;i2;", "]", "T"]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_text_is_damaged(text):
    with pytest.raises(neve.Damaged):
        _values.decode(text)


def test_deep_nesting_is_damaged_and_not_a_crash():
    with pytest.raises(neve.Damaged, match="nested"):
        _values.decode("[" * 100_000)


@pytest.mark.parametrize("text", ["@'nowhere.Class'{}", "@'os.system''ls'", "@'builtins.list'[]", "@'subprocess.Popen'('ls')",
                                  f"@'{__name__}.Colour''BLUE'", f"@'{__name__}.Config'{{'other'i1;}}",
                                  f"@'{__name__}.Pair'(i1;)", "T'no_such_dtype'"])
def test_a_class_that_is_not_what_it_must_be_is_refused(text):
    with pytest.raises(neve.UnsupportedOnLoad):
        _values.decode(text)


def test_a_class_is_never_imported(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(neve.UnsupportedOnLoad, match="colorsys.X"):
        _values.decode("@'colorsys.X'{}")
    assert "colorsys" not in sys.modules


def test_random_nested_values_come_back():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    leaves = [value for value in VALUES if not (isinstance(value, float) and value != value) and value == value]

    def make(depth):
        kind = generator.randrange(6) if depth < 4 else 0
        if kind in (1, 2):
            return [make(depth + 1) for _ in range(generator.randrange(5))]
        if kind == 3:
            return tuple(make(depth + 1) for _ in range(generator.randrange(5)))
        if kind == 4:
            return {f"k{index}": make(depth + 1) for index in range(generator.randrange(5))}
        return generator.choice(leaves)

    for _ in range(200):
        value = make(0)
        assert _values.encode(_values.decode(_values.encode(value))) == _values.encode(value)


def test_random_damage_is_damaged_or_another_value_but_never_another_error():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    text = _values.encode([value for value in VALUES if not isinstance(value, int) or abs(value) < 1 << 80])
    for _ in range(3000):
        place = generator.randrange(len(text))
        damaged = text[:place] + chr(generator.randrange(32, 127)) + text[place + generator.randrange(3):]
        try:
            _values.decode(damaged)
        except (neve.Damaged, neve.UnsupportedOnLoad):
            pass
