"""Restoring into a state that exists: which saved entry goes where, decided and checked before anything is written.

`Binder.bind` compares one saved place with one place of the target and returns a step to be run once the tensors have been
read; the step gives the object that belongs there. What does not fit is listed, by dotted name.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _bind_pieces, _names, _optimizers, _overlap, _tensors, _values
from ._bind_pieces import PieceReads
from ._boxes import Whole
from ._image import Header, Logical
from ._objects import StateCheck
from ._rebuild import Builder, Tensors, set_generator
from ._saved import (
    Saved, SavedBlob, SavedComposite, SavedDict, SavedLeftOut, SavedList, SavedMeta, SavedReference, SavedTensor, SavedValue,
    Select, is_partial,
)
from ._targets import array_dtype
from ._template import SPARSE_PARTS
from ._tensors import Shape
from .errors import Error, Invalid

Step = Callable[[], Any]

_REPLACEABLE = (type(None), bool, int, float, complex, str, bytes)


class Binder:
    """Matches a saved tree with a target."""

    def __init__(self, header: Header, tensors: Tensors, builder: Builder, select: Select, pieces: PieceReads) -> None:
        self._header, self._tensors, self._builder, self._select, self._pieces = header, tensors, builder, select, pieces
        self.missing: List[str] = []      # in the target, not saved
        self.unexpected: List[str] = []   # saved, no place for it
        self.different: List[str] = []    # "name: what differs"
        self.added: List[str] = []
        self._bound: Dict[int, Tuple[str, str]] = {}   # id of a target -> name, stored entry
        self._keep: List[Any] = []
        self._places: List[_overlap.Place] = []
        self._box_of: Dict[Any, Tuple[Whole, Shape]] = {}   # of places that are boxes: logical tensor, offset
        self._undo: Dict[str, Callable[[], Any]] = {}  # by name, what leaves a target alone after all
        self.impossible = False                        # something cannot even be restored in part

    def bind(self, node: Saved, target: Any) -> Step:
        """The step for one place."""
        if isinstance(node, SavedReference):
            return self._bind_tensor(node.target, target, node.name)
        if isinstance(node, SavedTensor):
            return self._bind_tensor(node, target, node.name)
        if isinstance(node, (SavedValue, SavedBlob)):
            return self._bind_value(node.value, target, node.name)
        if isinstance(node, SavedLeftOut):
            return lambda: target
        if isinstance(node, SavedMeta):
            return self._bind_meta(node, target)
        if isinstance(node, SavedComposite):
            return self._bind_composite(node, target)
        if _has_state(target):
            return self._load_state(node, target)
        if isinstance(node, SavedDict) and isinstance(target, MutableMapping):
            return self._bind_dict(node, target)
        if isinstance(node, SavedList) and isinstance(target, (list, tuple)):
            return self._bind_list(node, target)
        saved_as = "a dict" if isinstance(node, SavedDict) else "a list"
        if isinstance(target, _REPLACEABLE):
            return self._replaced(node, target, saved_as)
        return self._no_place(node.name, saved_as, target)

    def check_shared_memory(self) -> None:
        """Lists the targets that share memory where what was saved for them does not."""
        for refused, why in _overlap.conflicts(self._places, self._fetch):
            for place in self._places:
                if place[1:] == refused[1:]:   # met under other names as well, maybe
                    self.different.append(f"{place.name}: {why}")
                    self._undo[place.name]()
        self._undo.clear()   # some know this binder, which would outlive the restore until the garbage collector comes by

    def _fetch(self, place: _overlap.Place, memory: Any) -> bool:
        """What was saved for a place that is a box."""
        found = self._box_of.get(place[1:])
        if found is not None:
            self._pieces.fetch(*found, memory)
        return found is not None

    # ---- Outcomes ----

    def _replaced(self, node: Saved, target: Any, saved_as: str) -> Step:
        """For a number, a string or None in the target: what was saved takes its place, unless that has tensors, for which it is
        none."""
        return self._no_place(node.name, saved_as, target) if _has_tensors(node) else self._fresh(node)

    def _fresh(self, node: Saved) -> Step:
        self._tensors.want_all(node)
        return lambda: self._builder.build(node)

    def _no_place(self, name: str, saved_as: str, target: Any) -> Step:
        self.different.append(f"{name or 'the state'}: saved as {saved_as}, in the target a {type(target).__name__}")
        return lambda: target

    def _load_state(self, node: Saved, target: Any) -> Step:
        torch = _tensors.loaded_torch()
        optimizer = torch is not None and isinstance(target, torch.optim.Optimizer)
        if self._pieces.saved_in_boxes(node) or _bind_pieces.state_in_boxes(target):
            return self._load_optimizer(node, target) if optimizer else self._load_filled(node, target)
        if optimizer and (_optimizers.has_names(target, node) or _optimizers.has_text_keys(node)) and not is_partial(node):
            return self._load_optimizer(node, target)
        check = StateCheck(node, target, self._select, self._unfit)
        if not check.known and is_partial(node):
            self.different.append(f"{node.name or 'the state'}: {type(target).__name__}.load_state_dict() takes all of a state, "
                                  "and include= leaves some of it out")
            return lambda: target
        self.missing += check.missing
        self.unexpected += check.unexpected
        self.different += check.different
        self.impossible = self.impossible or check.impossible
        for name, key in check.filled.items():
            self._undo[name] = partial(check.leave_out, key)
        self._tensors.want_all(node)
        return self._loading(node, target, lambda: check.load(self._builder.build(node)))

    def _load_filled(self, node: Saved, target: Any) -> Step:
        """An object some of whose tensors are boxes: its own state is filled in place, and then given to it."""
        torch = _tensors.loaded_torch()
        state = target.state_dict()
        module = torch is not None and isinstance(target, torch.nn.Module)
        if module and isinstance(node, SavedDict):
            kept = [(key, child) for key, child in zip(node.keys, node.children) if key in state]
            self.unexpected += [child.name for key, child in zip(node.keys, node.children) if key not in state]
            node = SavedDict(node.name, [key for key, _ in kept], [child for _, child in kept], node.kind, None, True)
        fill = self.bind(node, state)
        return self._loading(node, target, lambda: target.load_state_dict(fill(), strict=False) if module
                             else target.load_state_dict(fill()))

    def _load_optimizer(self, node: Saved, target: Any) -> Step:
        """An optimizer whose parameters are boxes or have names: each entry is laid out as its parameter is here."""
        matched, why_not = _optimizers.match(target, node)
        if matched is None or is_partial(node):
            self.different.append(f"{node.name or 'the state'}: " + (why_not or "include= leaves some of an optimizer's state out"))
            self.impossible = True
            return lambda: target
        parameters = [parameter for group in target.param_groups for parameter in group["params"]]
        steps: Dict[int, Step] = {}
        saved_state = _optimizers.child_of(node, "state")
        entries = _optimizers.entries_of(saved_state)
        for index, (key, parameter) in enumerate(zip(matched.entries, parameters)):
            entry = entries.pop(key, None)
            if isinstance(entry, SavedDict):
                ours = target.state.get(parameter, {})
                into = {}
                for part, child in zip(entry.keys, entry.children):
                    tensor = child.target if isinstance(child, SavedReference) else child
                    whole = self._pieces.whole(tensor) if isinstance(tensor, SavedTensor) else None
                    place = _optimizers.target_of(parameter, ours.get(part), whole, child.name)
                    if place is not None:
                        into[part] = place
                steps[index] = _in_order(entry.keys, self._bind_dict(entry, into))
            elif entry is not None:
                steps[index] = _constant(_optimizers.plain(entry))
        self.unexpected += [_names.join(_names.join(node.name, "state"), str(key)) for key in entries]
        rest = _without(node, "state")
        self._tensors.want_all(rest)
        return self._loading(node, target, lambda: target.load_state_dict(_optimizers.arranged(
            self._builder.build(rest), {index: step() for index, step in steps.items()}, matched, target)))

    def _loading(self, node: Saved, target: Any, load: Callable[[], Any]) -> Step:
        """The step that gives an object its state."""
        def give() -> Any:
            self._tensors.written.append(node.name or "the state")
            try:
                load()
            except Error:
                raise
            except Exception as error:
                raise Invalid(f"{node.name or 'the state'}: load_state_dict() of {type(target).__name__} refused what was "
                              f"saved: {error}") from error
            return target

        return give

    # ---- Tensors ----

    def _bind_tensor(self, node: SavedTensor, target: Any, name: str) -> Step:
        if isinstance(target, _REPLACEABLE):
            return self._no_place(name, "a tensor", target)
        if self._header.tensors[node.index].name in self._header.pieces or _bind_pieces.holds_boxes(target):
            return self._bind_boxes(node, target, name)
        text = self._unfit(node, target, name)
        if text is not None:
            self.different.append(text)
            return lambda: target
        self._undo[name] = partial(self._tensors.drop_target, node, target)
        self._tensors.want(node, target)
        return lambda: target

    def _unfit(self, node: SavedTensor, target: Any, name: str) -> Optional[str]:
        """Why a saved tensor cannot go into the target's memory, as "name: why"; else None, and the memory is noted."""
        logical = self._header.tensors[node.index]
        shape, kind = list(logical.shape), logical.dtype.name
        text = node.extra.get("np")
        if isinstance(text, str):
            shape, kind = shape[:-1], text
        elif "dt" in node.extra:
            kind = node.extra["dt"]
        found = _describe_target(target)
        if found is None:
            return f"{name}: saved as a tensor, in the target a {type(target).__name__}"
        refused = _why_not_writable(target)
        if refused is not None:
            return f"{name}: {refused}"
        if found != (kind, shape):
            return f"{name}: {kind} {shape} saved, {found[0]} {found[1]} in the target"
        known = self._bound.get(id(target))
        if known is not None and known[1] != logical.stored:
            return f"{name}: one tensor with {known[0]} in the target, but not in the save"
        self._bound[id(target)] = (name, logical.stored)
        self._keep.append(target)
        self._places.append(_place(name, logical, target, text if isinstance(text, str) else None))
        return None

    def _bind_boxes(self, node: SavedTensor, target: Any, name: str) -> Step:
        """A place that is a box, or several, of a logical tensor, in the save or in the target."""
        whole = self._pieces.whole(node)
        held = _bind_pieces.boxes_of(target, name)
        if held is None:
            self.different.append(f"{name}: saved as a tensor, in the target a {type(target).__name__}")
            return lambda: target
        kind = whole.dtype.name if "dt" not in node.extra else node.extra["dt"]
        for offset, memory in held.boxes:
            refused = _why_not_writable(memory)
            if refused is None and (_bind_pieces.dtype_of(memory), held.global_shape) != (kind, whole.global_shape):
                refused = (f"{kind} {list(whole.global_shape)} saved, {_bind_pieces.dtype_of(memory)} {list(held.global_shape)} "
                           "in the target")
            if refused is not None:
                self.different.append(f"{name}: {refused}")
                return lambda: target
        self._keep += [target, held]
        undo: List[Callable[[], Any]] = []
        self._undo[name] = lambda: [leave() for leave in undo]
        for offset, memory in held.boxes:
            place = whole.exactly(offset, tuple(memory.shape))
            if place is None:
                self._pieces.want(name, whole, offset, memory)
                undo.append(partial(self._pieces.drop, memory))
            elif 0 not in memory.shape:   # the box that was saved, as where the layout has not changed
                saved = SavedTensor(name, place, {})
                self._tensors.want(saved, memory)
                undo.append(partial(self._tensors.drop_target, saved, memory))
            self._note_box(node, name, whole, offset, memory)
        return lambda: target

    def _note_box(self, node: SavedTensor, name: str, whole: Whole, offset: Shape, memory: Any) -> None:
        """A box as a place of the target, beside others that may share its memory."""
        logical, item = self._header.tensors[node.index], whole.dtype.item_bytes
        if self._pieces.is_piece(whole):
            stored, begin, strides = f"\0{whole.name}", 0, _tensors.row_major(whole.global_shape)
        else:
            stored, begin, strides = logical.stored, logical.offset_bytes, logical.strides
        strides = tuple([stride * item for stride in strides])
        begin += sum(at * stride for at, stride in zip(offset, strides))
        place = _overlap.Place(name, *_memory_of(memory), item, stored, begin, strides)
        self._places.append(place)
        self._box_of[place[1:]] = whole, offset

    def _bind_meta(self, node: SavedMeta, target: Any) -> Step:
        torch = _tensors.loaded_torch()
        if torch is not None and isinstance(target, torch.Tensor):
            if not target.is_meta or list(target.shape) != list(node.extra["sh"]):
                self.different.append(f"{node.name}: a meta tensor {list(node.extra['sh'])} saved, "
                                      f"{list(target.shape)} on {target.device} in the target")
            return lambda: target
        return self._no_place(node.name, "a meta tensor", target)

    # ---- Containers ----

    def _bind_dict(self, node: SavedDict, target: Any) -> Step:
        steps: List[Tuple[Any, Step]] = []
        saved_keys = set()
        for key, child in zip(node.keys, node.children):
            saved_keys.add(key)
            if key in target:
                steps.append((key, self.bind(child, target[key])))
            else:
                self.added.append(child.name)
                steps.append((key, self._fresh(child)))
        self._note_missing(node.name, target, saved_keys)
        attributes = node.attributes if isinstance(target, OrderedDict) else None
        if attributes is not None:
            self._tensors.want_all(attributes)

        def fill() -> Any:
            for key, step in steps:
                value = step()
                if key not in target or target[key] is not value:
                    target[key] = value
            if attributes is not None:
                vars(target).update(self._builder.build(attributes))
            return target

        return fill

    def _bind_list(self, node: SavedList, target: Any) -> Step:
        if node.name.rpartition(".")[2] == "param_groups":
            order = self._order_of_groups(node, target, node.name)
            if order is not None:
                node = SavedList(node.name, [node.children[index] for index in order], node.kind)
        steps: List[Step] = []
        for index, child in enumerate(node.children):
            if index < len(target):
                steps.append(self.bind(child, target[index]))
            elif isinstance(child, SavedLeftOut):
                if not all(isinstance(later, SavedLeftOut) for later in node.children[index:]):
                    where = node.name or "the state"
                    self.different.append(f"{where}: include= leaves out item {index}, which the target lacks")
                break
            else:
                self.added.append(child.name)
                steps.append(self._fresh(child))
        for index in range(len(node.children), len(target)):
            self._note_leaves(_names.join(node.name, str(index)), target[index])
        if isinstance(target, list):
            def fill() -> Any:
                for index, step in enumerate(steps):
                    value = step()
                    if index >= len(target):
                        target.append(value)
                    elif target[index] is not value:
                        target[index] = value
                return target

            return fill
        rest = list(target[len(steps):])
        return lambda: self._builder.sequence(node, [step() for step in steps] + rest)

    def _order_of_groups(self, saved: Any, target: Any, name: str) -> Optional[List[int]]:
        """Which saved parameter group each of the target's is, where their parameters are named and stand in another order."""
        try:
            return _optimizers.order_of_groups(saved, target)
        except ValueError as error:
            self.different.append(f"{name}: {error}")
            return None

    def _note_missing(self, name: str, target: Any, saved_keys: Any) -> None:
        for key in target:
            if key not in saved_keys:
                try:
                    component = _names.escape(key)
                except _values.NotValue:
                    component = repr(key)
                self._note_leaves(_names.join(name, component), target[key])

    def _note_leaves(self, name: str, target: Any) -> None:
        if isinstance(target, MutableMapping) and len(target):
            self._note_missing(name, target, ())
        elif isinstance(target, (list, tuple)) and len(target):
            for index, item in enumerate(target):
                self._note_leaves(_names.join(name, str(index)), item)
        elif self._select is None or self._select(name):
            self.missing.append(name)

    # ---- Values ----

    def _bind_value(self, value: Any, target: Any, name: str) -> Step:
        if isinstance(value, dict) and isinstance(target, MutableMapping):
            return self._bind_value_dict(value, target, name)
        if isinstance(value, dict) and _has_state(target):
            return self._load_state(SavedValue(name, value), target)
        if isinstance(value, list) and isinstance(target, list):
            return self._bind_value_list(value, target, name)
        if _describe_target(target) is not None or isinstance(target, (MutableMapping, list)) or _has_state(target):
            return self._no_place(name, f"a {type(value).__name__}", target)
        if isinstance(target, tuple) and _holds_tensor(target):
            return self._no_place(name, f"a {type(value).__name__}", target)
        return lambda: value

    def _bind_value_dict(self, value: Dict[Any, Any], target: Any, name: str) -> Step:
        steps: List[Tuple[Any, Step]] = []
        for key, item in value.items():
            child_name = _names.join(name, _names.escape(key))
            if key in target:
                steps.append((key, self._bind_value(item, target[key], child_name)))
            else:
                self.added.append(child_name)
                steps.append((key, _constant(item)))
        self._note_missing(name, target, value)

        def fill() -> Any:
            for key, step in steps:
                target[key] = step()
            return target

        return fill

    def _bind_value_list(self, value: List[Any], target: List[Any], name: str) -> Step:
        if name.rpartition(".")[2] == "param_groups":
            order = self._order_of_groups(value, target, name)
            value = value if order is None else [value[index] for index in order]
        if len(value) != len(target) or not any(isinstance(item, (dict, list, tuple)) for item in value):
            if not _holds_tensor(target):
                def replace() -> Any:
                    target[:] = value
                    return target

                return replace
        steps = [self._bind_value(item, target[index], _names.join(name, str(index))) if index < len(target)
                 else _constant(item) for index, item in enumerate(value)]
        for index in range(len(value), len(target)):
            self._note_leaves(_names.join(name, str(index)), target[index])

        def fill() -> Any:
            results = [step() for step in steps]
            target[:len(results)] = results
            return target

        return fill

    # ---- Composites ----

    def _bind_composite(self, node: SavedComposite, target: Any) -> Step:
        if isinstance(target, _REPLACEABLE):
            return self._replaced(node, target, f"a {node.kind}")
        if node.kind == "pieces":
            return self._bind_tensor(node.children[0], target, node.name)   # type: ignore[arg-type]
        if node.kind == "state":
            if _has_state(target):
                return self._load_state(node.children[0], target)
            return self.bind(node.children[0], target)
        if node.kind == "dataclass":
            return self._bind_dataclass(node, target)
        if node.kind in SPARSE_PARTS:
            return self._bind_sparse(node, target)
        if type(target).__name__ == node.kind.capitalize() or type(target).__name__ == node.kind:
            state = node.children[0]
            self._tensors.want_all(state)

            def set_state() -> Any:
                set_generator(target, self._builder.build(state), node.name)
                return target

            return set_state
        return self._no_place(node.name, f"a {node.kind}", target)

    def _bind_dataclass(self, node: SavedComposite, target: Any) -> Step:
        fields = node.children[0]
        if not dataclasses.is_dataclass(target) or isinstance(target, type) \
                or _values.class_name(type(target)) != node.head["q"] or not isinstance(fields, SavedDict):
            return self._no_place(node.name, f"a {node.head['q']}", target)
        known = {field.name for field in dataclasses.fields(target)}
        if not set(fields.keys) <= known:
            return self._no_place(node.name, f"a {node.head['q']} with fields {fields.keys}", target)
        holder = _values.dataclass_fields(target)
        fill = self._bind_dict(fields, holder)

        def set_fields() -> Any:
            fill()
            for key, value in holder.items():
                object.__setattr__(target, key, value)
            return target

        return set_fields

    def _bind_sparse(self, node: SavedComposite, target: Any) -> Step:
        torch = _tensors.loaded_torch()
        if torch is None or not isinstance(target, torch.Tensor) or list(target.shape) != list(node.head["sh"]):
            return self._no_place(node.name, f"a sparse tensor {node.head['sh']}", target)
        values = node.children[-1]
        if isinstance(values, SavedTensor):
            saved = self._header.tensors[values.index].dtype
            if _tensors.of_torch(target.dtype) != saved:
                return self._no_place(node.name, f"a sparse tensor of {saved.name}", target)
        return self._fresh(node)   # its components have other sizes: a new one takes the place


