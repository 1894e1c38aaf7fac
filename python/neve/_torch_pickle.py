"""The pickle that torch.save would write of an object, and the storages that it names.

Plain states (dicts, lists and numbers around ordinary tensors) are written by `_torch_plain` at a fraction of the cost. What
it does not know goes through pickle itself, as torch does it, so that whatever torch.save can save is saved.
"""

from __future__ import annotations

import io
import pickle
import types
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from . import _names, _tensors, _values
from ._torch_plain import NotPlain, plain_pickle
from ._torch_storages import Part, Plan, Storages, Use, plan
from .errors import Invalid, Unsupported

PROTOCOL = 2   # what restricted loaders read


class Pickled(NamedTuple):
    """A pickle, and the storages that it names by the keys "0", "1", ..."""

    content: bytes
    parts: List[Part]
    on_host: bool        # all of them
    unsafe: List[Any]    # classes and functions that weights-only loading refuses


def pickle_object(obj: Any, module: Any = pickle, protocol: int = PROTOCOL) -> Pickled:
    """Pickles an object as torch.save does. :class:`neve.Unsupported` names the place of what cannot be pickled."""
    torch = _tensors.loaded_torch()
    if module is pickle and protocol == PROTOCOL:
        try:
            return Pickled(*plain_pickle(torch, obj), True, [])
        except (NotPlain, RecursionError):
            pass
    try:
        if torch is None:
            return Pickled(module.dumps(obj, protocol=protocol), [], True, [])
        first = _dump(torch, obj, module, protocol, {})
        plans = first.plans(obj)
        return (_dump(torch, obj, module, protocol, plans) if plans else first).result()
    except RecursionError:
        raise Invalid("the object is nested too deep to be pickled") from None
    except (Invalid, Unsupported):
        raise
    except Exception as error:  # whatever a class's own pickling raises
        path, culprit = _unpicklable(obj, (), 0)
        raise Unsupported(f"{_names.pretty_path(path)!r} is a {_values.class_name(type(culprit))} and cannot be pickled: {error}. "
                          "Leave it out, or save its state_dict()") from error


class _Reference:
    """Stands for a storage in the arguments of a tensor: pickled as this persistent id."""

    __slots__ = ("persistent_id",)

    def __init__(self, persistent_id: Tuple[Any, ...]) -> None:
        self.persistent_id = persistent_id


