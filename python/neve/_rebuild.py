"""From a saved tree to objects: memory for the tensors, one read of all of it, then the nesting around them."""

from __future__ import annotations

import ctypes
from array import array
from collections import OrderedDict, defaultdict
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import _tensors, _values
from ._image import Box, Columns, GlobalImage, Header, Image, Logical, Range, alias_pad, touched_shape
from ._saved import (
    Saved, SavedBlob, SavedComposite, SavedDict, SavedList, SavedMeta, SavedReference, SavedTensor, SavedValue,
)
from ._pieces import Piece, slices
from ._targets import address_of, array_dtype, copy_into, direct_strides, exact_strides, moved_to, strides_of, target_device
from ._template import FACTORY_NAMES, SPARSE_PARTS
from ._tensors import Shape
from ._walk import BIT_GENERATORS
from .errors import Damaged, DataLoss, Error, Exhausted, Unsupported, UnsupportedOnLoad

_SCRATCH_BYTES = 16 << 20
_FACTORIES = {name: factory for factory, name in FACTORY_NAMES.items()}


def _refused(name: str, error: Exception) -> Error:
    """What torch, NumPy or Python says of what a checkpoint holds, as an error of neve."""
    where = name or "the state"
    if isinstance(error, RecursionError):
        return Damaged(f"{where} is nested too deep")
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return Exhausted(f"{where}: no memory for it ({error})")
    return Damaged(f"{where} cannot be made from what the checkpoint holds: {type(error).__name__}: {error}")


def _with_room(name: str, size_bytes: int, make: Callable[[], Any]) -> Any:
    """Memory for a tensor that comes back with its own strides, which may span far more than the file holds."""
    try:
        return make()
    except (RuntimeError, MemoryError, ValueError) as error:
        raise Exhausted(f"{name}: no memory for the {size_bytes} bytes that its strides span ({error}); check whether the file is "
                        "what it should be, or leave it out (Checkpointer.restore has include=)") from error


class Want:
    """One tensor of the image that is wanted: as what, and in whose memory."""

    __slots__ = ("logical", "node", "target", "device", "result")

    def __init__(self, logical: Logical, node: SavedTensor, target: Any, device: Optional[Any]) -> None:
        self.logical, self.node, self.target, self.device = logical, node, target, device
        self.result: Any = None

    def is_array(self) -> bool:
        """Whether it becomes a NumPy array: a target decides, else what was saved."""
        if self.target is not None:
            numpy = _tensors.loaded_numpy()
            return numpy is not None and isinstance(self.target, numpy.ndarray)
        return "np" in self.node.extra


class _PieceRange(NamedTuple):
    """A range that is a box of a larger tensor: offset and extent in that, and the memory it goes to. Strides in elements."""

    label: str
    name: str         # of the larger tensor
    offset: Shape
    extent: Shape
    address: int
    strides: Shape
    item_bytes: int