def _constant(value: Any) -> Step:
    return lambda: value


def _without(node: Saved, key: str) -> Saved:
    """A saved dictionary without one of its keys."""
    if isinstance(node, SavedComposite):
        node = node.children[0]
    if isinstance(node, (SavedValue, SavedBlob)) and isinstance(node.value, dict):
        return SavedValue(node.name, {name: value for name, value in node.value.items() if name != key})
    if not isinstance(node, SavedDict):
        return node
    kept = [(name, child) for name, child in zip(node.keys, node.children) if name != key]
    return SavedDict(node.name, [name for name, _ in kept], [child for _, child in kept], node.kind, node.attributes, node.partial)


def _has_state(target: Any) -> bool:
    return not isinstance(target, type) and callable(getattr(target, "load_state_dict", None))


def _is_wrapper(torch: Any, target: Any) -> bool:
    """Whether the tensor is of a class that does its own operations, and may have no memory (DTensor, FakeTensor)."""
    kind = type(target)
    return kind is not torch.Tensor and getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


def _describe_target(target: Any) -> Optional[Tuple[str, List[int]]]:
    """(dtype, shape) of a dense torch tensor or a NumPy array, else None."""
    torch, numpy = _tensors.loaded_torch(), _tensors.loaded_numpy()
    if torch is not None and isinstance(target, torch.Tensor):
        if target.is_nested or _is_wrapper(torch, target):
            return f"a {'nested tensor' if target.is_nested else type(target).__name__} of {target.dtype}", []
        dtype = _tensors.of_torch(target.dtype)
        if str(target.layout) != "torch.strided" or target.is_meta:
            return f"{target.layout} {target.dtype}", list(target.shape)
        text = str(target.dtype)[6:]
        return (text if dtype is None or text in _tensors.BITS8_KINDS else dtype.name), list(target.shape)
    if numpy is not None and isinstance(target, numpy.ndarray):
        dtype = _tensors.BY_NUMPY.get(target.dtype.str)
        return (target.dtype.str if dtype is None else dtype.name), list(target.shape)
    return None


