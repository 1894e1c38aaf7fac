"""What a state looked like when it was described: a tree of templates that mirrors it.

A template does two things. `match` walks a state again, checks that it still has the described structure, and collects what
a save needs: tensors in order, values text, blobs. `node` gives the template's node of `neve.tree` (docs/format.md). The
two visit the leaves in the same order, so the n-th value collected is the n-th "v" of the tree.

No template holds a tensor: only shapes, names and keys.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _names, _tensors, _values

VALUE_BYTES_MAX = 4096   # a value whose text is longer becomes a blob


class Changed(Exception):
    """The state no longer has the described structure."""


class Collected:
    """What one walk over a state found, in tree order."""

    __slots__ = ("torch", "arrays", "torch_originals", "array_originals", "refs", "values", "blobs")

    def __init__(self) -> None:
        self.torch: List[Any] = []     # torch tensors; also keeps temporary ones alive until the save has read them
        self.arrays: List[Any] = []    # NumPy arrays
        # Where a copy was collected (a lazily conjugated tensor, an array with negative strides), its place and the object itself.
        self.torch_originals: Dict[int, Any] = {}
        self.array_originals: Dict[int, Any] = {}
        self.refs: List[Any] = []      # objects met a second time
        self.values: List[str] = []
        self.blobs: List[bytes] = []


class Numbering:
    """Counts blobs while the tree is written."""

    __slots__ = ("blobs",)

    def __init__(self) -> None:
        self.blobs = 0

    def blob(self) -> int:
        self.blobs += 1
        return self.blobs - 1


class Template:
    """Base: one place in the state."""

    __slots__ = ()
    is_value = False
    is_plain = False   # an ordinary torch tensor under its natural name
    is_bulk = False    # collected as it stands, and checked with all others of its kind afterwards
    is_run = False     # its node is that of an ordinary tensor under its natural name: costs the tree nothing

    def match(self, thing: Any, found: Collected) -> None:
        raise NotImplementedError

    def node(self, numbering: Numbering) -> Any:
        raise NotImplementedError


class Plain(Template):
    """An ordinary torch tensor: all that is to be known of it is checked in bulk afterwards."""

    __slots__ = ()
    is_plain = is_bulk = is_run = True

    def match(self, thing: Any, found: Collected) -> None:
        found.torch.append(thing)

    def node(self, numbering: Numbering) -> Any:
        return {"T": 1}


class Tensor(Template):
    """A torch tensor with something to say: a Parameter, on a device, with attributes, lazily conjugated."""

    __slots__ = ("attributes", "lazy", "is_bulk", "_head")

    def __init__(self, extra: Dict[str, Any], attributes: Optional["Template"], lazy: bool) -> None:
        self.attributes, self.lazy = attributes, lazy
        self.is_bulk = not lazy and attributes is None
        self._head = {"T": 1, **extra}

    def match(self, thing: Any, found: Collected) -> None:
        torch = _tensors.loaded_torch()
        if torch is None or not isinstance(thing, torch.Tensor):
            raise Changed
        if self.lazy:
            found.torch_originals[len(found.torch)] = thing
            found.torch.append(resolve_lazy(thing))
        else:
            found.torch.append(thing)
        if self.attributes is not None:
            self.attributes.match(storable_attributes(thing), found)

    def node(self, numbering: Numbering) -> Any:
        if self.attributes is None:
            return self._head
        return {**self._head, "py": self.attributes.node(numbering)}


def resolve_lazy(tensor: Any) -> Any:
    """A tensor that is lazily conjugated or negated, with its values written out."""
    torch = _tensors.loaded_torch()
    if torch is None or not isinstance(tensor, torch.Tensor) or not (tensor.is_conj() or tensor.is_neg()):
        raise Changed
    return tensor.detach().resolve_conj().resolve_neg()


def storable_attributes(tensor: Any) -> Dict[str, Any]:
    """The Python attributes of a tensor that go into an image: those that are values, or tensors."""
    torch = _tensors.loaded_torch()
    kept = {}
    for name, value in vars(tensor).items():
        if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
            kept[name] = value
            continue
        try:
            _values.encode(value)
        except (_values.NotValue, RecursionError):
            continue
        kept[name] = value
    return kept


class Meta(Template):
    """A tensor on the meta device: shape and strides, no bytes."""

    __slots__ = ("dtype", "shape", "strides", "extra")

    def __init__(self, tensor: Any, extra: Dict[str, Any]) -> None:
        self.dtype, self.shape, self.strides, self.extra = tensor.dtype, tensor.shape, tensor.stride(), extra

    def match(self, thing: Any, found: Collected) -> None:
        torch = _tensors.loaded_torch()
        if torch is None or not isinstance(thing, torch.Tensor) or not thing.is_meta:
            raise Changed
        same = (thing.dtype == self.dtype and thing.shape == self.shape and thing.stride() == self.strides
                and (type(thing) is torch.nn.Parameter) == ("param" in self.extra)
                and thing.requires_grad == ("grad" in self.extra))
        if not same:
            raise Changed

    def node(self, numbering: Numbering) -> Any:
        return {"T": 1, "meta": 1, "dt": str(self.dtype).replace("torch.", "", 1), "sh": list(self.shape),
                "st": list(self.strides), **self.extra}


class Array(Template):
    """A NumPy array; `copied` when its strides cannot be described and a copy is stored."""

    __slots__ = ("copied", "text")

    def __init__(self, copied: bool, text: Optional[str]) -> None:
        self.copied, self.text = copied, text

    def match(self, thing: Any, found: Collected) -> None:
        numpy = _tensors.loaded_numpy()
        if numpy is None or not isinstance(thing, numpy.ndarray):
            raise Changed
        if self.copied:
            found.array_originals[len(found.arrays)] = thing
        found.arrays.append(contiguous_copy(thing) if self.copied else thing)

    def node(self, numbering: Numbering) -> Any:
        return {"T": 1, "np": self.text or 1}


def contiguous_copy(array: Any) -> Any:
    """A row-major copy of an array, of the same shape (NumPy makes a scalar's one-dimensional)."""
    return array.copy(order="C")


class Reference(Template):
    """The very same tensor or array object that an earlier place holds."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def match(self, thing: Any, found: Collected) -> None:
        found.refs.append(thing)

    def node(self, numbering: Numbering) -> Any:
        return {"r": self.name}


class Value(Template):
    """A subtree without tensors, as values text; or as a blob once its text has been over 4 KiB."""

    __slots__ = ("blob",)
    is_value = True

    def __init__(self, blob: bool = False) -> None:
        self.blob = blob

    def match(self, thing: Any, found: Collected) -> None:
        try:
            if self.blob:
                found.blobs.append(value_payload(thing))
                return
            text = _values.encode(thing)
        except (_values.NotValue, RecursionError):
            raise Changed from None
        if len(text) > VALUE_BYTES_MAX:
            raise Changed
        found.values.append(text)

    def node(self, numbering: Numbering) -> Any:
        return {"b": numbering.blob()} if self.blob else "v"


def value_payload(value: Any) -> bytes:
    """A value as the payload of a blob: a byte that says how it is written, then its bytes."""
    if type(value) is bytes:
        return b"y" + value
    if type(value) is str:
        return b"s" + value.encode("utf-8", "surrogatepass")
    return b"v" + _values.encode(value).encode("ascii")


class Opaque(Template):
    """An object of no known kind, pickled."""

    __slots__ = ("kind", "path")

    def __init__(self, kind: type, path: Tuple[Any, ...]) -> None:
        self.kind, self.path = kind, path

    def match(self, thing: Any, found: Collected) -> None:
        if type(thing) is not self.kind:
            raise Changed
        found.blobs.append(b"p" + pickled(thing, self.path))

    def node(self, numbering: Numbering) -> Any:
        return {"b": numbering.blob(), "q": _values.class_name(self.kind)}


def pickled(thing: Any, path: Tuple[Any, ...]) -> bytes:
    """The pickle of an object; :class:`neve.Unsupported` names the innermost place that cannot be pickled."""
    from .errors import Unsupported

    try:
        return pickle.dumps(thing, protocol=4)
    except Exception as error:  # whatever a class's own pickling raises
        where, culprit = _unpicklable(thing, path, 0)
        raise Unsupported(
            f"{_names.pretty_path(where)!r} is a {_values.class_name(type(culprit))} and cannot be saved: {error}. "
            "Leave it out of the state, or give it state_dict() and load_state_dict()") from error


def _unpicklable(thing: Any, path: Tuple[Any, ...], depth: int) -> Tuple[Tuple[Any, ...], Any]:
    parts: List[Tuple[Any, Any]] = []
    if depth < 8:
        if isinstance(thing, dict):
            parts = list(thing.items())
        elif isinstance(thing, (list, tuple)):
            parts = [(_names.Index(index), item) for index, item in enumerate(thing)]
        elif not isinstance(thing, type):
            parts = list(getattr(thing, "__dict__", {}).items())
    for key, part in parts:
        try:
            pickle.dumps(part, protocol=4)
        except Exception:
            return _unpicklable(part, (*path, key), depth + 1)
    return path, thing


class Mapping(Template):
    """A dict, OrderedDict or defaultdict that holds a tensor somewhere."""

    __slots__ = ("kind", "keys", "key_types", "escaped", "by_escape", "children", "all_bulk", "attributes", "factory")

    def __init__(self, mapping: Dict[Any, Any], escaped: List[str], children: List[Template],
                 attributes: Optional[Template]) -> None:
        self.kind = type(mapping)
        self.keys = list(mapping)
        self.key_types = list(map(type, self.keys))
        self.escaped = escaped
        self.by_escape = not set(self.key_types) <= {str, int}   # equal keys of other types can differ: (1,) and (True,)
        self.children = children
        self.all_bulk = all(child.is_bulk for child in children)
        self.attributes = attributes
        self.factory = getattr(mapping, "default_factory", None)

    def match(self, thing: Any, found: Collected) -> None:
        if type(thing) is not self.kind:
            raise Changed
        keys = list(thing)
        if keys != self.keys or list(map(type, keys)) != self.key_types:
            raise Changed
        if self.by_escape and list(map(_names.escape, keys)) != self.escaped:
            raise Changed
        if self.kind is not dict:
            self._match_rest(thing, found)
        if self.all_bulk:
            found.torch.extend(thing.values())
        else:
            for child, value in zip(self.children, thing.values()):
                child.match(value, found)

    def _match_rest(self, thing: Any, found: Collected) -> None:
        if self.kind is OrderedDict:
            if self.attributes is not None:
                self.attributes.match(vars(thing), found)
            elif vars(thing):
                raise Changed
        elif thing.default_factory is not self.factory:
            raise Changed

    def node(self, numbering: Numbering) -> Any:
        node: Dict[str, Any] = {}
        if self.attributes is not None:
            node["a"] = self.attributes.node(numbering)
        children: List[Any] = []
        for key, child in zip(self.escaped, self.children):
            if child.is_run:
                _count_run(children)
            else:
                children.append([key, child.node(numbering)])
        node["d"] = children
        if self.kind is OrderedDict:
            node["t"] = "O"
        elif self.kind is defaultdict:
            node["t"] = "D:" + FACTORY_NAMES[self.factory]
        return node


FACTORY_NAMES: Dict[Any, str] = {None: "None", dict: "dict", list: "list", set: "set", int: "int", float: "float", str: "str"}


def _count_run(children: List[Any]) -> None:
    if children and type(children[-1]) is int:
        children[-1] += 1
    else:
        children.append(1)


class Sequence(Template):
    """A list, tuple or namedtuple that holds a tensor somewhere."""

    __slots__ = ("kind", "children", "all_bulk")

    def __init__(self, kind: type, children: List[Template]) -> None:
        self.kind, self.children = kind, children
        self.all_bulk = all(child.is_bulk for child in children)

    def match(self, thing: Any, found: Collected) -> None:
        if type(thing) is not self.kind or self.kind is not list and getattr(thing, "__dict__", None):
            raise Changed   # a subclass of a namedtuple may have attributes
        self._match_items(thing, found)

    def _match_items(self, thing: Any, found: Collected) -> None:
        if len(thing) != len(self.children):
            raise Changed
        if self.all_bulk:
            found.torch.extend(thing)
        else:
            for child, item in zip(self.children, thing):
                child.match(item, found)

    def node(self, numbering: Numbering) -> Any:
        children: List[Any] = []
        for child in self.children:
            if child.is_run:
                _count_run(children)
            else:
                children.append(child.node(numbering))
        node: Dict[str, Any] = {"l": children}
        if self.kind is tuple:
            node["t"] = "tuple"
        elif self.kind is not list:
            node["t"] = "n:" + _values.class_name(self.kind)
        return node


class Composite(Template):
    """Something saved by its parts: `derive` gives them anew at each save (a state dict, components, fields)."""

    __slots__ = ("kind", "head", "derive", "children")

    def __init__(self, kind: type, head: Dict[str, Any], derive: Callable[[Any], List[Any]], children: List[Template]) -> None:
        self.kind, self.head, self.derive, self.children = kind, head, derive, children

    def match(self, thing: Any, found: Collected) -> None:
        if type(thing) is not self.kind:
            raise Changed
        parts = self.derive(thing)
        if len(parts) != len(self.children):
            raise Changed
        for child, part in zip(self.children, parts):
            child.match(part, found)

    def node(self, numbering: Numbering) -> Any:
        return {**self.head, "c": [child.node(numbering) for child in self.children]}


class Sparse(Composite):
    """A sparse tensor by its components; shape, layout and flags are part of the structure."""

    __slots__ = ()

    def match(self, thing: Any, found: Collected) -> None:
        torch = _tensors.loaded_torch()
        if torch is None or not isinstance(thing, torch.Tensor) or sparse_head(torch, thing) != self.head:
            raise Changed
        super().match(thing, found)


SPARSE_PARTS: Dict[str, Tuple[str, ...]] = {
    "coo": ("indices", "values"),
    "csr": ("crow_indices", "col_indices", "values"),
    "bsr": ("crow_indices", "col_indices", "values"),
    "csc": ("ccol_indices", "row_indices", "values"),
    "bsc": ("ccol_indices", "row_indices", "values"),
}


def sparse_head(torch: Any, tensor: Any) -> Optional[Dict[str, Any]]:
    """The node of a sparse tensor without its components, or None for a dense one."""
    layout = str(tensor.layout)
    if not layout.startswith("torch.sparse_"):
        return None
    kind = layout[len("torch.sparse_"):]
    head: Dict[str, Any] = {"o": kind, "sh": list(tensor.shape)}
    if kind == "coo" and tensor.is_coalesced():
        head["co"] = 1
    if tensor.requires_grad:
        head["grad"] = 1
    if type(tensor) is torch.nn.Parameter:
        head["param"] = 1
    return head


def sparse_parts(tensor: Any) -> List[Any]:
    """Its component tensors."""
    tensor = tensor.detach()
    if str(tensor.layout) == "torch.sparse_coo":
        return [tensor._indices(), tensor._values()]
    kind = str(tensor.layout)[len("torch.sparse_"):]
    return [getattr(tensor, part)() for part in SPARSE_PARTS[kind]]