class Tensors:
    """Collects the tensors that are wanted, then reads them all.

    map_location: as for torch.load: a device for all, or a dict of the devices that tensors were saved from.
    global_image: of the same save, from which boxes of larger tensors are read where the image's own bytes of
        them are bad.
    """

    def __init__(self, image: Image, map_location: Any = None, global_image: Optional[GlobalImage] = None) -> None:
        self._image = image
        self._global = global_image
        self._header: Header = image.header
        self._map_location = map_location
        self._plain: Dict[int, Any] = {}         # ordinary tensors in memory of their own, by index: the node, then what was made of it
        self._wants: Dict[int, Want] = {}        # the others
        self._more_targets: List[Any] = []       # (want, further target)
        self._ranges: List[Range] = []
        self._after: List[Callable[[], None]] = []
        self._dtypes: Dict[int, Any] = {}        # torch's, by code
        self._torch: Any = None
        self._pieces_at: Optional[Dict[int, Logical]] = None   # boxes of larger tensors, by their offset in the image
        self.written: List[str] = []             # names of the targets that were touched; "" for other memory

    def want(self, node: SavedTensor, target: Any = None) -> None:
        """Asks for a tensor; in `target`'s memory when given (shape and dtype were compared)."""
        known = self._wants.get(node.index)
        if known is None:
            if node.index in self._plain:
                if target is None:
                    return
                del self._plain[node.index]
            logical = self._header.tensors[node.index]
            device = None
            if node.extra or self._map_location is not None:
                try:
                    logical = exact_strides(logical, node)
                    device = self._device(node) if target is None else None
                except Error:
                    raise
                except Exception as error:
                    raise _refused(node.name, error) from error
            self._wants[node.index] = Want(logical, node, target, device)
        elif target is not None and known.target is None:
            known.target, known.device = target, None
        elif target is not None and target is not known.target:
            self._more_targets.append((known, target))

    def drop_target(self, node: SavedTensor, target: Any) -> None:
        """Leaves a target alone after all."""
        known = self._wants[node.index]
        self._more_targets = [(want, other) for want, other in self._more_targets if other is not target]
        if known.target is target:
            known.target, known.device = None, self._device(node)

    def want_all(self, node: Optional[Saved]) -> None:
        """Asks for every tensor below a node, in memory of its own."""
        if isinstance(node, SavedTensor):
            self.want(node)
            if node.attributes is not None:
                self.want_all(node.attributes)
        elif isinstance(node, SavedReference):
            self.want_all(node.target)
        elif isinstance(node, SavedDict):
            self.want_all(node.attributes)
            wants, plain, no_map = self._wants, self._plain, self._map_location is None
            for child in node.children:
                # Ordinary tensors, of which there may be very many, without a call.
                if type(child) is SavedTensor and not child.extra and no_map:
                    if child.index not in wants:
                        plain[child.index] = child
                else:
                    self.want_all(child)
        elif isinstance(node, (SavedList, SavedComposite)):
            for child in node.children:
                self.want_all(child)

    def _device(self, node: SavedTensor) -> Optional[Any]:
        if "np" in node.extra:   # an array, which lies in host memory wherever the tensors go
            return None
        return target_device(node.extra.get("dev"), self._map_location, node.name)

    # ---- Reading ----

    def read(self) -> None:
        """Allocates, reads and copies. After an error `written` names the targets that were touched."""
        columns = self._plan_plain()
        self._plan()
        if self._ranges or not self._image.read_columns(columns):
            self._read_ranges([Range("", *row) for row in zip(*columns)] + self._ranges)
        actions, self._after = self._after, []   # which know these tensors
        for action in actions:
            action()
        for want, target in self._more_targets:
            self.written.append(want.node.name)
            copy_into(target, want.result)
        self._bump_versions()

    def readable(self) -> None:
        """Reads the bytes of everything that is wanted, into memory of its own and little of it at a time."""
        scratch = ctypes.create_string_buffer(_SCRATCH_BYTES)
        address, own = ctypes.addressof(scratch), self._header.stored
        plain = [self._header.tensors[index] for index in self._plain]
        for name in dict.fromkeys(logical.stored for logical in (*plain, *(want.logical for want in self._wants.values()))):
            begin, size = own[name].offset, own[name].bytes
            try:
                for at in range(0, size, _SCRATCH_BYTES):
                    self._image.read([Range("", begin + at, min(_SCRATCH_BYTES, size - at), address)])
            except (DataLoss, Damaged) as error:
                box = self._box_of(Range("", begin, size, address))
                if box is None:
                    raise
                for offset, extent in slices(box.offset, box.extent, box.item_bytes):
                    memory = ctypes.create_string_buffer(_tensors.element_count(extent) * box.item_bytes)
                    part = box._replace(offset=offset, extent=extent, address=ctypes.addressof(memory), strides=_tensors.row_major(extent))
                    self._read_copies([part], error)

    def _read_ranges(self, ranges: List[Range]) -> None:
        try:
            self._image.read(ranges, self.written)
        except (DataLoss, Damaged) as error:
            boxes = [(item, self._box_of(item)) for item in ranges]
            pieces = [box for _, box in boxes if box is not None]
            if not pieces:
                raise
            self._image.read([item for item, box in boxes if box is None], self.written)   # what no other rank holds
            self._read_copies(pieces, error)

    def _box_of(self, item: Range) -> Optional["_PieceRange"]:
        """The box that a range is, where that is a box of a larger tensor."""
        if self._pieces_at is None:
            stored = self._header.stored
            found = [logical for logical in self._header.tensors if logical.name in self._header.pieces and logical.dtype.name != "F4"]
            self._pieces_at = {stored[logical.stored].offset: logical for logical in found if stored[logical.stored].bytes}
        logical = self._pieces_at.get(item.offset) if item.bytes and self._global is not None else None
        if logical is None or self._image.is_global:
            return None
        part = self._header.pieces[logical.name]
        extent = item.extents or touched_shape(logical.shape, logical.strides)
        return _PieceRange(item.label, part.logical or logical.name, part.offset, extent, item.address,
                           item.strides or _tensors.row_major(extent), logical.dtype.item_bytes)

    def _read_copies(self, pieces: List["_PieceRange"], error: Error) -> None:
        """From the images of all ranks; `error` where they hold no good copy either."""
        assert self._global is not None
        try:
            image = self._global.open()
            numbers = {tensor.name: index for index, tensor in enumerate(image.header.tensors)}
            image.read_boxes([Box(piece.label, numbers[piece.name], piece.offset, piece.extent, piece.address, piece.strides,
                                  _tensors.element_count(piece.extent) * piece.item_bytes) for piece in pieces], self.written)
        except Error as other:
            raise error from other

    def _plan_plain(self) -> Columns:
        """Memory for the ordinary tensors, of which there may be very many, and where its bytes are. The others become wants."""
        plain, tensors, aliased, entries = self._plain, self._header.tensors, self._header.aliased, self._header.stored
        columns = offsets, sizes, addresses = Columns(array("Q"), array("Q"), array("Q"))
        others: List[int] = []
        makers: Dict[int, Callable[[Shape, Shape], Any]] = {}   # of new tensors, by code of their dtype
        node: Any = None
        try:
            for index, node in plain.items():
                _, kind, shape, strides, stored, _, _, in_order = tensors[index]
                if stored in aliased or not in_order:
                    others.append(index)
                    continue
                make = makers.get(kind.code)
                if make is None:
                    dtype = self._torch_dtype(kind, node)
                    like = self._torch.empty_strided((0,), (1,), dtype=dtype, device="cpu")   # whatever the default device
                    makers[kind.code] = make = like.new_empty_strided
                plain[index] = made = make(shape, strides)
                _, _, _, offset, size = entries[stored]
                if size:
                    offsets.append(offset)
                    sizes.append(size)
                    addresses.append(made.data_ptr())
        except Error:
            raise
        except Exception as error:
            raise _refused(node.name, error) from error
        for index in others:
            self._wants[index] = Want(tensors[index], plain.pop(index), None, None)
        return columns

    def _plan(self) -> None:
        """Memory for everything else that is wanted. An error names the tensor whose it is."""
        groups: Dict[str, List[Want]] = {}
        aliased = self._header.aliased
        want: Optional[Want] = None
        try:
            for want in self._wants.values():
                stored = want.logical.stored
                if stored not in aliased:
                    self._plan_single(want)
                elif stored in groups:
                    groups[stored].append(want)
                else:
                    groups[stored] = [want]
            for stored, wants in groups.items():
                want = wants[0]
                if len(wants) == 1 and not want.logical.is_alias:
                    self._plan_single(want)
                elif not self._plan_targets(wants):
                    self._plan_group(stored, wants)
        except Error:
            raise
        except Exception as error:
            raise _refused("" if want is None else want.node.name, error) from error

    @property
    def has_pieces(self) -> bool:
        """Whether the image holds boxes of larger tensors."""
        return bool(self._header.pieces)

    def as_piece(self, node: SavedTensor, made: Any) -> Any:
        """What was read for a node: where that is a box of a larger tensor, as a :class:`neve.Piece`."""
        part = self._header.pieces.get(self._header.tensors[node.index].name)
        return made if part is None else Piece(made, part.global_shape, part.offset, part.logical or None)

    def result(self, node: SavedTensor) -> Any:
        """The tensor or array, after `read`."""
        made = self._plain.get(node.index)
        return self._wants[node.index].result if made is None else made

    def has_target(self, node: SavedTensor) -> bool:
        want = self._wants.get(node.index)
        return want is not None and want.target is not None

    def _add_range(self, label: str, logical: Logical, address: int, strides: Any) -> None:
        stored = self._header.stored[logical.stored]
        if logical.in_order and strides is logical.strides:
            self._ranges.append(Range(label, stored.offset, stored.bytes, address))
            return
        extents = touched_shape(logical.shape, logical.strides)
        if _tensors.is_row_major(extents, strides):
            self._ranges.append(Range(label, stored.offset, stored.bytes, address))
        else:
            self._ranges.append(
                Range(label, stored.offset, stored.bytes, address, extents, tuple(strides), logical.dtype.item_bytes))

    def _plan_single(self, want: Want) -> None:
        logical = want.logical
        if want.target is not None:
            strides = direct_strides(want.target, logical)
            if strides is not None:
                self._add_range(want.node.name, logical, address_of(want.target), strides)
                want.result = want.target
                return
        if want.is_array():
            item = logical.dtype.item_bytes
            size = _tensors.span_items(logical.shape, logical.strides) * item
            storage = _with_room(want.node.name, size, lambda: _tensors.Storage(size, False))
            fresh = self._view(want, storage, 0)
            address = storage.address
        else:
            dtype = self._torch_dtype(want.logical.dtype, want.node)
            size = _tensors.span_items(logical.shape, logical.strides) * logical.dtype.item_bytes
            fresh = _with_room(want.node.name, size,
                               lambda: self._torch.empty_strided(logical.shape, logical.strides, dtype=dtype, device="cpu"))
            address = fresh.data_ptr()
        self._add_range("", logical, address, logical.strides)
        self._deliver(want, fresh)

    def _torch_dtype(self, dtype: _tensors.DType, node: SavedTensor) -> Any:
        kind = node.extra.get("dt")
        found = self._dtypes.get(dtype.code) if kind is None else None
        if found is None:
            found = _tensors.to_torch(dtype, node.name, kind)
            self._torch = _tensors.need_torch(node.name)
            if kind is None:
                self._dtypes[dtype.code] = found
        return found

    def _deliver(self, want: Want, fresh: Any) -> None:
        want.result = fresh
        if want.target is not None:
            def copy() -> None:
                self.written.append(want.node.name)
                copy_into(want.target, fresh)
                want.result = want.target
            self._after.append(copy)
        elif want.device is not None:
            def move() -> None:
                want.result = moved_to(want.device, fresh.to, want.node.name)
            self._after.append(move)

    def _plan_targets(self, wants: List[Want]) -> bool:
        """Reads an alias group in place when its targets share memory just as the saved tensors did."""
        base = next((want for want in wants if not want.logical.is_alias), None)
        if base is None or base.target is None:
            return False
        if direct_strides(base.target, base.logical) != base.logical.strides:
            return False
        start = address_of(base.target)
        for want in wants:
            if want.target is None:
                return False
            if want is base:
                continue
            same = (address_of(want.target) == start + want.logical.offset_bytes
                    and strides_of(want.target) == want.logical.strides)
            if not same:
                return False
        self._add_range(base.node.name, base.logical, start, base.logical.strides)
        for want in wants:
            want.result = want.target
        return True

    def _plan_group(self, stored_name: str, wants: List[Want]) -> None:
        """Reads an alias group into one storage, of which its members are views."""
        stored = self._header.stored[stored_name]
        base = self._header.own(stored_name)
        offsets = [(want.logical.offset_bytes, want.logical.dtype.item_bytes) for want in wants]
        pad = alias_pad(offsets)
        arrays_only = all(want.is_array() for want in wants)
        size = pad + self._header.span_bytes(stored_name)
        storage = _with_room(stored_name, size, lambda: _tensors.Storage(size, not arrays_only))
        if base is None:
            self._ranges.append(Range("", stored.offset, stored.bytes, storage.address + pad))
        else:
            self._add_range("", base, storage.address + pad, base.strides)
        device = next((want.device for want in wants if want.device is not None), None)
        if device is None:
            for want in wants:
                self._deliver(want, self._view(want, storage, pad))
        else:
            self._after.append(lambda: self._move_group(wants, storage, pad, device))

    def _move_group(self, wants: List[Want], storage: "_tensors.Storage", pad: int, device: Any) -> None:
        moved = moved_to(device, storage.to, wants[0].node.name)
        for want in wants:
            want.device = None
            self._deliver(want, self._view(want, storage if want.is_array() else moved, pad))

    def _view(self, want: Want, storage: "_tensors.Storage", pad: int) -> Any:
        logical = want.logical
        offset = pad + logical.offset_bytes
        item = logical.dtype.item_bytes
        if not want.is_array():
            dtype = self._torch_dtype(want.logical.dtype, want.node)
            return storage.torch_view(dtype, offset, logical.shape, logical.strides)
        text = want.node.extra.get("np")
        if isinstance(text, str):
            dtype = array_dtype(text, want.node.name)
            if not logical.shape or logical.shape[-1] != dtype.itemsize or logical.dtype is not _tensors.U8:
                raise Damaged(f"{want.node.name} cannot hold a NumPy dtype {text!r}")
            return storage.numpy_view(dtype, offset, logical.shape[:-1], logical.strides[:-1])
        if logical.dtype.numpy is None:
            raise UnsupportedOnLoad(f"{want.node.name} has dtype {logical.dtype.name}, which NumPy does not have")
        return storage.numpy_view(logical.dtype.numpy, offset, logical.shape, tuple(stride * item for stride in logical.strides))

    def _bump_versions(self) -> None:
        """Tells autograd that the targets changed, as an in-place operation would."""
        torch = _tensors.loaded_torch()
        bump = getattr(getattr(torch, "autograd", None), "graph", None)
        bump = getattr(bump, "increment_version", None)
        if torch is None or bump is None:
            return
        targets = [want.target for want in self._wants.values() if isinstance(want.target, torch.Tensor)]
        if targets:
            bump(targets)


