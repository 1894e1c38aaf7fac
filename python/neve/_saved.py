"""What an image holds, as a tree of small objects: parsed from `neve.tree` and the values, nothing of the tensors read yet."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional

from . import _names, _values
from ._image import Header, Image, Logical, read_blobs
from ._template import FACTORY_NAMES, SPARSE_PARTS
from .errors import Damaged, Error, Exhausted, Unsupported, UnsupportedOnLoad

Select = Optional[Callable[[str], bool]]

_DICT_KINDS = {"", "O", *("D:" + name for name in FACTORY_NAMES.values())}
_WHOLE_KINDS = ("state", "dataclass", "generator", "RandomState", "Generator")   # composites of one part
_NAMES_BYTES_MAX = 1 << 28   # of all names together, and 64 times the header: kTreeNamesBytesMax of src/format/tree_walk.h


class Saved:
    """Base: one place of the saved state. `name` is its dotted name."""

    __slots__ = ("name",)
    name: str


_NOTHING: Dict[str, Any] = {}   # what the node of an ordinary tensor says; never changed


class SavedTensor(Saved):
    """A tensor: its place among the image's, and what its node says."""

    __slots__ = ("index", "extra", "attributes")

    def __init__(self, name: str, index: int, extra: Dict[str, Any], attributes: Optional[Saved] = None) -> None:
        self.name, self.index, self.extra, self.attributes = name, index, extra, attributes


class SavedMeta(Saved):
    """A tensor on the meta device."""

    __slots__ = ("extra",)

    def __init__(self, name: str, extra: Dict[str, Any]) -> None:
        self.name, self.extra = name, extra


class SavedReference(Saved):
    """The same object that another name holds."""

    __slots__ = ("target",)

    def __init__(self, name: str, target: SavedTensor) -> None:
        self.name, self.target = name, target


class SavedValue(Saved):
    """A subtree without tensors, decoded."""

    __slots__ = ("value",)

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value


class SavedBlob(Saved):
    """A long value or an opaque object, before the blob is read."""

    __slots__ = ("number", "kind", "value")

    def __init__(self, name: str, number: int, kind: Optional[str]) -> None:
        self.name, self.number, self.kind = name, number, kind
        self.value: Any = None


