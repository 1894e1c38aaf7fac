"""An open image: its header, what it says of its tensors, and reading ranges of it into memory."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import weakref
from array import array
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi, _pieces, _tensors
from ._library import call, call_json, library, path_bytes
from ._pieces import Part
from ._tensors import DType, Shape
from .errors import Damaged, Error, Exhausted, Unsupported

# A read is made in batches, between which Ctrl-C is heard. They end at multiples of this in the image, which is a multiple
# of every chunk size, so that no chunk is verified twice.
BATCH_BYTES = 256 << 20
_SPAN_BYTES_MAX = 1 << 44   # kSpanBytesMax of src/format/layout.h


class Stored(NamedTuple):
    """The bytes of one header entry."""

    name: str
    dtype: DType
    shape: Shape
    offset: int   # in the image
    bytes: int


class Logical(NamedTuple):
    """A tensor as the user knows it: true dtype, shape and strides; and where its bytes are."""

    name: str
    dtype: DType
    shape: Shape
    strides: Shape          # in elements (pairs for F4)
    stored: str             # header entry: its own, or its base's
    offset_bytes: int       # in the memory of the base
    is_alias: bool
    in_order: bool          # its bytes in the image are those of its memory


class Range(NamedTuple):
    """One range of the image and the memory it goes to; extents and strides when that is not contiguous."""

    label: str
    offset: int
    bytes: int
    address: int
    extents: Optional[Shape] = None
    strides: Optional[Shape] = None
    item_bytes: int = 1


class Columns(NamedTuple):
    """Many contiguous ranges, by columns: where each begins in the image, its bytes, and the address it goes to."""

    offsets: "array[int]"
    bytes: "array[int]"
    targets: "array[int]"


class Box(NamedTuple):
    """A box of one of the image's tensors, in coordinates of the logical tensor, and the memory it goes to."""

    label: str
    index: int        # of the tensor, in Header.tensors
    offset: Shape
    extent: Shape
    address: int
    strides: Shape    # of the memory, in elements
    bytes: int


