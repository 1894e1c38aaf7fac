"""Describes a state: its templates, the names and shapes of its tensors, and what a plain reader would misread."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict
from itertools import islice, repeat
from operator import attrgetter, lt
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from . import _names, _pieces, _tensors, _values
from ._piece_templates import Distributed, Held, SharedMemory
from ._pieces import Boxes, Part, Piece
from ._template import (
    FACTORY_NAMES, SPARSE_PARTS, VALUE_BYTES_MAX, Array, Composite, Mapping, Meta, Opaque, Plain, Reference, Sequence,
    Sparse, Template, Tensor, Value, contiguous_copy, sparse_head, sparse_parts, storable_attributes,
)
from .errors import Invalid, Unsupported

Path = Tuple[Any, ...]

_FEW = 8         # items of a container that are not worth looking at together
_CHUNK = 256     # tensors looked at together
_get_layout, _get_nested, _get_quantized, _get_meta, _get_vars, _get_dtype, _get_shape, _get_gradient, _get_device = map(
    attrgetter, ("layout", "is_nested", "is_quantized", "is_meta", "__dict__", "dtype", "shape", "requires_grad", "device"))
_SCALARS = {type(None), bool, int, float, complex, str, bytes, bytearray}
_VALUE = Value()
_PLAIN = Plain()
ODD_STRIDE_MAX = 1 << 40   # larger ones, of extents of 1, are not kept: readers take them for damage
# Kinds of NumPy generator that can be made anew without running what a file names.
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class Spec:
    """One stored tensor: its name, dtype, shape and strides, and of which larger one it is a part."""

    __slots__ = ("name", "dtype", "shape", "strides", "part")

    def __init__(self, name: str, dtype: "_tensors.DType", shape: Tuple[int, ...], strides: Tuple[int, ...],
                 part: Optional[Part] = None) -> None:
        self.name, self.dtype, self.shape, self.strides, self.part = name, dtype, shape, strides, part


class Walker:
    """One walk over a state that is described for the first time, or anew.

    sticky: names of values that were blobs before; they stay blobs, so that a value whose size goes up and down does not
    change the structure each time. The walk adds to it.
    keeps_dicts: a dictionary of values alone stays a dictionary, so that each rank's part of one can be joined with the others'.
    """

    def __init__(self, sticky: Optional[Set[str]] = None, keeps_dicts: bool = False) -> None:
        self.torch = _tensors.loaded_torch()
        self.numpy = _tensors.loaded_numpy()
        self.specs: List[Spec] = []
        self.torch_index: List[int] = []     # place in `specs` of each torch tensor collected
        self.array_index: List[int] = []     # and of each array
        self.array_specs: List[Tuple[Any, ...]] = []
        self.references: List[Tuple[bool, int]] = []   # (is torch, place among those collected) of the object referred to
        self.opaque: List[str] = []          # "path (type)" of what is pickled
        self.dropped: List[str] = []         # "path.attribute" of what is left out
        self.misread: List[str] = []         # what readers of plain safetensors would misread, and why
        self.sticky = set() if sticky is None else sticky
        self._keeps_dicts = keeps_dicts
        self._names = _names.NameTable()
        self._seen: Dict[int, Tuple[str, bool, int]] = {}   # id -> name, is torch, place
        self._keep: List[Any] = []           # keeps temporary objects alive, so that ids stay unique
        self._active: Set[int] = set()
        self._memory: Dict[Any, Tuple[str, int]] = {}       # of a DTensor: its memory and layout -> name, place

    def walk(self, state: Any) -> Template:
        """The template of the whole state. Raises :class:`neve.Invalid` for one that contains itself."""
        try:
            root = self._visit(state, (), "")
            root = self._sized(root, state, "")
        except RecursionError:
            raise Invalid(f"the state is nested too deep to be saved: at most {_values.DEPTH_MAX} levels can be") from None
        _pieces.check_declared([
            _pieces.Declared(spec.name, spec.part.logical or spec.name, spec.dtype.name, spec.part.global_shape, spec.part.offset,
                             spec.shape)
            for spec in self.specs if spec.part is not None])
        return root

    # ---- Places ----

    def _visit(self, thing: Any, path: Path, name: str) -> Template:
        kind = type(thing)
        if kind in _SCALARS:
            return _VALUE
        if kind is dict or kind is OrderedDict or kind is defaultdict:
            return self._guarded(self._visit_mapping, thing, path, name)
        if kind is list or kind is tuple:
            return self._guarded(self._visit_sequence, thing, path, name)
        torch = self.torch
        if torch is not None and isinstance(thing, torch.Tensor):
            return self._visit_torch(thing, path, name)
        if self.numpy is not None and kind is self.numpy.ndarray:
            return self._visit_array(thing, path, name)
        return self._guarded(self._visit_other, thing, path, name)

    def _guarded(self, visit: Any, thing: Any, path: Path, name: str) -> Template:
        if id(thing) in self._active:
            raise Invalid(f"{_names.pretty_path(path)!r} contains itself: a cycle cannot be saved")
        if len(self._active) >= _values.DEPTH_MAX:
            raise _too_deep(_names.pretty_path(path))
        self._active.add(id(thing))
        try:
            template: Template = visit(thing, path, name)
        finally:
            self._active.discard(id(thing))
        return template

    def _visit_mapping(self, mapping: Any, path: Path, name: str) -> Template:
        kind = type(mapping)
        attributes: Optional[Template] = None
        if kind is defaultdict and mapping.default_factory not in FACTORY_NAMES:
            return self._opaque(mapping, path, name)
        try:
            escaped = [_names.escape(key) for key in mapping]
        except (_values.NotValue, RecursionError):
            return self._opaque(mapping, path, name)
        if kind is OrderedDict and vars(mapping):
            attributes = self._visit(vars(mapping), (*path, "__dict__"), _names.join(name, "~a"))
            attributes = self._sized(attributes, vars(mapping), _names.join(name, "~a"))
        names = _names.join_all(name, escaped)
        children = self._visit_items(list(mapping.values()), path, mapping, names)
        collapses = attributes is None and kind is not defaultdict and not self._keeps_dicts
        if collapses and all(child.is_value for child in children):
            return _VALUE
        for index, (child, value) in enumerate(zip(children, mapping.values())):
            if child is _VALUE:
                children[index] = self._sized(child, value, names[index])
        odd = [key for key in mapping if type(key) is not str]
        if odd:
            shown = _names.pretty_path((*path, odd[0]))
            self.misread.append(f"{shown}: the key {_names.shown_key(odd[0])} is no string")
        return Mapping(mapping, escaped, children, attributes)

    def _visit_sequence(self, sequence: Any, path: Path, name: str) -> Template:
        if not _has_other_than_scalars(sequence):
            return _VALUE
        names = _names.join_all(name, map(str, range(len(sequence))))
        children = self._visit_items(sequence, path, map(_names.Index, range(len(sequence))), names)
        if all(child.is_value for child in children):
            return _VALUE
        for index, (child, item) in enumerate(zip(children, sequence)):
            if child is _VALUE:
                children[index] = self._sized(child, item, names[index])
        return Sequence(type(sequence), children)

    def _visit_items(self, items: Any, path: Path, keys: Iterable[Any], names: List[str]) -> List[Template]:
        """What a container holds, in order. Many ordinary tensors are looked at together."""
        if len(items) < _FEW:
            return [self._visit(item, (*path, key), name) for item, key, name in zip(items, keys, names)]
        children: List[Template] = []
        keys = iter(keys)
        for begin in range(0, len(items), _CHUNK):
            chunk, some_names, some_keys = items[begin:begin + _CHUNK], names[begin:begin + _CHUNK], list(islice(keys, _CHUNK))
            try:
                ordinary = self._visit_ordinary(chunk, some_names)
            except (RuntimeError, NotImplementedError):   # one that does not answer such questions
                ordinary = None
            children += ordinary or [self._visit(item, (*path, key), name) for item, key, name in zip(chunk, some_keys, some_names)]
        return children

    def _visit_ordinary(self, tensors: Any, names: List[str]) -> Optional[List[Template]]:
        """The same as `_visit` of each, if all are dense tensors of torch that nothing is to be said of but their device and whether they
        are parameters, under names of their own. Else None, and nothing is noted."""
        torch = self.torch
        if torch is None or not set(map(type, tensors)) <= {torch.Tensor, torch.nn.Parameter}:
            return None
        base = torch.Tensor
        ids = list(map(id, tensors))
        if set(map(_get_layout, tensors)) != {torch.strided} or len(set(ids)) < len(ids) or not self._seen.keys().isdisjoint(ids):
            return None
        if any(map(_get_nested, tensors)) or any(map(_get_quantized, tensors)) or any(map(_get_meta, tensors)):
            return None
        if any(map(base.is_conj, tensors)) or any(map(base.is_neg, tensors)) or any(map(_get_vars, tensors)):
            return None
        dtypes = list(map(_tensors.of_torch, map(_get_dtype, tensors)))
        if not all(dtype is not None and dtype.in_safetensors for dtype in dtypes):
            return None
        shapes, strides = list(map(tuple, map(_get_shape, tensors))), list(map(base.stride, tensors))
        layouts = list(map(_tensors.layout_of, shapes, strides))
        if any(layout.is_odd for layout in layouts):
            return None
        ends = ((offset + layout.span_items) * item if layout.span_items else 0 for offset, layout, item in
                zip(map(base.storage_offset, tensors), layouts, map(base.element_size, tensors)))
        if any(map(lt, map(torch.UntypedStorage.nbytes, map(base.untyped_storage, tensors)), ends)):
            return None
        kinds = list(zip(map(type, tensors), map(_get_gradient, tensors), map(_get_device, tensors)))
        if not self._names.take_all(names):
            return None
        place = len(self.torch_index)
        self._keep.extend(tensors)
        self._seen.update(zip(ids, zip(names, repeat(True), range(place, place + len(ids)))))
        self.torch_index.extend(range(len(self.specs), len(self.specs) + len(ids)))
        self.specs.extend(map(Spec, names, dtypes, shapes, strides))
        of_kind = {kind: self._ordinary_template(*kind) for kind in set(kinds)}
        return [of_kind[kind] for kind in kinds]

    def _ordinary_template(self, kind: type, gradient: bool, device: Any) -> Template:
        extra: Dict[str, Any] = {}
        if kind is self.torch.nn.Parameter:   # type: ignore[union-attr]
            extra["param"] = 1
        if gradient:
            extra["grad"] = 1
        if device.type != "cpu":
            extra["dev"] = str(device)
        return Tensor(extra, None, False) if extra else _PLAIN

    def _visit_other(self, thing: Any, path: Path, name: str) -> Template:
        kind = type(thing)
        if isinstance(thing, type):
            return self._opaque(thing, path, name)
        if kind is Piece:
            return self._visit_piece(thing, path, name or _names.ROOT_NAME)
        if kind is Boxes:
            return self._visit_boxes(thing, path, name or _names.ROOT_NAME, {}, _boxes_pieces)
        if callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
            head = {"o": "state", "q": _values.class_name(kind)}
            return self._composite(thing, path, name, head, lambda it: [it.state_dict()], (None,))
        if self.torch is not None and kind is self.torch.Generator:
            head = {"o": "generator", "dev": str(thing.device)}
            return self._composite(thing, path, name, head, lambda it: [it.get_state().numpy().tobytes()], (None,))
        if self.numpy is not None:
            random = self.numpy.random
            if kind is random.RandomState:
                return self._composite(thing, path, name, {"o": "RandomState"}, lambda it: [it.get_state(legacy=False)], (None,))
            if kind is random.Generator and type(thing.bit_generator).__name__ in BIT_GENERATORS:
                head = {"o": "Generator", "q": type(thing.bit_generator).__name__}
                return self._composite(thing, path, name, head, lambda it: [it.bit_generator.state], (None,))
        try:
            _values.encode(thing)
            return _VALUE
        except (_values.NotValue, RecursionError):
            pass
        if issubclass(kind, enum.Enum):
            return self._opaque(thing, path, name)
        if _values.is_namedtuple(kind) and _values.is_resolvable(kind) and not getattr(thing, "__dict__", None):
            return self._visit_sequence(thing, path, name)
        if _values.is_plain_dataclass(kind) and _values.is_resolvable(kind):
            try:
                _values.dataclass_fields(thing)
            except _values.NotValue:
                return self._opaque(thing, path, name)
            head = {"o": "dataclass", "q": _values.class_name(kind)}
            return self._composite(thing, path, name, head, lambda it: [_values.dataclass_fields(it)], (None,))
        return self._opaque(thing, path, name)

    def _composite(self, thing: Any, path: Path, name: str, head: Dict[str, Any], derive: Any,
                   parts: Tuple[Optional[str], ...]) -> Template:
        children = []
        derived = derive(thing)
        self._keep.append(derived)
        for part, content in zip(parts, derived):
            part_path = path if part is None else (*path, part)
            part_name = name if part is None else _names.join(name, part)
            children.append(self._sized(self._visit(content, part_path, part_name), content, part_name))
        kind = Sparse if head["o"] in SPARSE_PARTS else Composite
        return kind(type(thing), head, derive, children)

    def _opaque(self, thing: Any, path: Path, name: str) -> Template:
        if self.torch is not None and isinstance(thing, (self.torch.UntypedStorage, self.torch.storage.TypedStorage)):
            raise Unsupported(f"{_names.pretty_path(path)!r} is a bare storage, which nothing could load again: save a tensor over it")
        self.opaque.append(f"{_names.pretty_path(path)} ({_values.class_name(type(thing))})")
        return Opaque(type(thing), path)

    def _sized(self, template: Template, thing: Any, name: str) -> Template:
        """The template of a subtree that is a value after all: as text, or as a blob when its text is long."""
        if template is not _VALUE:
            return template
        if name not in self.sticky and _is_surely_short(thing):
            return template
        try:
            text = _values.encode(thing)
        except _values.TooDeep:
            raise _too_deep(name) from None
        if name not in self.sticky and len(text) <= VALUE_BYTES_MAX:
            return template
        self.sticky.add(name)
        return Value(blob=True)

    # ---- Tensors ----

    def _visit_torch(self, tensor: Any, path: Path, name: str) -> Template:
        torch: Any = self.torch
        kind = type(tensor)
        is_parameter = kind is torch.nn.Parameter
        if kind is not torch.Tensor and not is_parameter:
            if _pieces.is_dtensor(tensor):
                return self._visit_dtensor(tensor, path, name or _names.ROOT_NAME)
            if kind.__name__ in ("FakeTensor", "FunctionalTensor"):
                raise Unsupported(f"{_names.pretty_path(path)!r} is a {_values.class_name(kind)}, which this version cannot save")
            return self._opaque(tensor, path, name)
        if tensor.is_nested or tensor.is_quantized:
            return self._opaque(tensor, path, name)
        head = None if tensor.layout is torch.strided else sparse_head(torch, tensor)
        if head is not None:
            self.misread.append(f"{_names.pretty_path(path)}: a sparse tensor")
            return self._composite(tensor, path, name or _names.ROOT_NAME, head, sparse_parts, SPARSE_PARTS[head["o"]])
        if tensor.layout is not torch.strided:
            return self._opaque(tensor, path, name)
        extra: Dict[str, Any] = {}
        if is_parameter:
            extra["param"] = 1
        if tensor.requires_grad:
            extra["grad"] = 1
        if tensor.is_meta:
            self.misread.append(f"{_names.pretty_path(path)}: a tensor on the meta device")
            return Meta(tensor, extra)
        seen = self._seen.get(id(tensor))
        if seen is not None:
            return self._reference(seen)
        self._keep.append(tensor)
        lazy = tensor.is_conj() or tensor.is_neg()
        stored = tensor.detach().resolve_conj().resolve_neg() if lazy else tensor
        natural = self._store_torch(stored, tensor, path, name or _names.ROOT_NAME, extra)
        shape, strides = tuple(stored.shape), tuple(stored.stride())
        if _tensors.layout_of(shape, strides).is_odd and all(stride < ODD_STRIDE_MAX for stride in strides):
            extra["st"] = list(strides)   # bytes in order, but with odd strides where an extent is 1, or none is there
        attributes = self._visit_attributes(tensor, path, name or _names.ROOT_NAME) if vars(tensor) else None
        if natural and not extra and not lazy and attributes is None and name:
            return _PLAIN
        return Tensor(extra, attributes, lazy)

    def _store_torch(self, stored: Any, place: Any, path: Path, name: str, extra: Dict[str, Any], part: Optional[Part] = None) -> bool:
        """Notes one tensor whose bytes go into the image, and in `extra` what its node says of dtype and device.

        place: the object that stands in the state, under which the tensor is found again. Returns whether it got its natural name.
        """
        dtype = _tensors.of_torch(stored.dtype)
        if dtype is None:
            raise _tensors.refuse_dtype(_names.pretty_path(path), stored.dtype)
        if dtype.name == "BITS8" and str(stored.dtype)[6:] in _tensors.BITS8_KINDS:
            extra["dt"] = str(stored.dtype)[6:]
        if not stored.is_cpu:
            extra["dev"] = str(stored.device)
        outside = _tensors.bytes_outside(stored)
        if outside:
            raise Invalid(f"{_names.pretty_path(path)!r} reaches {outside} bytes past the end of its storage, which was resized "
                          "under it: these bytes are gone, or somebody else's")
        unique, natural = self._names.take(name)
        self._note_misread(path, unique, natural, dtype)
        self._seen[id(place)] = (unique, True, len(self.torch_index))
        self.torch_index.append(len(self.specs))
        self.specs.append(Spec(unique, dtype, tuple(stored.shape), tuple(stored.stride()), part))
        return natural

    # ---- Pieces ----

    def _visit_piece(self, piece: Any, path: Path, name: str, logical: str = "") -> Template:
        seen = self._seen.get(id(piece))
        if seen is not None:
            return self._reference(seen)
        tensor, where = piece.tensor, _names.pretty_path(path)
        if not _pieces.is_dense(tensor) or _pieces.outside(tuple(tensor.shape), piece.global_shape, piece.offset):
            raise Invalid(f"{where!r} is a Piece whose tensor has been changed: it {_pieces.why_not_whole(piece)}")
        logical = piece.name or logical
        part = Part(piece.global_shape, piece.offset, "" if logical == name else logical)
        self._keep.append(piece)
        self.misread.append(f"{where}: a piece of a larger tensor")
        if self.numpy is not None and isinstance(tensor, self.numpy.ndarray):
            if not _tensors.is_storable_array(tensor) or _tensors.BY_NUMPY.get(tensor.dtype.str) is None:
                raise Unsupported(f"{where!r} is a Piece of NumPy dtype {tensor.dtype}, which neve cannot store in pieces")
            content, _ = self._store_array(tensor, piece, path, name, part)
            return Held(piece, content)
        extra: Dict[str, Any] = {}
        if type(tensor) is self.torch.nn.Parameter:   # type: ignore[union-attr]
            extra["param"] = 1
        if tensor.requires_grad:
            extra["grad"] = 1
        if tensor.is_meta or tensor.is_conj() or tensor.is_neg():
            raise Unsupported(f"{where!r} is a Piece of a tensor without memory of its values: on the meta device, or lazily "
                              "conjugated or negated")
        natural = self._store_torch(tensor, piece, path, name, extra, part)
        return Held(piece, _PLAIN if natural and not extra else Tensor(extra, None, False))

    def _visit_boxes(self, thing: Any, path: Path, name: str, extra: Dict[str, Any], pieces_of: Any) -> Template:
        pieces = pieces_of(thing)
        self._keep.append(pieces)
        children = [self._visit_piece(piece, (*path, _names.Index(index)), _names.join(name, str(index)), name)
                    for index, piece in enumerate(pieces)]
        return Composite(type(thing), {"o": "pieces", **extra}, pieces_of, children)

    def _visit_dtensor(self, tensor: Any, path: Path, name: str) -> Template:
        torch: Any = self.torch
        seen = self._seen.get(id(tensor))
        if seen is not None:
            return self._reference(seen)
        where = _names.pretty_path(path)
        boxes = _pieces.dtensor_boxes(tensor, where)
        local = _pieces.local_tensor(tensor)
        if local.is_meta or local.is_conj() or local.is_neg():
            raise Unsupported(f"{where!r} is a DTensor without memory of its values: on the meta device, or lazily conjugated")
        self._keep.append(tensor)
        self.misread.append(f"{where}: a piece of a larger tensor")
        self.dropped += [f"{_names.pretty_path((*path, attribute))} ({_values.class_name(type(value))})"
                         for attribute, value in vars(tensor).items() if not attribute.startswith("_")]
        extra: Dict[str, Any] = {}
        if isinstance(tensor, torch.nn.Parameter):
            extra["param"] = 1
        if tensor.requires_grad:
            extra["grad"] = 1
        if len(boxes) > 1:
            return self._visit_boxes(tensor, path, name, extra, _pieces.dtensor_pieces)
        part = Part(tuple(tensor.shape), boxes[0].offset)
        stored = _pieces.part_of(local, boxes[0])
        key = (stored.data_ptr(), str(stored.device), stored.shape, stored.stride(), stored.dtype, part)
        first = self._memory.get(key) if stored.numel() else None
        if first is not None:
            return SharedMemory(tensor, boxes[0], *first)
        self._memory[key] = (name, len(self.torch_index))
        natural = self._store_torch(stored, tensor, path, name, extra, part)
        if not natural:
            del self._memory[key]   # its name in the image is another
        return Distributed(tensor, boxes[0], extra, natural and not extra)

    def _visit_attributes(self, tensor: Any, path: Path, name: str) -> Template:
        kept = storable_attributes(tensor)
        for attribute in vars(tensor).keys() - kept.keys():
            kind = _values.class_name(type(vars(tensor)[attribute]))
            self.dropped.append(f"{_names.pretty_path((*path, attribute))} ({kind})")
        self._keep.append(kept)
        return self._sized(self._visit(kept, path, _names.join(name, "~py")), kept, _names.join(name, "~py"))

    def _visit_array(self, array: Any, path: Path, name: str) -> Template:
        if not _tensors.is_storable_array(array):
            return self._opaque(array, path, name)
        seen = self._seen.get(id(array))
        if seen is not None:
            return self._reference(seen)
        self._keep.append(array)
        template, text = self._store_array(array, array, path, name or _names.ROOT_NAME)
        if text is not None:
            self.misread.append(f"{_names.pretty_path(path)}: a NumPy array of dtype {text}")
        return template

    def _store_array(self, array: Any, place: Any, path: Path, name: str,
                     part: Optional[Part] = None) -> Tuple[Template, Optional[str]]:
        described = _tensors.describe_array(array)
        copied = described is None
        if described is None:
            described = _tensors.describe_array(contiguous_copy(array))
            assert described is not None
        dtype, shape, strides, text = described
        unique, natural = self._names.take(name)
        self._note_misread(path, unique, natural, dtype)
        self._seen[id(place)] = (unique, False, len(self.array_index))
        self.array_index.append(len(self.specs))
        self.array_specs.append(described)
        self.specs.append(Spec(unique, dtype, tuple(shape), tuple(strides), part))
        return Array(copied, text), text

    def _reference(self, seen: Tuple[str, bool, int]) -> Template:
        name, is_torch, place = seen
        self.references.append((is_torch, place))
        return Reference(name)

    def _note_misread(self, path: Path, name: str, natural: bool, dtype: "_tensors.DType") -> None:
        if not dtype.in_safetensors:
            self.misread.append(f"{_names.pretty_path(path)}: dtype {dtype.torch}")
        if not natural:
            self.misread.append(f"{_names.pretty_path(path)}: its name is taken, and would be {name}")


def _boxes_pieces(boxes: Boxes) -> List[Piece]:
    return boxes.pieces


def _too_deep(where: str) -> Invalid:
    shown = "the state" if not where else where if len(where) <= 80 else where[:77] + "..."
    return Invalid(f"{shown!r} is nested too deep: a state, and a value in it, can be nested {_values.DEPTH_MAX} deep")


def _is_surely_short(thing: Any) -> bool:
    """Whether its text is known to be short without being written: of a character there are up to six."""
    kind = type(thing)
    if kind is str or kind is bytes:
        return len(thing) <= VALUE_BYTES_MAX // 8
    return kind is int and _values.is_short_int(thing) or kind is float or kind is bool or thing is None


def _has_other_than_scalars(sequence: Any) -> bool:
    return not set(map(type, sequence)) <= _SCALARS