class Builder:
    """Makes the objects of a saved tree; its tensors come from a `Tensors` that has read them."""

    def __init__(self, tensors: Tensors, weights_only: bool = True) -> None:
        self._tensors = tensors
        self._objects: Dict[int, Any] = {}
        self._has_pieces = tensors.has_pieces
        self._resolve = _values.known_class if weights_only else _values.importing_class

    def build(self, node: Optional[Saved]) -> Any:
        """The object of one place. Whatever goes wrong below it is an error of neve that names the place."""
        try:
            return self._build(node)
        except Error:
            raise
        except Exception as error:
            raise _refused("" if node is None else node.name, error) from error

    def _build(self, node: Optional[Saved]) -> Any:
        if isinstance(node, SavedTensor):
            return self._tensor(node)
        if isinstance(node, SavedDict):
            return self._dict(node)
        if isinstance(node, (SavedValue, SavedBlob)):
            return node.value
        if isinstance(node, SavedList):
            return self.sequence(node, [self.build(child) for child in node.children])
        if isinstance(node, SavedReference):
            return self._tensor(node.target)
        if isinstance(node, SavedComposite):
            return self._composite(node)
        if isinstance(node, SavedMeta):
            return self._meta(node)
        return None

    def _tensor(self, node: SavedTensor) -> Any:
        if not node.extra and node.attributes is None and not self._has_pieces:
            return self._tensors.result(node)
        made = self._objects.get(node.index)
        if made is None:
            made = self._tensors.result(node)
            if not self._tensors.has_target(node):
                made = self._dressed(made, node.extra)
                if node.attributes is not None:
                    vars(made).update(_attributes(node.name, self.build(node.attributes)))
            if self._has_pieces:
                made = self._tensors.as_piece(node, made)
            self._objects[node.index] = made
        return made

    @staticmethod
    def _dressed(tensor: Any, extra: Dict[str, Any]) -> Any:
        if "param" in extra:
            torch = _tensors.need_torch("the checkpoint")
            return torch.nn.Parameter(tensor, requires_grad=bool(extra.get("grad")))
        if extra.get("grad"):
            tensor.requires_grad_(True)
        return tensor

    def _meta(self, node: SavedMeta) -> Any:
        torch = _tensors.need_torch(node.name)
        extra = node.extra
        dtype = getattr(torch, str(extra["dt"]), None)
        if not isinstance(dtype, torch.dtype):
            raise UnsupportedOnLoad(f"{node.name} has dtype {extra['dt']!r}, which torch {torch.__version__} does not have")
        return self._dressed(torch.empty_strided(extra["sh"], extra["st"], dtype=dtype, device="meta"), extra)

    def _dict(self, node: SavedDict) -> Any:
        made: Any
        if node.kind == "O":
            made = OrderedDict()
        elif node.kind.startswith("D:"):
            made = defaultdict(_FACTORIES[node.kind[2:]])
        else:
            made = {}
        for key, child in zip(node.keys, node.children):
            made[key] = self._tensor(child) if type(child) is SavedTensor else self.build(child)
        if node.attributes is not None and node.kind == "O":
            vars(made).update(_attributes(node.name, self.build(node.attributes)))
        return made

    def sequence(self, node: SavedList, items: List[Any]) -> Any:
        """A list, tuple or namedtuple of the node's kind."""
        if node.kind == "tuple":
            return tuple(items)
        if node.kind.startswith("n:"):
            kind = self._resolve(node.kind[2:])
            if not _values.is_namedtuple(kind):
                raise UnsupportedOnLoad(f"{node.name}: {node.kind[2:]} is no namedtuple here")
            return _values.make_instance(kind, tuple(items))
        return items

    def _composite(self, node: SavedComposite) -> Any:
        kind = node.kind
        parts = [self.build(child) for child in node.children]
        if kind in SPARSE_PARTS:
            return self._sparse(node, parts)
        if kind == "state":
            return parts[0]
        if kind == "pieces":
            return parts
        if kind == "dataclass":
            made = self._resolve(node.head["q"])
            try:
                return _values.make_instance(made, parts[0])
            except UnsupportedOnLoad as error:
                raise UnsupportedOnLoad(f"{node.name}: {error}") from None
        return make_generator(node, parts[0])

    def _sparse(self, node: SavedComposite, parts: List[Any]) -> Any:
        torch = _tensors.need_torch(node.name)
        try:
            if node.kind == "coo":
                coalesced = bool(node.head.get("co"))
                made = torch.sparse_coo_tensor(*parts, node.head["sh"], check_invariants=True, is_coalesced=coalesced)
            else:
                layout = getattr(torch, "sparse_" + node.kind)
                made = torch.sparse_compressed_tensor(*parts, node.head["sh"], layout=layout, check_invariants=True)
        except RuntimeError as error:
            raise Damaged(f"{node.name or 'the state'} is no sparse tensor: {error}") from None
        return self._dressed(made, node.head)