class Header:
    """The parsed header of an image or of any safetensors file. Raises :class:`neve.Damaged` where it contradicts itself."""

    def __init__(self, data: bytes) -> None:
        try:
            content = json.loads(data[8:].decode("utf-8"))
            metadata = content.pop("__metadata__", {})
            self.bytes = begin = len(data)
            self._geometries: Dict[Shape, Tuple[Shape, Shape, int]] = {}
            self.metadata: Dict[str, str] = metadata
            tree = json.loads(metadata["neve.tree"]) if "neve.tree" in metadata else None
            if tree is not None and tree.get("v", 1) != 1:
                raise Unsupported(f"its tree is of version {tree.get('v')}, written by a newer neve")
            self.root: Any = tree.get("root") if tree is not None else None
            self.shares_containers = tree is not None and bool(tree.get("shared"))   # of another format's file, as one object
            self.values: str = metadata.get("neve.values", "")
            parts = tree.get("tensors", {}) if tree is not None else {}
            self.stored: Dict[str, Stored] = {}
            self._is_ours = tree is not None
            own = self._read_entries(content, begin, parts.get("strided", {}), parts.get("dtype", {}))
            self.pieces: Dict[str, Part] = self._read_pieces(own, parts.get("piece", {}))
            self.tensors: List[Logical] = self._with_aliases(own, parts.get("alias", []))
        except RecursionError:
            raise Damaged("its header is nested too deep") from None
        except Error:
            raise
        except MemoryError:
            raise Exhausted("no memory for its header") from None
        except Exception as error:
            raise Damaged(f"its header cannot be read: {type(error).__name__}: {error}") from None

    def _geometry(self, numbers: Sequence[int]) -> Tuple[Shape, Shape, int]:
        """(shape, row-major strides, element count), once for the many tensors of a shape."""
        found = self._geometries.get(tuple(numbers))
        if found is None:
            shape = _shape(numbers)
            found = (shape, _tensors.row_major(shape), _tensors.element_count(shape))
            self._geometries[shape] = found
        return found

    def _read_entries(self, content: Dict[str, Any], begin: int, strided: Dict[str, Any], dtypes: Dict[str, Any]) -> List[Logical]:
        """Notes what is stored; the tensors that are stored under their own names, in the header's order."""
        own: List[Logical] = []
        by_name, geometries, new = _tensors.BY_NAME, self._geometries, tuple.__new__   # a header has very many entries
        is_ours = self._is_ours
        for name, entry in content.items():
            dtype = by_name.get(entry["dtype"])
            if dtype is None:
                raise Unsupported(f"tensor {name!r} has dtype {entry['dtype']!r}, which this version does not know")
            first, last = entry["data_offsets"]
            numbers = entry["shape"]
            shape, strides, count = geometries.get(tuple(numbers)) or self._geometry(numbers)
            size = last - first
            self.stored[name] = stored = new(Stored, (name, dtype, shape, begin + first, size))
            if is_ours and name[:5] == "neve." and _is_hidden(name):
                continue
            if name in strided or name in dtypes or dtype.name == "F4":
                own.append(self._own(stored, strided.get(name), dtypes.get(name)))
            elif count * dtype.item_bytes == size:
                own.append(new(Logical, (name, dtype, shape, strides, name, 0, False, True)))
            else:
                raise Damaged(f"tensor {name!r} has {size} bytes, which do not fit its shape {list(shape)}")
        return own

    @staticmethod
    def _read_pieces(own: List[Logical], stated: Dict[str, Any]) -> Dict[str, Part]:
        """Which of the stored tensors are boxes of larger ones."""
        if not stated:
            return {}
        shapes = {tensor.name: tensor.shape for tensor in own}
        pieces = {}
        for name, (global_shape, offset, *logical) in stated.items():
            part = Part(_shape(global_shape), _shape(offset), *logical)
            wrong = _pieces.outside(shapes[name], part.global_shape, part.offset)
            if wrong or type(part.logical) is not str:
                raise Damaged(f"the piece {name!r} {wrong or 'has no name of a logical tensor'}")
            pieces[name] = part
        return pieces

    def _with_aliases(self, own: List[Logical], aliases: Sequence[Any]) -> List[Logical]:
        self.aliased = {alias[2] for alias in aliases}   # header entries whose memory several tensors share
        if not aliases:
            return own
        self._own_by_name = {tensor.name: tensor for tensor in own}
        tensors: List[Optional[Logical]] = [None] * (len(own) + len(aliases))
        for position, name, base, offset, dtype, shape, strides in aliases:
            if tensors[position] is not None or position < 0:
                raise Damaged(f"two tensors stand at place {position} of neve.tree")
            tensors[position] = Logical(name, _tensors.BY_NAME[dtype], _shape(shape), _shape(strides), base, int(offset), True,
                                        False)
        rest = iter(own)
        complete = [tensor if tensor is not None else next(rest) for tensor in tensors]
        for tensor in complete:
            if tensor.is_alias:
                self._check_alias(tensor)
        return complete

    def _own(self, stored: Stored, strided: Any, dtype_name: Optional[str]) -> Logical:
        dtype, shape = stored.dtype, stored.shape
        if dtype_name is not None:
            dtype = _tensors.BY_NAME[dtype_name]
            if stored.dtype is not _tensors.U8 or not shape or shape[-1] != dtype.item_bytes:
                raise Damaged(f"tensor {stored.name!r} cannot hold {dtype_name}")
            shape = shape[:-1]
        elif dtype.name == "F4":
            if not shape or shape[-1] % 2:
                raise Damaged(f"tensor {stored.name!r} has an odd number of 4-bit values")
            shape = (*shape[:-1], shape[-1] // 2)
        strides = _tensors.row_major(shape)
        if strided is not None:
            shape, strides = _shape(strided[0]), _shape(strided[1])
        touched = touched_shape(shape, strides)
        if len(shape) != len(strides) or _tensors.element_count(touched) * dtype.item_bytes != stored.bytes:
            raise Damaged(f"tensor {stored.name!r} has {stored.bytes} bytes, which do not fit its shape {list(shape)}")
        if _tensors.span_items(shape, strides) * dtype.item_bytes > _SPAN_BYTES_MAX:
            raise Damaged(f"tensor {stored.name!r} has impossible strides {list(strides)}")
        in_order = _tensors.is_row_major(touched, strides)
        return Logical(stored.name, dtype, shape, strides, stored.name, 0, False, in_order)

    def _check_alias(self, alias: Logical) -> None:
        size = self.span_bytes(alias.stored)
        end = alias.offset_bytes + _tensors.span_items(alias.shape, alias.strides) * alias.dtype.item_bytes
        if alias.offset_bytes < 0 or end > size or len(alias.shape) != len(alias.strides):
            raise Damaged(f"tensor {alias.name!r} lies outside of {alias.stored!r}, whose memory it shares")

    def span_bytes(self, name: str) -> int:
        """Bytes of memory that a header entry, one of `aliased`, spans when restored with its own strides."""
        own = self._own_by_name.get(name)
        if own is None:   # a hidden base
            return self.stored[name].bytes
        return _tensors.span_items(own.shape, own.strides) * own.dtype.item_bytes

    def own(self, name: str) -> Optional[Logical]:
        """The tensor that a header entry, one of `aliased`, is itself; None for a hidden base."""
        return self._own_by_name.get(name)


def _shape(numbers: Any) -> Shape:
    shape = tuple(numbers)
    for number in shape:
        if type(number) is not int or number < 0:
            raise Damaged(f"{numbers!r} is no shape")
    return shape


def _is_hidden(name: str) -> bool:
    return name[:5] == "neve." and name[:10] in ("neve.blob.", "neve.base.") and name[10:].isdigit() and name.isascii()


def touched_shape(shape: Shape, strides: Shape) -> Shape:
    """The shape of what is stored: an expanded dimension counts once."""
    return tuple(1 if stride == 0 and extent > 1 else extent for extent, stride in zip(shape, strides))


class Image:
    """A handle to an image. Destroyed with the object."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self._destroy = weakref.finalize(self, _destroy_image, handle, os.getpid())
        self._destroy.atexit = False
        self._header: Optional[Header] = None

    @property
    def header(self) -> Header:
        """The parsed header; raises :class:`neve.Damaged` at the first use when it is not one."""
        if self._header is None:
            size = ctypes.c_size_t()
            data = library().neve_image_header(self._handle, ctypes.byref(size))
            self._header = Header(ctypes.string_at(data, size.value))
        return self._header

    @classmethod
    def open(cls, path: str) -> "Image":
        """Opens an image or any safetensors file."""
        handle = ctypes.c_void_p()
        call("neve_image_open", path_bytes(path), ctypes.byref(handle))
        return cls(handle)

    def close(self) -> None:
        self._destroy()

    def describe(self) -> Dict[str, Any]:
        """One save as an object of `neve ls --json`, with "image_bytes", "has_digests" and "sources" added."""
        description: Dict[str, Any] = call_json("neve_image_describe", self._handle)
        return description

    @property
    def is_global(self) -> bool:
        """Whether it is the images of all ranks of a save, seen as one: each logical tensor whole, the trees merged."""
        return bool(library().neve_image_is_global(self._handle))

    def global_image(self, take_rank0: Optional[bytes] = None, include: Optional[bytes] = None) -> "Image":
        """The global image of the same save. Waits for no other rank.

        Patterns are one a line. include: of all that is wanted of it; b"": logical tensors alone.
        """
        handle = ctypes.c_void_p()
        call("neve_image_global_part", self._handle, take_rank0, include, ctypes.byref(handle))
        return Image(handle)

    def read_boxes(self, boxes: Sequence[Box], touched: Optional[List[str]] = None) -> None:
        """Fills the boxes' memory, in batches between which Ctrl-C is heard. `touched` gets the labels of boxes that were written,
        also when an error is raised."""
        begin = 0
        while begin < len(boxes):
            end, size = begin, 0
            while end < len(boxes) and (end == begin or size + boxes[end].bytes <= BATCH_BYTES):
                size += boxes[end].bytes
                end += 1
            self._read_box_batch(boxes[begin:end], touched)
            begin = end

    def _read_box_batch(self, boxes: Sequence[Box], touched: Optional[List[str]]) -> None:
        count = len(boxes)
        written = (ctypes.c_uint8 * count)()
        tensors = array("Q", [box.index for box in boxes])
        offsets = array("q", [number for box in boxes for number in box.offset] or [0])
        extents = array("q", [number for box in boxes for number in box.extent] or [0])
        targets = array("Q", [box.address for box in boxes])
        rows = [array("q", box.strides or (0,)) for box in boxes]
        strides = array("Q", [row.buffer_info()[0] for row in rows])
        request = _abi.Boxes.new(
            count=count, tensors=_pointer(tensors, ctypes.c_size_t), offsets=_pointer(offsets, ctypes.c_int64),
            extents=_pointer(extents, ctypes.c_int64), targets=targets.buffer_info()[0], strides=strides.buffer_info()[0],
            written=written)
        try:
            call("neve_image_boxes_read", self._handle, ctypes.byref(request))
        finally:
            if touched is not None:
                touched.extend(box.label for box, flag in zip(boxes, written) if flag)

    def verify(self) -> None:
        """Verifies every chunk in every tier that holds the image."""
        call("neve_image_verify", self._handle)

    def read(self, ranges: Sequence[Range], touched: Optional[List[str]] = None) -> None:
        """Fills the ranges' memory. `touched` gets the labels of ranges that were written, also when an error is raised."""
        pieces: List[Range] = []
        for piece in ranges:
            if piece.bytes and (piece.extents is not None
                                or piece.offset // BATCH_BYTES == (piece.offset + piece.bytes - 1) // BATCH_BYTES):
                pieces.append(piece)
            else:
                pieces.extend(_split(piece))
        pieces.sort(key=operator.itemgetter(1))   # by offset
        begin = 0
        while begin < len(pieces):
            batch_end = (pieces[begin].offset // BATCH_BYTES + 1) * BATCH_BYTES
            end = begin
            while end < len(pieces) and pieces[end].offset < batch_end:
                end += 1
            self._read_batch(pieces[begin:end], touched)
            begin = end

    def read_columns(self, columns: Columns) -> bool:
        """Fills the ranges' memory, none of which is empty, where they are one batch; else does nothing and is False."""
        offsets, sizes = columns.offsets, columns.bytes
        if not offsets:
            return True
        if min(offsets) // BATCH_BYTES != (max(offsets) + max(sizes) - 1) // BATCH_BYTES:
            return False
        call("neve_image_read", self._handle, ctypes.byref(self._request(columns, (ctypes.c_uint8 * len(offsets))())))
        return True

    @staticmethod
    def _request(columns: Columns, written: Any) -> Any:
        return _abi.Ranges.new(
            count=len(columns.offsets), offsets=_pointer(columns.offsets, ctypes.c_uint64), bytes=_pointer(columns.bytes, ctypes.c_uint64),
            targets=columns.targets.buffer_info()[0], written=written)

    def _read_batch(self, pieces: List[Range], touched: Optional[List[str]]) -> None:
        count = len(pieces)
        written = (ctypes.c_uint8 * count)()
        columns = Columns(*(array("Q", [piece[at] for piece in pieces]) for at in (1, 2, 3)))
        request = self._request(columns, written)
        if any(piece.extents is not None for piece in pieces):
            ranks = array("b", [-1 if piece.extents is None else len(piece.extents) for piece in pieces])
            extents = array("q", [extent for piece in pieces for extent in piece.extents or ()] or [0])
            strides = array("q", [stride for piece in pieces for stride in piece.strides or ()] or [0])
            items = array("Q", [piece.item_bytes for piece in pieces])
            request.ranks = _pointer(ranks, ctypes.c_int8)
            request.extents = _pointer(extents, ctypes.c_int64)
            request.strides = _pointer(strides, ctypes.c_int64)
            request.item_bytes = _pointer(items, ctypes.c_uint64)
        try:
            call("neve_image_read", self._handle, ctypes.byref(request))
        finally:
            if touched is not None:
                touched.extend(piece.label for piece, flag in zip(pieces, written) if flag)


def _pointer(numbers: "array[int]", kind: Any) -> Any:
    return ctypes.cast(numbers.buffer_info()[0], ctypes.POINTER(kind))


def _split(piece: Range) -> List[Range]:
    """A contiguous range cut where batches end; nothing for an empty one."""
    pieces = []
    offset, end = piece.offset, piece.offset + piece.bytes
    while offset < end:
        cut = min((offset // BATCH_BYTES + 1) * BATCH_BYTES, end)
        pieces.append(piece._replace(offset=offset, bytes=cut - offset, address=piece.address + offset - piece.offset))
        offset = cut
    return pieces


def _destroy_image(handle: ctypes.c_void_p, pid: int) -> None:
    if os.getpid() == pid:   # in a forked child the engine's threads are not there
        library().neve_image_destroy(ctypes.byref(handle))


class GlobalImage:
    """The global image of the same save as an image, opened when it is first asked for; the image itself where it is that.

    What reads boxes of larger tensors shares one of these; it knows none of them, so that what a restore has made goes with its last
    user and not when the garbage collector comes by.
    """

    def __init__(self, image: Image, take_rank0: Optional[bytes] = None) -> None:
        self._image, self._take_rank0 = image, take_rank0
        self.opened: Optional[Image] = None   # besides the image

    def open(self) -> Image:
        """The global image, of which logical tensors alone are looked at."""
        if self._image.is_global:
            return self._image
        if self.opened is None:
            self.opened = self._image.global_image(self._take_rank0, b"")
        return self.opened

    def close(self) -> None:
        """Closes what this has opened."""
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()


def read_blobs(image: Image, numbers: Sequence[int]) -> Dict[int, bytes]:
    """Payloads of the blobs `neve.blob.<n>`: 8 bytes of length, little-endian, then the payload."""
    buffers: Dict[int, bytearray] = {}
    ranges = []
    keep: List[Any] = []
    for number in numbers:
        stored = image.header.stored.get(f"neve.blob.{number}")
        if stored is None or stored.bytes < 8:
            raise Damaged(f"the tree names blob {number}, which the image does not hold")
        buffer = bytearray(stored.bytes)
        memory = (ctypes.c_char * stored.bytes).from_buffer(buffer)
        keep.append(memory)
        buffers[number] = buffer
        ranges.append(Range(stored.name, stored.offset, stored.bytes, ctypes.addressof(memory)))
    image.read(ranges)
    payloads: Dict[int, bytes] = {}
    for number, buffer in buffers.items():
        length = int.from_bytes(buffer[:8], "little")
        if length < 1 or length > len(buffer) - 8:
            raise Damaged(f"blob {number} says that it holds {length} bytes of {len(buffer) - 8}")
        payloads[number] = bytes(memoryview(buffer)[8:8 + length])
    return payloads


def alias_pad(offsets: Sequence[Tuple[int, int]]) -> int:
    """Bytes to leave before a base so that each (offset, element size) lies on a multiple of its element size."""
    for pad in range(16):
        if all((pad + offset) % item == 0 for offset, item in offsets):
            return pad
    raise Damaged("tensors that share memory lie at offsets that no memory can give all of them")