class _Dump:
    """One run of a pickler."""

    def __init__(self, torch: Any, plans: Dict[int, Plan]) -> None:
        self.torch = torch
        self.buffer = io.BytesIO()
        self.storages = Storages(plans)
        self.uses: Dict[int, Use] = {}
        self.unsafe: List[Any] = []
        self._storage_types = {torch.storage.TypedStorage, torch.storage.UntypedStorage, *torch._storage_classes}
        self._dtypes = _dtype_table(torch)
        self._allowed = allowed_globals(torch)

    def result(self) -> Pickled:
        return Pickled(self.buffer.getvalue(), self.storages.parts, False, self.unsafe)

    def plans(self, obj: Any) -> Dict[int, Plan]:
        """What is to be done otherwise in a second run."""
        plans = {}
        for identity, use in self.uses.items():
            if use.is_mixed and use.is_typed:
                names = ", ".join(storage_places(obj, self.torch, identity)) or "two of its tensors"
                raise Unsupported(f"{names} view the same {use.size} bytes as different types, and one of them is of a kind that "
                                  "torch saves with its storage's type: clone one of them")
            end = max((end for begin, end in use.spans or () if end > begin), default=0)
            if end > use.size and use.storage.device.type != "meta":
                names = ", ".join(storage_places(obj, self.torch, identity)) or "a tensor"
                raise Invalid(f"{names} reaches {end - use.size} bytes past the end of its storage, which was resized under it: "
                              "these bytes are gone, or somebody else's")
            found = plan(use.size, use.spans, use.is_mixed)
            if found is not None:
                plans[identity] = found
        return plans

    # ---- What pickle asks ----

    def persistent_id(self, thing: Any) -> Optional[Tuple[Any, ...]]:
        kind = type(thing)
        if kind is _Reference:
            return thing.persistent_id  # type: ignore[no-any-return]
        if kind in self._storage_types:
            return self._storage_id(thing)
        return None

    def reduce(self, thing: Any) -> Any:
        """For `reducer_override`: ordinary tensors at once, everything else as torch and pickle do."""
        torch, kind = self.torch, type(thing)
        if kind is torch.Tensor:
            return self._reduce_tensor(thing)
        if isinstance(thing, (type, types.FunctionType, types.BuiltinFunctionType)):
            name = f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"
            if name not in self._allowed:
                self.unsafe.append(thing)
        return NotImplemented

    def _reduce_tensor(self, tensor: Any) -> Any:
        torch = self.torch
        entry = self._dtypes.get(tensor.dtype)
        ordinary = (entry is not None and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested
                    and not tensor.__dict__ and not tensor._backward_hooks and tensor.device.type in ("cpu", "cuda"))
        if not ordinary:
            return NotImplemented
        assert entry is not None
        item, storage_type = entry
        storage = tensor.untyped_storage()
        offset, shape, stride = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        begin = offset * item
        end = begin + _tensors.span_items(shape, stride) * item
        identity = storage._cdata
        self._note(identity, storage, tensor.dtype, (begin, end))
        done = self.storages.plans.get(identity)
        first, last = 0, storage.nbytes()
        if done is not None and done.begins:
            first, last = done.part(begin)
            offset = max(begin - first, 0) // item
        key = str(self.storages.key(identity, storage, first, last))
        lazy = (torch._utils.get_tensor_metadata(tensor),) if tensor.is_conj() or tensor.is_neg() else ()
        if storage_type is None or done is not None and done.is_untyped:
            reference = _Reference(("storage", torch.UntypedStorage, key, self._location(storage), last - first))
            return torch._utils._rebuild_tensor_v3, (
                reference, offset, shape, stride, tensor.requires_grad, OrderedDict(), tensor.dtype, *lazy)
        reference = _Reference(("storage", storage_type, key, self._location(storage), (last - first) // item))
        return torch._utils._rebuild_tensor_v2, (reference, offset, shape, stride, tensor.requires_grad, OrderedDict(), *lazy)

    def _storage_id(self, thing: Any) -> Tuple[Any, ...]:
        """A storage that stands for itself, or in what torch's own code makes of a tensor."""
        torch = self.torch
        if isinstance(thing, torch.storage.TypedStorage):
            storage, dtype = thing._untyped_storage, thing.dtype
            storage_type, count = getattr(torch, thing._pickle_storage_type()), thing._size()
        else:
            storage, dtype = thing, torch.uint8
            storage_type, count = torch.serialization.normalize_storage_type(type(thing)), thing.nbytes()
        fake = getattr(thing, "_fake_device", None)
        location = str(fake) if fake is not None else self._location(storage)
        self._note(storage._cdata, storage, dtype, None)
        key = str(self.storages.key(storage._cdata, storage, 0, storage.nbytes()))
        return "storage", storage_type, key, location, count

    def _location(self, storage: Any) -> str:
        return "cpu" if storage.device.type == "cpu" else str(self.torch.serialization.location_tag(storage))

    def _note(self, identity: int, storage: Any, dtype: Any, span: Optional[Tuple[int, int]]) -> None:
        use = self.uses.get(identity)
        if use is None:
            use = self.uses[identity] = Use(storage, storage.nbytes(), dtype)
        if dtype != use.dtype and storage.device.type != "meta" and use.size > 0:
            use.is_mixed = True
        if span is None:
            use.spans, use.is_typed = None, True
        elif use.spans is not None:
            use.spans.append(span)


def _dump(torch: Any, obj: Any, module: Any, protocol: int, plans: Dict[int, Plan]) -> _Dump:
    dump = _Dump(torch, plans)

    class Pickler(module.Pickler):  # type: ignore[misc, name-defined]
        def persistent_id(self, thing: Any) -> Optional[Tuple[Any, ...]]:
            return dump.persistent_id(thing)

        if module is pickle:
            def reducer_override(self, thing: Any) -> Any:
                return dump.reduce(thing)

    Pickler(dump.buffer, protocol=protocol).dump(obj)
    return dump


_tables: Dict[int, Dict[Any, Tuple[int, Any]]] = {}


def _dtype_table(torch: Any) -> Dict[Any, Tuple[int, Any]]:
    """dtype -> (bytes of an item, the storage class that stands for it; None: those without one are named untyped)."""
    table = _tables.get(id(torch))
    if table is None:
        table = {}
        untyped = torch.storage._new_dtypes() if hasattr(torch.storage, "_new_dtypes") else ()
        for dtype, name in torch.storage._dtype_to_storage_type_map().items():
            if not name.startswith(("Q",)):
                table[dtype] = (dtype.itemsize, getattr(torch, name))
        for dtype in untyped:
            table[dtype] = (dtype.itemsize, None)
        _tables[id(torch)] = table
    return table


def allowed_globals(torch: Any) -> Set[str]:
    """Names of what weights-only loading of this torch takes; everything, where that is not to be found out."""
    try:
        from torch import _weights_only_unpickler as restricted

        return {*restricted._get_allowed_globals(), *restricted._get_user_allowed_globals()}
    except (ImportError, AttributeError):
        return _Everything()


class _Everything(Set[str]):
    def __contains__(self, name: object) -> bool:
        return True


# ---- Where in an object something is ----


class _Probe(pickle.Pickler):
    """Pickles into nothing, storages and ordinary tensors left out."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=PROTOCOL)
        self.names: List[str] = []
        self._torch = _tensors.loaded_torch()
        self._storages: Tuple[type, ...] = ()
        if self._torch is not None:
            self._storages = (self._torch.storage.TypedStorage, self._torch.storage.UntypedStorage)

    def persistent_id(self, thing: Any) -> Optional[str]:
        torch = self._torch
        if torch is None:
            return None
        if isinstance(thing, torch.storage.TypedStorage):
            thing._pickle_storage_type()   # raises for a dtype that has none
        ordinary = isinstance(thing, torch.Tensor) and thing.layout is torch.strided and thing.dtype in _dtype_table(torch)
        return "left out" if ordinary or isinstance(thing, self._storages) else None

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (type, types.FunctionType, types.BuiltinFunctionType)):
            self.names.append(f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}")
        return NotImplemented


def _parts(thing: Any) -> List[Tuple[Any, Any]]:
    if isinstance(thing, dict):
        return list(thing.items())
    if isinstance(thing, (list, tuple)):
        return [(_names.Index(index), item) for index, item in enumerate(thing)]
    if isinstance(thing, (type, types.FunctionType)):
        return []
    return list(getattr(thing, "__dict__", {}).items())


def _unpicklable(thing: Any, path: Tuple[Any, ...], depth: int) -> Tuple[Tuple[Any, ...], Any]:
    """The innermost place that cannot be pickled."""
    for key, part in _parts(thing) if depth < 32 else []:
        try:
            _Probe().dump(part)
        except Exception:
            return _unpicklable(part, (*path, key), depth + 1)
    return path, thing


def refused_places(obj: Any, torch: Any, limit: int = 8) -> List[str]:
    """Places of what weights-only loading refuses, as "path (type)"; at most limit + 1 of them."""
    allowed, found = allowed_globals(torch), []
    seen: Set[int] = set()

    def visit(thing: Any, path: Tuple[Any, ...]) -> None:
        if len(found) > limit or isinstance(thing, (str, int, float, bytes, type(None), torch.Tensor)) and not _is_numpy(thing):
            return
        if isinstance(thing, (dict, list, tuple)):
            if id(thing) in seen or len(path) > 32:
                return
            seen.add(id(thing))
            for key, part in _parts(thing):
                visit(part, (*path, key))
            return
        probe = _Probe()
        try:
            probe.dump(thing)
        except Exception:
            return
        if any(name not in allowed for name in probe.names):
            found.append(f"{_names.pretty_path(path)} ({_values.class_name(type(thing))})")

    visit(obj, ())
    return found


def storage_places(obj: Any, torch: Any, identity: int) -> List[str]:
    """The places of tensors and storage objects that use a storage, a few of them."""
    found: List[str] = []
    seen: Set[int] = set()

    def visit(thing: Any, path: Tuple[Any, ...]) -> None:
        if len(found) > 3 or id(thing) in seen or len(path) > 32 or isinstance(thing, (str, bytes, int, float)):
            return
        seen.add(id(thing))
        try:
            storage = getattr(thing, "_untyped_storage", None)
            storage = thing.untyped_storage() if isinstance(thing, torch.Tensor) else thing if storage is None else storage
            if getattr(storage, "_cdata", None) == identity:
                found.append(repr(_names.pretty_path(path)))
        except (RuntimeError, NotImplementedError):
            pass   # a tensor without a storage
        for key, part in _parts(thing):
            visit(part, (*path, key))

    visit(obj, ())
    return found


def _is_numpy(thing: Any) -> bool:
    return type(thing).__module__.startswith("numpy")