class SavedLeftOut(Saved):
    """A place of a list that the selection leaves out: None in a new list, and left alone in one that exists."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.name = name


class SavedDict(Saved):
    """A dictionary; `partial` when the selection leaves keys of it out."""

    __slots__ = ("keys", "children", "kind", "attributes", "partial")

    def __init__(self, name: str, keys: List[Any], children: List[Saved], kind: str, attributes: Optional[Saved],
                 partial: bool = False) -> None:
        self.name, self.keys, self.children, self.kind, self.attributes = name, keys, children, kind, attributes
        self.partial = partial


class SavedList(Saved):
    __slots__ = ("children", "kind")

    def __init__(self, name: str, children: List[Saved], kind: str) -> None:
        self.name, self.children, self.kind = name, children, kind


class SavedComposite(Saved):
    """What is made of parts: sparse tensors, objects with state, dataclasses, generators."""

    __slots__ = ("kind", "head", "children")

    def __init__(self, name: str, kind: str, head: Dict[str, Any], children: List[Saved]) -> None:
        self.name, self.kind, self.head, self.children = name, kind, head, children


class SavedState:
    """The saved tree of an image. Places that `select` refuses are left out of dicts, and :class:`SavedLeftOut` in lists.
    `selected` and `refused` name the tensors and values that it was asked about. can_select: whether the caller of neve could ask
    for a part.
    """

    def __init__(self, image: Image, select: Select = None, weights_only: bool = True, can_select: bool = False) -> None:
        self.header: Header = image.header
        self._can_select = can_select
        self._select = select
        self._resolve = _values.known_class if weights_only else _values.importing_class
        self._tensors: List[Logical] = self.header.tensors
        self._next = 0
        self._by_name: Dict[str, SavedTensor] = {}   # of those that were taken, but for `_runs`, until one is asked for
        self._runs: List[List[Saved]] = []
        self._blobs: List[SavedBlob] = []
        self._image = image
        self.selected: List[str] = []
        self.refused: List[str] = []
        self._keys = _values.KeyCheck(trusted=not weights_only)
        self._names_left = _NAMES_BYTES_MAX + 64 * self.header.bytes
        self._decoder = _values.Decoder(self.header.values, self._resolve, self._keys)
        if self.header.root is None:
            self.root: Optional[Saved] = self._flat()
        else:
            try:
                self.root = self._parse(self.header.root, "")
            except RecursionError:
                raise Damaged("neve.tree is nested too deep") from None
            except Error:
                raise
            except MemoryError:
                raise Exhausted("no memory for what neve.tree describes") from None
            except Exception as error:
                raise Damaged(f"neve.tree cannot be read: {type(error).__name__}: {error}") from None
            if self._next != len(self._tensors) or not self._decoder.at_end:
                raise Damaged("neve.tree does not account for all that the image holds")
        self._load_blobs(image, weights_only)

    # ---- Parsing ----

    def _flat(self) -> Saved:
        """A file without a tree: a dict of its names, or the C API's flat state."""
        keys: List[Any] = []
        children: List[Saved] = []
        for index, tensor in enumerate(self._tensors):
            if self._wanted(tensor.name):
                keys.append(tensor.name)
                children.append(SavedTensor(tensor.name, index, {}))
        return SavedDict("", keys, children, "", None)

    def _join(self, name: str, component: str) -> str:
        """The name of a component. A long key above many places would make names far larger than the file."""
        joined = _names.join(name, component)
        self._names_left -= len(joined)
        if self._names_left < 0:
            raise Damaged("the names of the places in neve.tree take more memory than any state's")
        return joined

    def _take(self, name: str, extra: Dict[str, Any], attributes: Optional[Saved] = None) -> Optional[Saved]:
        index = self._next
        self._next += 1
        tensor = SavedTensor(name, index, extra, attributes)
        self._by_name[self._tensors[index].name] = tensor
        return tensor if self._wanted(name) else None

    def _take_run(self, count: int) -> List[Saved]:
        """The next `count` ordinary tensors, of which there may be very many, but those that are left out."""
        if self._select is not None:
            every = [self._take(self._tensors[self._next].name, {}) for _ in range(count)]
            return [tensor for tensor in every if tensor is not None]
        if count < 0:
            raise Damaged(f"neve.tree has a run of {count} tensors")
        begin = self._next
        tensors = [SavedTensor(self._tensors[index].name, index, _NOTHING) for index in range(begin, begin + count)]
        self._next = begin + count
        self._runs.append(tensors)
        return tensors

    def _named(self, name: str) -> SavedTensor:
        """The tensor of that name among those that were taken."""
        for run in self._runs:
            self._by_name.update([(tensor.name, tensor) for tensor in run if isinstance(tensor, SavedTensor)])
        self._runs.clear()
        return self._by_name[name]

    def _wanted(self, name: str) -> bool:
        if self._select is None:
            return True
        wanted = self._select(name)
        (self.selected if wanted else self.refused).append(name)
        return wanted

    def _parse(self, node: Any, name: str) -> Optional[Saved]:
        if node == "v":
            value = self._decoder.next()
            return self._part_of_value(value, name)
        if type(node) is int:
            return self._take(name or _names.ROOT_NAME, {})
        if type(node) is not dict:
            raise Damaged(f"neve.tree has {node!r} where a node was expected")
        if "d" in node:
            return self._parse_dict(node, name)
        if "l" in node:
            return self._parse_list(node, name)
        if "T" in node:
            return self._parse_tensor(node, name or _names.ROOT_NAME)
        if "r" in node:
            reference = SavedReference(name, self._named(node["r"]))
            return reference if self._wanted(name) else None
        if "b" in node:
            if type(node["b"]) is not int:
                raise Damaged(f"{name} names the blob {node['b']!r}, which is no number")
            blob = SavedBlob(name, node["b"], node.get("q"))
            if not self._wanted(name):
                return self._part_of_blob(blob)
            self._blobs.append(blob)
            return blob
        if "o" in node:
            return self._parse_composite(node, name)
        raise Unsupported(f"neve.tree has a node of a kind this version does not know: {sorted(node)}")

    def _part_of_value(self, value: Any, name: str) -> Optional[Saved]:
        """What the selection takes of a value: its places have names as those of other containers do."""
        if self._wanted(name):
            return SavedValue(name, value)
        kind = type(value)
        if kind is dict or kind is OrderedDict:
            parts = [(key, self._part_of_value(item, self._join(name, _names.escape(key)))) for key, item in value.items()]
            kept = [(key, part) for key, part in parts if part is not None]
            if kept:
                return SavedDict(name, [key for key, _ in kept], [part for _, part in kept], "" if kind is dict else "O", None,
                                 len(kept) < len(parts))
        elif kind is list or kind is tuple or _values.is_namedtuple(kind):
            items = [self._part_of_value(item, self._join(name, str(index))) for index, item in enumerate(value)]
            if any(item is not None for item in items):
                text = "" if kind is list else "tuple" if kind is tuple else "n:" + _values.class_name(kind)
                return SavedList(name, [item or SavedLeftOut(_names.join(name, str(index))) for index, item in enumerate(items)],
                                 text)
        elif dataclasses.is_dataclass(kind):
            fields = self._part_of_value(_values.dataclass_fields(value), name)
            if fields is not None:
                return SavedComposite(name, "dataclass", {"o": "dataclass", "q": _values.class_name(kind)}, [fields])
        return None

    def _part_of_blob(self, blob: SavedBlob) -> Optional[Saved]:
        if blob.kind is not None:
            return None
        payload = read_blobs(self._image, [blob.number])[blob.number]
        if payload[:1] != b"v":
            return None
        try:
            return self._part_of_value(self._decode_blob(blob, payload, True), blob.name)
        except UnsupportedOnLoad:
            return None   # of a class that is not known here: nothing of it was asked for by its name

    def _parse_tensor(self, node: Dict[str, Any], name: str) -> Optional[Saved]:
        if node.get("meta"):
            return SavedMeta(name, node) if self._wanted(name) else None
        tensor = self._take(name, node)
        if "py" in node:
            outer, self._select = self._select, None
            attributes = self._parse(node["py"], self._join(name, "~py"))
            self._select = outer
            if not _is_dict(attributes):
                raise Damaged(f"{name} has attributes that are no dictionary")
            if isinstance(tensor, SavedTensor):
                tensor.attributes = attributes
        return tensor

    def _parse_dict(self, node: Dict[str, Any], name: str) -> Optional[Saved]:
        attributes = self._parse(node["a"], self._join(name, "~a")) if "a" in node else None
        kind = node.get("t", "")
        if kind not in _DICT_KINDS:
            raise Unsupported(f"{name or 'the state'} is a dictionary of type {kind!r}, which this version does not know")
        keys: List[Any] = []
        children: List[Saved] = []
        prefix_length = len(name) + 1 if name else 0
        for item in node["d"]:
            if type(item) is int:
                taken = self._take_run(item)
                children.extend(taken)
                for child in taken:
                    component = child.name[prefix_length:]
                    keys.append(component if component[:1] != "~" else
                                _names.unescape(component, self._resolve, self._keys))
            else:
                component, content = item
                parsed = self._parse(content, self._join(name, component))
                if parsed is not None:
                    keys.append(_names.unescape(component, self._resolve, self._keys))
                    children.append(parsed)
        if not children and self._select is not None and (node["d"] or not self._wanted(name)):
            return None
        self._keys.check(keys)
        if len(set(keys)) != len(keys):
            raise Damaged(f"{name or 'the state'} has one key twice")
        count = sum(item if type(item) is int else 1 for item in node["d"])
        return SavedDict(name, keys, children, kind, attributes, len(children) < count)

    def _parse_list(self, node: Dict[str, Any], name: str) -> Optional[Saved]:
        children: List[Saved] = []
        count = left_out = 0
        kind = node.get("t", "")
        if kind not in ("", "tuple") and not kind.startswith("n:"):
            raise Unsupported(f"{name or 'the state'} is a list of type {kind!r}, which this version does not know")
        for item in node["l"]:
            for _ in range(item if type(item) is int else 1):
                child = self._parse(1 if type(item) is int else item, self._join(name, str(count)))
                if child is None:
                    left_out += 1
                    child = SavedLeftOut(self._join(name, str(count)))
                children.append(child)
                count += 1
        if left_out and left_out == count:
            return None
        return SavedList(name, children, kind)

    def _parse_composite(self, node: Dict[str, Any], name: str) -> Optional[Saved]:
        kind = node["o"]
        if kind not in SPARSE_PARTS and kind not in _WHOLE_KINDS:
            if kind != "pieces":
                raise Unsupported(f"{name or 'the state'} is of a kind that this version does not know: {kind!r}")
            return self._parse_pieces(node, name or _names.ROOT_NAME)
        if len(node["c"]) != len(SPARSE_PARTS.get(kind, (None,))):
            raise Damaged(f"{name or 'the state'} has {len(node['c'])} parts")
        children = []
        if kind in SPARSE_PARTS:
            outer, self._select = self._select, None
            for part, child in zip(SPARSE_PARTS[kind], node["c"]):
                children.append(self._parse(child, self._join(name or _names.ROOT_NAME, part)))
            self._select = outer
            if not self._wanted(name or _names.ROOT_NAME):
                return None
        elif kind not in ("state", "dataclass"):   # a generator: whole or not at all
            wanted, blobs = self._wanted(name), len(self._blobs)
            outer, self._select = self._select, None
            children = [self._parse(child, name) for child in node["c"]]
            self._select = outer
            if not wanted:
                del self._blobs[blobs:]
                return None
        else:
            children = [self._parse(child, name) for child in node["c"]]
        kept = [child for child in children if child is not None]
        if len(kept) != len(children):
            return None
        return SavedComposite(name, kind, node, kept)

    def _parse_pieces(self, node: Dict[str, Any], name: str) -> Optional[Saved]:
        """Several boxes of one logical tensor: all of them or none."""
        outer, self._select = self._select, None
        children = [self._parse(child, self._join(name, str(index))) for index, child in enumerate(node["c"])]
        self._select = outer
        boxes = [child for child in children if isinstance(child, SavedTensor)]
        whole = {self._tensors[box.index].name: box.index for box in boxes}
        if not boxes or len(boxes) != len(children) or not all(tensor in self.header.pieces for tensor in whole):
            raise Damaged(f"{name} has parts that are no boxes of a tensor")
        return SavedComposite(name, "pieces", node, list(children)) if self._wanted(name) else None   # type: ignore[arg-type]

    # ---- Blobs ----

    def _load_blobs(self, image: Image, weights_only: bool) -> None:
        opaque = [blob for blob in self._blobs if blob.kind is not None]
        if opaque and weights_only:
            shown = ", ".join(f"{blob.name} ({blob.kind})" for blob in opaque[:8])
            other = ", or include= to leave them out" if self._can_select else ""
            raise UnsupportedOnLoad("the checkpoint holds pickled objects, which could run code when loaded: "
                                    f"{shown}. Pass weights_only=False if you trust it{other}")
        payloads = read_blobs(image, [blob.number for blob in self._blobs])
        for blob in self._blobs:
            blob.value = self._decode_blob(blob, payloads[blob.number], weights_only)

    def _decode_blob(self, blob: SavedBlob, payload: bytes, weights_only: bool) -> Any:
        kind, content = payload[:1], payload[1:]
        try:
            if kind == b"y":
                return content
            if kind == b"s":
                return content.decode("utf-8", "surrogatepass")
            if kind == b"v":
                return _values.decode(content.decode("ascii"), self._resolve, self._keys)
        except UnicodeDecodeError as error:
            raise Damaged(f"blob {blob.number} ({blob.name}) is malformed: {error}") from None
        if kind == b"p":
            if weights_only:
                raise UnsupportedOnLoad(f"{blob.name or 'the state'} is a pickled object: pass weights_only=False if you trust it")
            import pickle

            try:
                return pickle.loads(content)
            except Exception as error:  # whatever a class's own unpickling raises
                raise UnsupportedOnLoad(f"{blob.name} ({blob.kind}) could not be unpickled: {error}") from error
        raise Damaged(f"blob {blob.number} ({blob.name}) is of unknown kind {kind!r}")


def _is_dict(node: Optional[Saved]) -> bool:
    """Whether a node gives a plain dictionary; of a blob it is not known yet."""
    if isinstance(node, SavedValue):
        return type(node.value) is dict
    return isinstance(node, SavedDict) or isinstance(node, SavedBlob) and node.kind is None


def is_partial(node: Optional[Saved]) -> bool:
    """Whether the selection leaves something out below a node."""
    if isinstance(node, SavedDict):
        return node.partial or any(map(is_partial, node.children))
    if isinstance(node, (SavedList, SavedComposite)):
        return any(map(is_partial, node.children))
    return isinstance(node, SavedLeftOut)
