"""Values text: how numbers, short strings and what is built of them stand in an image's `neve.values`.

Every character is printable ASCII and none needs an escape in JSON, so the text's length is its length in the file:

    n t f                None, True, False
    i<decimal>;          int                       d<float.hex()>;  float         x<16 hex>;  a NaN, by its bits
    h<hexadecimal>;      an int of many digits
    c<token><token>      complex: two of d or x    'text'           str, plain    s<base64url>;  any other str
    y<base64url>;        bytes                     Y<base64url>;    bytearray
    [..] (..)            list, tuple               S(..) F(..)      set, frozenset
    {kv..} E{kv..} C{kv..}  dict, OrderedDict, collections.Counter   Z(..)   torch.Size
    N'dtype'y<b64>;      NumPy scalar              T'float32' D'cpu'  torch.dtype, torch.device
    @'module.Class'v     Enum (v its name, or number), dataclass (v a dict of its fields), namedtuple (v a tuple)

Types are exact: a subclass of one of these is no value. The grammar is part of docs/format.md.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import re
import struct
import sys
import types
import typing
from collections import Counter, OrderedDict
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _tensors
from .errors import Damaged, Error, Exhausted, UnsupportedOnLoad

_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*").fullmatch  # printable ASCII without ' " and backslash
DEPTH_MAX = 128   # values nest at most so deep: kValuesDepthMax of src/format/values.h
_INT_DIGITS_MAX = 640   # the interpreter never refuses so few; beyond, it does what it was told (sys.set_int_max_str_digits)
_DECIMAL_DIGITS_MAX = 4096   # reading them takes time by their square: kDecimalDigitsMax of src/format/values.h

Resolve = Optional[Callable[[str], type]]


class NotValue(Exception):
    """The object is no value: a tensor, an object with state, or of a class that values text does not know."""


class TooDeep(NotValue):
    """Nested deeper than values text may be."""


def is_short_int(value: int) -> bool:
    """Whether the interpreter converts it to decimal, however it is configured."""
    return value.bit_length() < 2_000


def int_value(text: str) -> int:
    """The number that a decimal text stands for; raises ValueError."""
    if not re.fullmatch(r"-?[0-9]+", text):
        raise ValueError("not a decimal number")
    if len(text) > _DECIMAL_DIGITS_MAX:
        raise ValueError(f"a decimal number of {len(text)} digits, over the limit of {_DECIMAL_DIGITS_MAX}")
    if len(text) < _INT_DIGITS_MAX:
        return int(text)
    import decimal

    with decimal.localcontext() as context:
        context.prec = len(text) + 1
        return int(decimal.Decimal(text))


def class_name(kind: type) -> str:
    """The qualified name by which a class stands in an image."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_namedtuple(kind: type) -> bool:
    """Whether `kind` is a class made by collections.namedtuple or typing.NamedTuple."""
    fields = getattr(kind, "_fields", None)
    return issubclass(kind, tuple) and isinstance(fields, tuple) and callable(getattr(kind, "_make", None))


@functools.lru_cache(maxsize=4096)
def is_plain_dataclass(kind: type) -> bool:
    """Whether its fields are all that an instance holds: a dataclass without a built-in type (dict, Exception) below it."""
    if not dataclasses.is_dataclass(kind):
        return False
    return not any("__new__" in vars(base) and isinstance(vars(base)["__new__"], types.BuiltinFunctionType)
                   and base is not typing.Generic for base in kind.__mro__ if base is not object)


@functools.lru_cache(maxsize=4096)
def _other_slots(kind: type) -> Tuple[Any, ...]:
    """Slots of the class that are no fields."""
    names = {field.name for field in dataclasses.fields(kind)}
    return tuple(slot for base in kind.__mro__ for name, slot in vars(base).items()
                 if isinstance(slot, types.MemberDescriptorType) and name not in names)