def _why_not_writable(target: Any) -> Optional[str]:
    """Why a tensor or array cannot be changed, or None."""
    numpy = _tensors.loaded_numpy()
    if numpy is not None and isinstance(target, numpy.ndarray):
        return None if target.flags.writeable else "the target's array is read-only"
    torch = _tensors.loaded_torch()
    assert torch is not None
    if target.is_inference() and not torch.is_inference_mode_enabled():
        return "the target is an inference tensor, which only torch.inference_mode() may change"
    return None


def _place(name: str, logical: Logical, target: Any, dtype_text: Optional[str]) -> _overlap.Place:
    item, shape, strides = logical.dtype.item_bytes, logical.shape, logical.strides
    if dtype_text is not None:   # stored as bytes, with one more dimension
        item, shape, strides = array_dtype(dtype_text, name).itemsize, shape[:-1], strides[:-1]
    else:
        strides = tuple([stride * item for stride in strides])
    device, address, _, ours = _memory_of(target)
    return _overlap.Place(name, device, address, shape, ours, item, logical.stored, logical.offset_bytes, strides)


def _in_order(keys: Sequence[Any], step: Step) -> Step:
    """The step's dictionary with its keys in the order they were saved in: those that had no place came last."""
    def give() -> Any:
        made = step()
        return {key: made[key] for key in keys}

    return give


