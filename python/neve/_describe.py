"""From a state to what the C API takes: described once per structure, then only checked and collected again."""

from __future__ import annotations

import ctypes
import json
import warnings
import weakref
from array import array
from itertools import chain
from operator import add, attrgetter, eq, ge, mul
from typing import Any, Iterable, List, Optional, Sequence, Set, Tuple

from . import _abi, _device, _tensors, _torn
from ._library import call, library
from ._pieces import Part
from ._template import Changed, Collected, Numbering, Template
from ._waiting import collector_paused
from ._walk import Spec, Walker
from .errors import Internal

_CHUNK = 256   # tensors looked at together: their fields stay in the processor's cache from one pass to the next


class Structure:
    """A described structure: what a later state is compared with, and what the engine was told of it.

    found: what a walk over the described state collects.
    takes_devices: tensors on CUDA devices are given to the engine where they lie, when it can use them; others are copied first.
    """

    def __init__(self, walker: Walker, root: Template, found: Collected, takes_devices: bool = False) -> None:
        self._takes_devices = takes_devices
        self.root = root
        self.specs = walker.specs
        self.misread = walker.misread
        self.opaque = walker.opaque
        self.dropped = walker.dropped
        self._torch_index = walker.torch_index
        self._array_index = walker.array_index
        self._array_specs = walker.array_specs
        self._references = walker.references
        self._in_order = self._torch_index == list(range(len(self.specs)))
        self.off_host = False
        self._describe_tensors(found.torch)
        numbering = Numbering()
        node = root.node(numbering)
        self.blob_count = numbering.blobs
        self.tree = json.dumps(node, ensure_ascii=False, separators=(",", ":"))
        self._handle: Optional[ctypes.c_void_p] = None

    def _describe_tensors(self, tensors: Sequence[Any]) -> None:
        self._types = list(map(type, tensors))
        self._shapes = [tensor.shape for tensor in tensors]
        self._strides = [tensor.stride() for tensor in tensors]
        self._dtypes = [tensor.dtype for tensor in tensors]
        layouts = list(map(_tensors.layout_of, map(tuple, self._shapes), self._strides))
        self._items = [tensor.element_size() if layout.span_items else 0   # an empty one lies anywhere
                       for tensor, layout in zip(tensors, layouts)]
        self._span_bytes = [layout.span_items * item for layout, item in zip(layouts, self._items)]
        self._gradients = [tensor.requires_grad for tensor in tensors]
        self._attributed = [bool(vars(tensor)) for tensor in tensors]
        self._any_attributed = any(self._attributed)
        # Where this holds, being contiguous says all of the strides, and is asked for more cheaply.
        self._contiguous = [all(layout.says_contiguous for layout in layouts[begin:begin + _CHUNK])
                            for begin in range(0, len(tensors), _CHUNK)]
        self._complex = [any(dtype.is_complex for dtype in self._dtypes[begin:begin + _CHUNK])
                         for begin in range(0, len(tensors), _CHUNK)]
        self._devices = [tensor.device for tensor in tensors]
        devices = set(self._devices)
        self.off_host = any(device.type != "cpu" for device in devices)
        # Of each tensor the CUDA device that the engine takes it from; -1: from the host.
        ordinals = {device: _device.ordinal(device) for device in devices} if self._takes_devices else {}
        if any(ordinal >= 0 for ordinal in ordinals.values()) and not _device.usable():
            ordinals = {}
        self._ordinals = [ordinals[device] for device in self._devices] if ordinals else []
        self.ordinals = sorted({ordinal for ordinal in ordinals.values() if ordinal >= 0})
        self._copied = [index for index, device in enumerate(self._devices)
                        if device.type != "cpu" and not (self._ordinals and self._ordinals[index] >= 0)] if self.off_host else []
        self.copies = bool(self._copied)

    def collect(self, state: Any) -> Tuple[Collected, "array[int]"]:
        """Leaves and addresses of a state of this structure; raises Changed for any other."""
        found = Collected()
        try:
            self.root.match(state, found)
        except RecursionError:
            raise Changed from None
        return self.checked(found)

    def checked(self, found: Collected) -> Tuple[Collected, "array[int]"]:
        """The same of what a walk over the state has collected."""
        if len(found.torch) != len(self._torch_index) or len(found.arrays) != len(self._array_index):
            raise Changed
        addresses = self._check_torch(found.torch) if found.torch else array("Q")
        if not self._in_order:
            addresses = self._merge(addresses, self._check_arrays(found.arrays))
        self._check_references(found)
        return found, addresses

    def _check_torch(self, tensors: List[Any]) -> "array[int]":
        torch = _tensors.loaded_torch()
        assert torch is not None
        base, storage_bytes = torch.Tensor, torch.UntypedStorage.nbytes
        get_shape, get_dtype = attrgetter("shape"), attrgetter("dtype")
        get_gradient, get_vars, get_device = attrgetter("requires_grad"), attrgetter("__dict__"), attrgetter("device")
        is_cpu = attrgetter("is_cpu")
        addresses = array("Q")
        if list(map(type, tensors)) != self._types:
            raise Changed
        try:
            for begin in range(0, len(tensors), _CHUNK):
                end = begin + _CHUNK
                chunk = tensors[begin:end]
                addresses.extend(map(base.data_ptr, chunk))
                same = (all(map(eq, map(get_shape, chunk), self._shapes[begin:end]))
                        and (all(map(base.is_contiguous, chunk)) if self._contiguous[begin // _CHUNK]
                             else all(map(eq, map(base.stride, chunk), self._strides[begin:end])))
                        and list(map(get_dtype, chunk)) == self._dtypes[begin:end]
                        and list(map(get_gradient, chunk)) == self._gradients[begin:end]
                        and not any(map(base.is_neg, chunk))
                        and not (self._complex[begin // _CHUNK] and any(map(base.is_conj, chunk))))
                # A storage may have been resized under its tensors.
                begins = map(mul, map(base.storage_offset, chunk), self._items[begin:end])
                same = same and all(map(ge, map(storage_bytes, map(base.untyped_storage, chunk)),
                                        map(add, begins, self._span_bytes[begin:end])))
                if not same:
                    raise Changed
                if self._any_attributed:
                    if list(map(bool, map(get_vars, chunk))) != self._attributed[begin:end]:
                        raise Changed
                elif any(map(get_vars, chunk)):
                    raise Changed
                if self.off_host:
                    if list(map(get_device, chunk)) != self._devices[begin:end]:
                        raise Changed
                elif not all(map(is_cpu, chunk)):
                    raise Changed
        except (RuntimeError, NotImplementedError):
            raise Changed from None   # a sparse or wrapped tensor, which has no address
        if self._copied:
            self._copy_to_host(tensors, addresses)
        return addresses

    def _copy_to_host(self, tensors: List[Any], addresses: "array[int]") -> None:
        host, keep = _tensors.host_copies([tensors[index] for index in self._copied])
        for index, address in zip(self._copied, host):
            addresses[index] = address
        tensors.append(keep)   # alive as long as what was collected

    def _check_arrays(self, arrays: List[Any]) -> "array[int]":
        for item, described in zip(arrays, self._array_specs):
            if _tensors.describe_array(item) != described or not _tensors.is_storable_array(item):
                raise Changed
        return array("Q", [item.__array_interface__["data"][0] for item in arrays])

    def _merge(self, of_torch: "array[int]", of_arrays: "array[int]") -> "array[int]":
        merged = array("Q", bytes(8 * len(self.specs)))
        for place, address in zip(self._torch_index, of_torch):
            merged[place] = address
        for place, address in zip(self._array_index, of_arrays):
            merged[place] = address
        return merged

    def _check_references(self, found: Collected) -> None:
        tensors, arrays = found.torch[:len(self._torch_index)], found.arrays
        if found.torch_originals or found.array_originals:
            arrays = list(arrays)
            for objects, originals in ((tensors, found.torch_originals), (arrays, found.array_originals)):
                for place, original in originals.items():
                    objects[place] = original
        for thing, (is_torch, place) in zip(found.refs, self._references):
            if thing is not (tensors if is_torch else arrays)[place]:
                raise Changed
        if len(set(map(id, tensors))) != len(tensors) or len(set(map(id, arrays))) != len(arrays):
            raise Changed   # two places that were different tensors are one now

    def handle(self) -> ctypes.c_void_p:
        """The engine's description of this structure, made at the first use."""
        if self._handle is None:
            self._handle = self._create()
            weakref.finalize(self, _destroy_state, self._handle).atexit = False
        return self._handle

    def _spread(self, of_torch: Sequence[int], of_arrays: int) -> List[int]:
        """One number for each of the engine's tensors."""
        spread = [of_arrays] * len(self.specs)
        for place, value in zip(self._torch_index, of_torch):
            spread[place] = value
        return spread

    def fenced(self, tensors: Sequence[Any], kept: Set[int]) -> bytes:
        """Of each of the engine's tensors whether its storage is among those that a fence keeps."""
        mask = bytes(map(kept.__contains__, _device.storage_addresses(tensors[:len(self._torch_index)])))
        return mask if self._in_order else bytes(self._spread(mask, 0))

    def named(self, tensors: Sequence[Any]) -> Tuple[List[str], List[Any]]:
        """Names and tensors of torch."""
        return [self.specs[place].name for place in self._torch_index], list(tensors[:len(self._torch_index)])

    def _create(self) -> ctypes.c_void_p:
        names = [spec.name.encode("utf-8") for spec in self.specs]
        joined = b"".join(names)
        shapes, strides = [spec.shape for spec in self.specs], [spec.strides for spec in self.specs]
        tensors = _abi.Tensors.new(
            count=len(names),
            names=ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p),
            name_bytes=_numbers(ctypes.c_uint32, "I", map(len, names)),
            dtypes=_numbers(ctypes.c_uint8, "B", [spec.dtype.code for spec in self.specs]),
            ranks=_numbers(ctypes.c_uint8, "B", map(len, shapes)),
            extents=_int64s(chain.from_iterable(shapes)),
            strides=_int64s(chain.from_iterable(strides)),
        )
        if any(spec.part is not None for spec in self.specs):
            _declare_pieces(tensors, self.specs)
        if self.ordinals:
            tensors.devices = (ctypes.c_int32 * len(names))(*self._spread(self._ordinals, -1))
        tree = self.tree.encode("utf-8")
        state = ctypes.c_void_p()
        call("neve_state_create", ctypes.byref(tensors), tree, len(tree), self.blob_count, ctypes.byref(state))
        return state


def _declare_pieces(tensors: Any, specs: Sequence[Spec]) -> None:
    """Says which of the tensors are boxes of larger ones."""
    parts = [spec.part or Part(spec.shape, (0,) * len(spec.shape)) for spec in specs]
    names = [part.logical.encode("utf-8") if part.logical else None for part in parts]
    tensors.pieces = (ctypes.c_uint8 * len(specs))(*[spec.part is not None for spec in specs])
    tensors.global_extents = _int64s([extent for part in parts for extent in part.global_shape])
    tensors.offsets = _int64s([begin for part in parts for begin in part.offset])
    tensors.logical_names = (ctypes.c_char_p * len(specs))(*names)


def _int64s(numbers: Iterable[int]) -> Any:
    return _numbers(ctypes.c_int64, "q", numbers)


def _numbers(kind: Any, code: str, numbers: Iterable[int]) -> Any:
    packed = array(code, numbers)
    return (kind * len(packed)).from_buffer(packed) if packed else (kind * 1)()


def _destroy_state(handle: ctypes.c_void_p) -> None:
    library().neve_state_destroy(ctypes.byref(handle))


class Capture:
    """One state at one moment, ready for a call of the C API. Holds the tensors until the call has returned."""

    def __init__(self, structure: Structure, found: Collected, addresses: "array[int]") -> None:
        self.structure = structure
        self._found = found
        self._addresses = addresses
        self._values = "".join(found.values).encode("ascii")
        if len(found.blobs) != structure.blob_count:
            raise Internal(f"{len(found.blobs)} blobs were collected where the tree names {structure.blob_count}")

    def watch(self) -> _torn.Watch:
        """The tensors of torch as they are now."""
        return _torn.Watch(*self.structure.named(self._found.torch))

    def fence(self, request: Any, optimizers: Sequence[Any]) -> None:
        """Makes it a save that returns at once, of which the optimizers' parameters and states are kept until the fence."""
        mask = self.structure.fenced(self._found.torch, _device.kept_storages(optimizers))
        request.fence = 1
        request.fenced = (ctypes.c_uint8 * max(len(mask), 1)).from_buffer_copy(mask or b"\0")

    def request(self, **fields: Any) -> Any:
        """The request struct; `fields` are step, tags_json, to, slot_timeout_s."""
        blobs = self._found.blobs
        count = len(blobs)
        buffer = self._addresses
        address_of = buffer.buffer_info()[0] if len(buffer) else None
        request = _abi.SaveRequest.new(
            state=self.structure.handle(),
            addresses=address_of,
            values=ctypes.cast(ctypes.c_char_p(self._values), ctypes.c_void_p),
            values_bytes=len(self._values),
            blobs=(ctypes.c_char_p * count)(*blobs) if count else None,
            blob_bytes=(ctypes.c_size_t * count)(*map(len, blobs)) if count else None,
            **fields)
        if self.structure.ordinals:
            request.stream_devices, request.streams, request.stream_count = _device.stream_arrays(
                _device.current_streams(self.structure.ordinals))
        request.owner = self   # the memory above is this object's
        return request


class Describer:
    """Turns states into captures, and remembers the last structure. One per Checkpointer.

    takes_devices: as for `Structure`. keeps_dicts: as for `Walker`.
    """

    def __init__(self, takes_devices: bool = False, keeps_dicts: bool = False) -> None:
        self._takes_devices, self._keeps_dicts = takes_devices, keeps_dicts
        self._structure: Optional[Structure] = None
        self._sticky: Set[str] = set()

    def capture(self, state: Any, stacklevel: int = 1) -> Capture:
        """The state as it is now. Warns once for each structure with opaque leaves, `stacklevel` frames above this call."""
        if self._structure is not None:
            try:
                return Capture(self._structure, *self._structure.collect(state))
            except Changed:
                self._structure = None
        try:
            with collector_paused():
                walker, found = Walker(self._sticky, self._keeps_dicts), Collected()
                root = walker.walk(state)
                root.match(state, found)
                structure = Structure(walker, root, found, self._takes_devices)
            capture = Capture(structure, *structure.checked(found))
        except Changed:
            raise Internal("the state changed while it was being described (is another thread at it?)") from None
        self._warn(structure, stacklevel + 2)
        self._structure = structure
        return capture

    @staticmethod
    def _warn(structure: Structure, stacklevel: int) -> None:
        if structure.opaque:
            warnings.warn(
                f"neve pickles {_shown(structure.opaque)}; such an object is loaded only with weights_only=False",
                stacklevel=stacklevel)
        if structure.dropped:
            warnings.warn(f"neve does not save these attributes of tensors: {_shown(structure.dropped)}",
                          stacklevel=stacklevel)


def _shown(items: List[str]) -> str:
    more = f" and {len(items) - 8} more" if len(items) > 8 else ""
    return ", ".join(items[:8]) + more