def _is_set(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def is_resolvable(kind: type) -> bool:
    """Whether a reader can find the class again by its name."""
    return find_class(class_name(kind)) is kind


def find_class(name: str) -> Optional[type]:
    """The class of that qualified name among the modules already imported; nothing is imported."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:count]))
        if found is None:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    return None


# ---- Encoding ----

Parts = List[str]


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _float_text(value: float) -> str:
    return f"d{value.hex()};" if value == value else f"x{struct.pack('>d', value).hex()};"


def _str_text(value: str) -> str:
    if _PLAIN(value):
        return f"'{value}'"
    return f"s{_base64(value.encode('utf-8', 'surrogatepass'))};"


def _put_items(items: Any, parts: Parts, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise TooDeep(f"nested more than {DEPTH_MAX} deep")
    put = parts.append
    encoders = _ENCODERS
    for item in items:
        kind = type(item)
        if kind is int:
            put(f"i{item};" if -_SHORT < item < _SHORT else _int_token(item))
        elif kind is float:
            put(_float_text(item))
        elif kind is str:
            put(_str_text(item))
        else:
            encoder = encoders.get(kind)
            if encoder is not None:
                encoder(item, parts, depth)
            else:
                _put_other(item, kind, parts, depth)


_SHORT = 1 << 64


def _int_token(value: int) -> str:
    """In hexadecimal where it is long: writing and reading decimal digits takes time by their square."""
    return f"i{value};" if is_short_int(value) else f"h{value:x};"


def _put_dict(value: Dict[Any, Any], parts: Parts, depth: int) -> None:
    parts.append("{")
    for pair in value.items():
        _put_items(pair, parts, depth + 1)
    parts.append("}")


def _put_ordered(value: "OrderedDict[Any, Any]", parts: Parts, depth: int) -> None:
    if value.__dict__:
        raise NotValue(value)  # attributes, such as _metadata, need a node of their own
    parts.append("E")
    _put_dict(value, parts, depth)


def _put_counter(value: "Counter[Any]", parts: Parts, depth: int) -> None:
    if value.__dict__:
        raise NotValue(value)
    parts.append("C")
    _put_dict(value, parts, depth)


def _put_bracketed(opening: str, closing: str) -> Callable[[Any, Parts, int], None]:
    def put(value: Any, parts: Parts, depth: int) -> None:
        parts.append(opening)
        _put_items(value, parts, depth + 1)
        parts.append(closing)

    return put


def _put_set(opening: str) -> Callable[[Any, Parts, int], None]:
    def put(value: Any, parts: Parts, depth: int) -> None:
        # Sorted, for the order of a set of strings differs from process to process.
        parts.append(opening)
        parts.extend(sorted(encode(item, depth + 1) for item in value))
        parts.append(")")

    return put


_ENCODERS: Dict[type, Callable[[Any, Parts, int], None]] = {
    type(None): lambda value, parts, depth: parts.append("n"),
    bool: lambda value, parts, depth: parts.append("t" if value else "f"),
    int: lambda value, parts, depth: parts.append(_int_token(value)),
    float: lambda value, parts, depth: parts.append(_float_text(value)),
    complex: lambda value, parts, depth: parts.append(f"c{_float_text(value.real)}{_float_text(value.imag)}"),
    str: lambda value, parts, depth: parts.append(_str_text(value)),
    bytes: lambda value, parts, depth: parts.append(f"y{_base64(value)};"),
    bytearray: lambda value, parts, depth: parts.append(f"Y{_base64(bytes(value))};"),
    list: _put_bracketed("[", "]"),
    tuple: _put_bracketed("(", ")"),
    dict: _put_dict,
    OrderedDict: _put_ordered,
    Counter: _put_counter,
    set: _put_set("S("),
    frozenset: _put_set("F("),
}


def _put_other(value: Any, kind: type, parts: Parts, depth: int) -> None:
    """Values whose types are not built in: torch's, NumPy's, enums, dataclasses and namedtuples."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Size"):
        if kind is torch.Size:
            parts.append("Z(")
            _put_items(value, parts, depth + 1)
            parts.append(")")
            return
        if kind is torch.dtype or kind is torch.device:
            letter = "T" if kind is torch.dtype else "D"
            parts.append(f"{letter}'{str(value)[6:] if letter == 'T' else value}'")
            return
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "generic") and issubclass(kind, numpy.generic):
        dtype = value.dtype
        if dtype.kind in "biufcSUMm" and kind.__module__ == "numpy":
            parts.append(f"N'{dtype.str}'y{_base64(value.tobytes()[:dtype.itemsize])};")
            return
        raise NotValue(value)
    if issubclass(kind, enum.Enum):
        content: Any = value.value if issubclass(kind, enum.Flag) else value.name
    elif is_namedtuple(kind) and not getattr(value, "__dict__", None):
        content = tuple(value)
    elif is_plain_dataclass(kind):
        content = dataclass_fields(value)
    else:
        raise NotValue(value)
    name = class_name(kind)
    if not _PLAIN(name) or not is_resolvable(kind):
        raise NotValue(value)
    parts.append(f"@'{name}'")
    _put_items((content,), parts, depth + 1)