def _attributes(name: str, made: Any) -> Dict[str, Any]:
    if type(made) is not dict or not all(type(key) is str for key in made):
        raise Damaged(f"{name} has attributes that are no dictionary of names")
    return made


def make_generator(node: SavedComposite, state: Any) -> Any:
    """A random generator in the saved state."""
    made: Any
    if node.kind == "generator":
        torch = _tensors.need_torch(node.name)
        device = str(node.head.get("dev", "cpu"))
        try:
            made = torch.Generator(device)
        except Exception as error:   # of each kind of device, its own
            raise UnsupportedOnLoad(f"{node.name} is a generator of {device}, which cannot be made here ({error}): leave it out "
                                    "(Checkpointer.restore has include=)") from None
    else:
        import numpy

        if node.kind == "RandomState":
            made = numpy.random.RandomState()
        elif node.kind == "Generator" and node.head.get("q") in BIT_GENERATORS:
            made = numpy.random.Generator(getattr(numpy.random, node.head["q"])())
        else:
            raise Unsupported(f"{node.name} is of a kind this version does not know: {node.kind!r}")
    set_generator(made, state, node.name)
    return made


def set_generator(generator: Any, state: Any, name: str) -> None:
    """Puts a generator into a saved state; :class:`neve.Damaged` when it is no state of such a generator."""
    try:
        if type(generator).__module__.startswith("torch"):
            torch = _tensors.need_torch("the generator")
            if type(state) is not bytes:
                raise TypeError(f"bytes were expected, not {type(state).__name__}")
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)
    except Exception as error:
        raise Damaged(f"{name or 'the state'} is no state of a generator: {type(error).__name__}: {error}") from error