def _memory_of(target: Any) -> Tuple[str, int, Shape, Shape]:
    """Device, address, shape, and strides in bytes of a tensor or an array."""
    numpy = _tensors.loaded_numpy()
    if numpy is not None and isinstance(target, numpy.ndarray):
        return "cpu", int(target.__array_interface__["data"][0]), target.shape, target.strides
    item = target.element_size()
    return str(target.device), target.data_ptr(), tuple(target.shape), tuple([stride * item for stride in target.stride()])


def _has_tensors(node: Saved) -> bool:
    if isinstance(node, (SavedDict, SavedList, SavedComposite)):
        return any(map(_has_tensors, node.children))
    return isinstance(node, (SavedTensor, SavedReference, SavedMeta))


def _holds_tensor(target: Any) -> bool:
    if isinstance(target, (list, tuple)):
        return any(_holds_tensor(item) for item in target)
    if isinstance(target, MutableMapping):
        return any(_holds_tensor(item) for item in target.values())
    return _describe_target(target) is not None or _has_state(target)


def mismatch(binder: Binder, what: str) -> Optional[Invalid]:
    """The error that lists all that does not fit, or None."""
    parts = []
    for title, names in (("in the target but not saved", binder.missing),
                         ("saved but without a place in the target", binder.unexpected), ("different", binder.different)):
        if names:
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            parts.append(f"{title}: {', '.join(names[:20])}{more}")
    if not parts:
        return None
    hint = prefix_hint(binder.missing, binder.unexpected + binder.added)
    return Invalid(f"{what} does not fit the target; nothing was changed. {'; '.join(parts)}{hint}")


def prefix_hint(missing: List[str], extra: List[str]) -> str:
    """What to say when names differ by a prefix only: "module." put before them by a wrapper, say."""
    if not missing or not extra:
        return ""
    for longer, shorter, where in ((extra, missing, "saved"), (missing, extra, "target's")):
        short = set(shorter)
        found: Dict[Tuple[str, str], int] = {}   # (what both begin with, what only the longer have after it) -> names that fit
        for name in longer:
            parts = name.split(".")
            for begin in range(min(len(parts) - 1, 4)):
                for end in range(begin + 1, len(parts)):
                    if ".".join(parts[:begin] + parts[end:]) in short:
                        key = "".join(part + "." for part in parts[:begin]), "".join(part + "." for part in parts[begin:end])
                        found[key] = found.get(key, 0) + 1
        for (head, extra_part), hits in sorted(found.items()):
            if hits * 2 >= len(shorter):
                without = "it" if not head else repr(extra_part)
                begin_with = f"the {where} names begin with {head + extra_part!r}"
                return f". Hint: {begin_with}; without {without} {hits} of {len(shorter)} fit"
    return ""