def dataclass_fields(value: Any) -> Dict[str, Any]:
    """The fields that the instance has, in order. Raises :class:`NotValue` for an instance that holds more than them."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}
    extra = getattr(value, "__dict__", {}).keys() - fields.keys()
    if extra or any(_is_set(slot, value) for slot in _other_slots(type(value))):
        raise NotValue(value)
    return fields


def encode(value: Any, depth: int = 0) -> str:
    """The values text of one value, which stands `depth` containers deep. Raises :class:`NotValue`, and :class:`TooDeep` also
    for one that contains itself."""
    parts: Parts = []
    _put_items((value,), parts, depth)
    return "".join(parts)


# ---- Decoding ----

_TOKEN = re.compile(
    r"'([^'\"\\]*)'|i(-?[0-9]+);|d([^;]{1,40});|x([0-9a-f]{16});|([sy])([A-Za-z0-9_-]*);|([ntf])|Y([A-Za-z0-9_-]*);"
    r"|h(-?[0-9a-f]+);")
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_CONSTANT = {"n": None, "t": True, "f": False}


class KeyCheck:
    """Refuses keys that were made to have one hash: to put n of them into a dict takes n * n comparisons, during which nothing
    interrupts the interpreter. One object for all of a checkpoint, so that many small dicts are bounded too.
    """

    COMPARISONS_MAX = 10_000_000

    def __init__(self, trusted: bool = False) -> None:
        self._left = None if trusted else self.COMPARISONS_MAX

    def check(self, keys: Sequence[Any]) -> None:
        """Raises :class:`neve.UnsupportedOnLoad`."""
        if len(keys) <= 64 or self._left is None or set(map(type, keys)) <= {str, bytes}:
            return   # the hashes of text cannot be foreseen
        self._left -= sum(count * count - count for count in Counter(map(hash, keys)).values()) // 2
        if self._left < 0:
            raise UnsupportedOnLoad(
                "the checkpoint holds very many keys of one hash, which would take forever to put into a dict: pass "
                "weights_only=False if you trust it")


class Decoder:
    """Reads values one after another from a text. Raises :class:`neve.Damaged` for text that is not well formed, and
    :class:`neve.UnsupportedOnLoad` for a class that this process has not imported.

    resolve: finds a class by its qualified name; the default looks among the modules already imported.
    """

    def __init__(self, text: str, resolve: Resolve = None, keys: Optional[KeyCheck] = None) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._resolve = resolve or known_class
        self._keys = keys or KeyCheck()

    @property
    def at_end(self) -> bool:
        """Whether nothing but padding is left."""
        return not self._text[self._at:self._at + 4096].strip(" ") and not self._text[self._at:].strip(" ")

    def next(self) -> Any:
        """The next value."""
        try:
            return self._read()
        except RecursionError:
            raise self._damaged("nested too deep") from None
        except Error:
            raise
        except MemoryError:
            raise Exhausted("no memory for the values of the checkpoint") from None
        except Exception as error:   # also what a class of an imported module raises
            raise self._damaged(f"{type(error).__name__}: {error}") from None

    def _damaged(self, why: str) -> Damaged:
        shown = self._text[self._at:self._at + 24]
        return Damaged(f"the values text is malformed at byte {self._at} ({shown!r}): {why}")

    def _read(self) -> Any:
        text, at = self._text, self._at
        match = _TOKEN.match(text, at)
        if match is not None:
            self._at = match.end()
            group = match.lastindex
            if group == 2:
                return int_value(match[2])
            if group == 1:
                return match[1]
            if group == 3:
                return float.fromhex(match[3])
            if group == 7:
                return _CONSTANT[match[7]]
            if group == 6:
                data = _unbase64(match[6])
                return data if match[5] == "y" else data.decode("utf-8", "surrogatepass")
            if group == 4:
                return struct.unpack(">d", bytes.fromhex(match[4]))[0]
            if group == 9:
                return int(match[9], 16)
            return bytearray(_unbase64(match[8]))
        kind = text[at:at + 1]
        self._at = at + 1
        if kind in ("[", "("):
            items = self._items(_CLOSING[kind])
            return items if kind == "[" else tuple(items)
        if kind == "{":
            return self._mapping(dict)
        composite = _COMPOSITE.get(kind)
        if composite is None:
            self._at = at
            raise self._damaged("no value begins so" if kind.strip(" ") else "a value is missing")
        return composite(self)

    def _items(self, closing: str) -> List[Any]:
        self._descend()
        items: List[Any] = []
        text, read = self._text, self._read
        while text[self._at:self._at + 1] != closing:
            items.append(read())
        self._at += 1
        self._depth -= 1
        return items

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._damaged(f"nested more than {DEPTH_MAX} deep")

    def _mapping(self, kind: Any) -> Any:
        items = self._items("}")
        if len(items) % 2:
            raise self._damaged("a key without a value")
        self._keys.check(items[::2])
        made = kind(zip(items[::2], items[1::2]))
        if len(made) * 2 != len(items):
            raise self._damaged("a dictionary has one key twice")
        return made

    def _members(self, kind: Any) -> Any:
        items = self._open("(")
        self._keys.check(items)
        made = kind(items)
        if len(made) != len(items):
            raise self._damaged("a set has one member twice")
        return made

    def _open(self, bracket: str) -> List[Any]:
        if self._text[self._at:self._at + 1] != bracket:
            raise self._damaged(f"{bracket!r} was expected")
        self._at += 1
        return self._items(_CLOSING[bracket])

    def _string(self) -> str:
        value = self._read()
        if type(value) is not str:
            raise self._damaged("a string was expected")
        return value

    def _open_mapping(self, kind: Any) -> Any:
        if self._text[self._at:self._at + 1] != "{":
            raise self._damaged("'{' was expected")
        self._at += 1
        return self._mapping(kind)

    def _ordered(self) -> "OrderedDict[Any, Any]":
        made: "OrderedDict[Any, Any]" = self._open_mapping(OrderedDict)
        return made

    def _counter(self) -> "Counter[Any]":
        return Counter(self._open_mapping(dict))   # of a dict it takes the counts, of pairs it would count the pairs

    def _complex(self) -> complex:
        real, imaginary = self._read(), self._read()
        if type(real) is not float or type(imaginary) is not float:
            raise self._damaged("two floats were expected")
        return complex(real, imaginary)

    def _numpy(self) -> Any:
        import numpy

        dtype = _tensors.array_dtype(self._string())
        data = self._read()
        if type(data) is not bytes or dtype.hasobject or len(data) != dtype.itemsize:
            raise self._damaged("a NumPy scalar does not have the bytes of its dtype")
        if dtype.kind == "S":   # from an array, it would lose the zeros at its end
            return dtype.type(data)
        if dtype.kind == "U":
            order = "utf-32-be" if dtype.str[0] == ">" else "utf-32-le"
            return dtype.type(data.decode(order, "surrogatepass"))
        return numpy.frombuffer(data, dtype)[0]

    def _size(self) -> Any:
        import torch

        return torch.Size(self._open("("))

    def _dtype(self) -> Any:
        import torch

        name = self._string()
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise UnsupportedOnLoad(f"this torch ({torch.__version__}) has no dtype {name!r}")
        return dtype

    def _device(self) -> Any:
        import torch

        return torch.device(self._string())

    def _instance(self) -> Any:
        kind = self._resolve(self._string())
        self._descend()
        content = self._read()
        self._depth -= 1
        return make_instance(kind, content)


_COMPOSITE: Dict[str, Callable[[Decoder], Any]] = {
    "E": Decoder._ordered,
    "C": Decoder._counter,
    "c": Decoder._complex,
    "N": Decoder._numpy,
    "Z": Decoder._size,
    "T": Decoder._dtype,
    "D": Decoder._device,
    "@": Decoder._instance,
    "S": lambda decoder: decoder._members(set),
    "F": lambda decoder: decoder._members(frozenset),
}


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def known_class(name: str) -> type:
    """The class of that name among the modules already imported; raises :class:`neve.UnsupportedOnLoad`."""
    kind = find_class(name)
    if kind is None:
        raise UnsupportedOnLoad(
            f"the checkpoint holds a value of class {name}, which this process has not imported: import its module first, "
            "or pass weights_only=False to let neve import it")
    return kind


def importing_class(name: str) -> type:
    """The same, importing its module where needed (for weights_only=False)."""
    kind = find_class(name)
    parts = name.split(".")
    import importlib

    for count in range(len(parts) - 1, 0, -1):
        if kind is not None:
            break
        try:
            importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        kind = find_class(name)
    if kind is None:
        raise UnsupportedOnLoad(f"the checkpoint holds a value of class {name}, which cannot be imported here")
    return kind


def make_instance(kind: type, content: Any) -> Any:
    """An Enum member, dataclass or namedtuple from its content. No code of the class runs but an Enum's look-up."""
    name = class_name(kind)
    if issubclass(kind, enum.Enum):
        try:
            return kind[content] if type(content) is str else kind(content)
        except (KeyError, ValueError):
            raise UnsupportedOnLoad(f"the Enum {name} has no member {content!r} here") from None
    if is_namedtuple(kind) and type(content) is tuple:
        if len(content) != len(kind._fields):  # type: ignore[attr-defined]
            raise UnsupportedOnLoad(f"the namedtuple {name} has other fields here than in the checkpoint")
        made: Any = kind
        return tuple.__new__(made, content)
    if is_plain_dataclass(kind) and type(content) is dict:
        known = {field.name for field in dataclasses.fields(kind)}
        if not content.keys() <= known:
            raise UnsupportedOnLoad(f"the dataclass {name} has no field {sorted(content.keys() - known)} here")
        instance = object.__new__(kind)
        for key, value in content.items():
            object.__setattr__(instance, key, value)
        return instance
    raise UnsupportedOnLoad(f"{name} is here neither Enum, dataclass nor namedtuple as the checkpoint needs it")


def decode(text: str, resolve: Resolve = None, keys: Optional[KeyCheck] = None) -> Any:
    """The value of a text that holds one."""
    decoder = Decoder(text, resolve, keys)
    value = decoder.next()
    if not decoder.at_end:
        raise decoder._damaged("something follows the value")
    return value
