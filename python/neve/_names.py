"""Names of tensors in an image: the path joined by ".", with escapes for what is not an ordinary string.

A key that is a non-empty string, does not begin with "~" and holds no control character and no lone surrogate stands as it
is. Everything else begins with "~" and a letter:

    ~e            the empty string              ~i5           an int
    ~~rest        a string that begins with ~   ~d0x1.8p+0    a float
    ~j<base64url> any other string, as JSON     ~t ~f ~n      True, False, None
    ~y<base64url> bytes                         ~p<base64url> a tuple or another value, as values text

A name that is taken already (or is reserved) gets the suffix "~#2", "~#3" and so on.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Callable, Iterable, List, Optional, Sequence, Set, Tuple

from . import _values
from .errors import Damaged

ROOT_NAME = "~tensor"

# Control characters, and the surrogates, which UTF-8 cannot hold.
_NEEDS_JSON = re.compile("[\x00-\x1f\x7f\ud800-\udfff]").search
_RESERVED_PREFIX = "neve."


def base64_text(data: bytes) -> str:
    """base64url without its padding."""
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def base64_bytes(text: str) -> bytes:
    """The inverse of :func:`base64_text`; raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9_-]*", text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def escape(key: Any) -> str:
    """The component of a name for one dictionary key. Raises :class:`neve._values.NotValue` for a key that is no value."""
    kind = type(key)
    if kind is str:
        if key.isprintable() and key and key[0] != "~":
            return str(key)
        if not key:
            return "~e"
        if _NEEDS_JSON(key):
            # Raw surrogates, not \\u escapes: a JSON reader would join two lone ones to one character.
            text = json.dumps(key, ensure_ascii=False)
            return "~j" + base64_text(text.encode("utf-8", "surrogatepass"))
        return f"~{key}" if key[0] == "~" else key
    if kind is int and _values.is_short_int(key):
        return f"~i{key}"
    if kind is bool:
        return "~t" if key else "~f"
    if key is None:
        return "~n"
    if kind is float and key == key:
        return f"~d{key.hex()}"
    if kind is bytes:
        return "~y" + base64_text(key)
    return "~p" + base64_text(_values.encode(key).encode("ascii"))


def unescape(component: str, resolve: "_values.Resolve" = None, keys: "Optional[_values.KeyCheck]" = None) -> Any:
    """The key that :func:`escape` was given. Raises :class:`neve.Damaged`."""
    if not component.startswith("~"):
        if not component:
            raise Damaged("a name in neve.tree has an empty component")
        return component
    kind, rest = component[1:2], component[2:]
    try:
        if kind == "~":
            return component[1:]
        if kind == "i":
            return _values.int_value(rest)
        if kind == "d":
            return float.fromhex(rest)
        if kind == "y":
            return base64_bytes(rest)
        if kind == "j":
            key = json.loads(base64_bytes(rest).decode("utf-8", "surrogatepass"))
            if isinstance(key, str):
                return key
        if kind == "p":
            return _values.decode(base64_bytes(rest).decode("ascii"), resolve, keys)
    except (ValueError, OverflowError) as error:
        raise Damaged(f"the escaped key {component[:80]!r} in neve.tree is malformed: {error}") from None
    fixed = {"e": "", "t": True, "f": False, "n": None}
    if kind in fixed and not rest:
        return fixed[kind]
    raise Damaged(f"the escaped key {component[:80]!r} in neve.tree is of no known kind")


def join_all(prefix: str, components: Iterable[str]) -> List[str]:
    """The name of each component, as of :func:`join`."""
    return [f"{prefix}.{component}" for component in components] if prefix else list(components)


def join(prefix: str, component: str) -> str:
    """The name of `component` inside the container whose own name is `prefix` ("" for the root)."""
    return f"{prefix}.{component}" if prefix else component


class NameTable:
    """Hands out names that are unique in one image."""

    def __init__(self) -> None:
        self._taken: Set[str] = {"__metadata__"}

    def take(self, name: str) -> Tuple[str, bool]:
        """`name`, or `name` with a suffix; and whether it was free as it stands."""
        if name not in self._taken and not name.startswith(_RESERVED_PREFIX):
            self._taken.add(name)
            return name, True
        number = 2
        while f"{name}~#{number}" in self._taken:
            number += 1
        unique = f"{name}~#{number}"
        self._taken.add(unique)
        return unique, False

    def take_all(self, names: Sequence[str]) -> bool:
        """Takes all of the names as they stand, or none of them."""
        fresh = set(names)
        if len(fresh) < len(names) or not self._taken.isdisjoint(fresh) or any(name.startswith(_RESERVED_PREFIX) for name in names):
            return False
        self._taken |= fresh
        return True


def shown_key(key: Any) -> str:
    """A key for messages: its repr, cut; its type where it has none (an int of many thousand digits has none)."""
    try:
        shown = repr(key)
    except Exception:   # whatever a class's own repr raises
        shown = f"a {type(key).__name__}"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def pretty_path(path: Iterable[Any]) -> str:
    """A path as people write it, for messages: ``a.b[2].lock``. List indexes come as :class:`Index`."""
    text = ""
    for part in path:
        if isinstance(part, Index):
            text += f"[{part.value}]"
        elif type(part) is str and part and "." not in part and part.isprintable():
            text += f".{part}" if text else part
        else:
            text += f"[{shown_key(part)}]"
    return text or "the state itself"


class Index:
    """A position in a list or tuple, as part of a path."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"[{self.value}]"


def glob_filter(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether a dotted name matches any of the patterns, or lies below a match (``model`` selects ``model.w``)."""
    import fnmatch

    pieces = [fnmatch.translate(text) for pattern in patterns for text in (pattern, pattern + ".*")]
    match = re.compile("|".join(f"(?:{piece})" for piece in pieces) or r"(?!)").match
    return lambda name: match(name) is not None
