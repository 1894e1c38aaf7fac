"""Torch and NumPy behind small functions: dtypes, addresses, and tensors over given memory.

Neither library is imported to save: an object can only be a tensor when its library is loaded already. Loading imports
what the checkpoint holds.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from . import _abi
from .errors import Unsupported, UnsupportedOnLoad

Shape = Tuple[int, ...]


class DType(NamedTuple):
    """One element type: its code in neve.h, its name in an image, bytes of one element, and its names elsewhere."""

    code: int
    name: str
    item_bytes: int
    torch: Optional[str]
    numpy: Optional[str]
    in_safetensors: bool = True


def _dtype(code: str, name: str, item_bytes: int, torch: Optional[str], numpy: Optional[str], plain: bool = True) -> DType:
    return DType(_abi.DTYPES["NEVE_" + code], name, item_bytes, torch, numpy, plain)


DTYPES: Tuple[DType, ...] = (
    _dtype("BOOL", "BOOL", 1, "bool", "|b1"),
    _dtype("U8", "U8", 1, "uint8", "|u1"),
    _dtype("I8", "I8", 1, "int8", "|i1"),
    _dtype("F8_E5M2", "F8_E5M2", 1, "float8_e5m2", None),
    _dtype("F8_E4M3", "F8_E4M3", 1, "float8_e4m3fn", None),
    _dtype("F8_E8M0", "F8_E8M0", 1, "float8_e8m0fnu", None),
    _dtype("F8_E4M3FNUZ", "F8_E4M3FNUZ", 1, "float8_e4m3fnuz", None),
    _dtype("F8_E5M2FNUZ", "F8_E5M2FNUZ", 1, "float8_e5m2fnuz", None),
    _dtype("I16", "I16", 2, "int16", "<i2"),
    _dtype("U16", "U16", 2, "uint16", "<u2"),
    _dtype("F16", "F16", 2, "float16", "<f2"),
    _dtype("BF16", "BF16", 2, "bfloat16", None),
    _dtype("I32", "I32", 4, "int32", "<i4"),
    _dtype("U32", "U32", 4, "uint32", "<u4"),
    _dtype("F32", "F32", 4, "float32", "<f4"),
    _dtype("I64", "I64", 8, "int64", "<i8"),
    _dtype("U64", "U64", 8, "uint64", "<u8"),
    _dtype("F64", "F64", 8, "float64", "<f8"),
    _dtype("C64", "C64", 8, "complex64", "<c8"),
    _dtype("C128", "C128", 16, "complex128", "<c16", False),
    _dtype("C32", "C32", 4, "complex32", None, False),
    _dtype("F4_E2M1X2", "F4", 1, "float4_e2m1fn_x2", None),
    _dtype("BITS8", "BITS8", 1, "bits8", None, False),
    _dtype("BITS16", "BITS16", 2, "bits16", None, False),
    _dtype("QI8", "QI8", 1, "qint8", None, False),
    _dtype("QU8", "QU8", 1, "quint8", None, False),
    _dtype("QI32", "QI32", 4, "qint32", None, False),
)
BY_CODE: Dict[int, DType] = {dtype.code: dtype for dtype in DTYPES}
BY_NAME: Dict[str, DType] = {dtype.name: dtype for dtype in DTYPES}
BY_NUMPY: Dict[str, DType] = {dtype.numpy: dtype for dtype in DTYPES if dtype.numpy}
U8 = BY_NAME["U8"]
# Types of torch that share a code: the true one then stands in the tensor's node.
BITS8_KINDS = ("bits1x8", "bits2x4", "bits4x2")


def loaded_torch() -> Optional[Any]:
    """The torch module when this process has imported it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "Tensor") and hasattr(torch, "nn") else None


def loaded_numpy() -> Optional[Any]:
    """The numpy module when this process has imported it."""
    numpy = sys.modules.get("numpy")
    return numpy if numpy is not None and hasattr(numpy, "ndarray") else None


def need_torch(what: str) -> Any:
    """Imports torch to load `what`."""
    try:
        import torch
    except ImportError as error:
        raise UnsupportedOnLoad(f"{what} is a torch tensor, and torch cannot be imported: {error}") from error
    return torch


_torch_codes: Dict[Any, DType] = {}


def of_torch(dtype: Any) -> Optional[DType]:
    """The DType of a torch.dtype, or None for one that neve cannot store."""
    found = _torch_codes.get(dtype)
    if found is None:
        name = str(dtype).replace("torch.", "", 1)
        if name in BITS8_KINDS:
            name = "bits8"
        found = next((entry for entry in DTYPES if entry.torch == name), None)
        if found is not None:
            _torch_codes[dtype] = found
    return found


def to_torch(dtype: DType, where: str, kind: Optional[str] = None) -> Any:
    """The torch.dtype; raises :class:`neve.UnsupportedOnLoad` when this torch does not have it."""
    torch = need_torch(where)
    name = kind if kind in BITS8_KINDS else dtype.torch
    found = getattr(torch, name, None) if name else None
    if found is None:
        raise UnsupportedOnLoad(f"{where} has dtype {dtype.name}, which torch {torch.__version__} does not have")
    return found


def element_count(shape: Sequence[int]) -> int:
    """Product of the extents."""
    count = 1
    for extent in shape:
        count *= extent
    return count


def row_major(shape: Sequence[int]) -> Shape:
    """Strides of a contiguous tensor, in elements, as torch gives them."""
    strides = [0] * len(shape)
    step = 1
    for index in range(len(shape) - 1, -1, -1):
        strides[index] = step
        step *= max(shape[index], 1)
    return tuple(strides)


def span_items(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to one past the last that the view touches."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether memory order is logical order; extents of 1 and empty views do not matter."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent == 0:
            return True
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


class StrideLayout(NamedTuple):
    """What the shape and strides of a tensor say of it."""

    span_items: int       # elements from the first to one past the last that it touches
    is_odd: bool          # bytes in order, but with odd strides where an extent is 1, or none is there
    says_contiguous: bool # torch's is_contiguous() is true of these strides only


@functools.lru_cache(maxsize=4096)
def layout_of(shape: Shape, strides: Shape) -> StrideLayout:
    """The layout of a shape with strides in elements."""
    plain = row_major(shape)
    return StrideLayout(span_items(shape, strides), strides != plain and is_row_major(shape, strides),
                        strides == plain and 1 not in shape and 0 not in shape)


def has_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of the view may share memory (exact for stride 0, else by nesting of the dimensions)."""
    if 0 in shape:
        return False
    reach = 0
    for stride, extent in sorted((stride, extent) for extent, stride in zip(shape, strides) if extent > 1):
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


class Storage:
    """Memory of a restored tensor or alias group, owned by torch where a torch tensor will use it, else by NumPy."""

    def __init__(self, size_bytes: int, use_torch: bool, moved: Any = None) -> None:
        self.size_bytes = size_bytes
        self._torch: Any = None
        self._numpy: Any = None
        if moved is not None:
            self._torch = moved.untyped_storage()
            self.address: int = self._torch.data_ptr()
        elif use_torch:
            torch = need_torch("the checkpoint")
            self._torch = torch.empty(size_bytes, dtype=torch.uint8, device="cpu").untyped_storage()
            self.address = self._torch.data_ptr()
        else:
            self._numpy = _numpy_bytes(size_bytes)
            self.address = self._numpy.ctypes.data

    def torch_view(self, dtype: Any, offset_bytes: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """A torch tensor over the storage; the offset is a multiple of the element size."""
        torch = need_torch("the checkpoint")
        item = dtype.itemsize
        view = torch.empty(0, dtype=dtype, device=self._torch.device)
        return view.set_(self._torch, offset_bytes // item, tuple(shape), tuple(strides))

    def to(self, device: Any) -> "Storage":
        """The same bytes on a device."""
        torch = need_torch("the checkpoint")
        here = torch.empty(0, dtype=torch.uint8, device=self._torch.device).set_(self._torch, 0, (self.size_bytes,), (1,))
        return Storage(self.size_bytes, True, here.to(device))

    def numpy_view(self, dtype: Any, offset_bytes: int, shape: Sequence[int], strides_bytes: Sequence[int]) -> Any:
        """A NumPy array over the storage."""
        import numpy

        buffer = self._numpy
        if buffer is None:
            torch = need_torch("the checkpoint")
            buffer = torch.empty(0, dtype=torch.uint8, device=self._torch.device).set_(self._torch, 0, (self.size_bytes,), (1,)).numpy()
        return numpy.ndarray(tuple(shape), dtype, buffer, offset_bytes, tuple(strides_bytes))


def _numpy_bytes(size_bytes: int) -> Any:
    import numpy

    return numpy.empty(size_bytes, dtype=numpy.uint8)


def describe_array(array: Any) -> Optional[Tuple[DType, Shape, Shape, Optional[str]]]:
    """(dtype, shape, strides in elements, dtype text) of a NumPy array that can be stored as it lies.

    The text is given for a dtype that has no name of neve's (big-endian, dates, strings): the array is then stored as U8 with
    one more dimension, the bytes of an element. None: its strides cannot be stored, copy it first.
    """
    dtype = BY_NUMPY.get(array.dtype.str)
    shape, strides = array.shape, array.strides
    if any(stride < 0 for stride in strides):
        return None
    if dtype is not None:
        item = dtype.item_bytes
        if any(stride % item for stride in strides):
            return None
        return dtype, shape, tuple(stride // item for stride in strides), None
    return U8, (*shape, array.dtype.itemsize), (*strides, 1), array.dtype.str


def is_storable_array(array: Any) -> bool:
    """Whether an array's bytes are all there is to it: no object, no fields, a dtype that NumPy itself can name."""
    dtype = array.dtype
    plain = not dtype.hasobject and dtype.names is None and dtype.subdtype is None and dtype.itemsize > 0
    return plain and dtype.kind in "biufcSUMm" and type(dtype).__module__.startswith("numpy")


_ARRAY_DTYPE = re.compile(r"[<>|=][biufcSUMm][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Zμ]{1,7}\])?").fullmatch


def array_dtype(text: str) -> Any:
    """The NumPy dtype of a text such as ``>f4``; raises ValueError. NumPy itself would take, and evaluate, far more."""
    import numpy

    if not _ARRAY_DTYPE(text):
        raise ValueError(f"{text[:40]!r} is no dtype whose bytes can be read back")
    try:
        return numpy.dtype(text)
    except TypeError as error:
        raise ValueError(f"{text!r} is no dtype of this NumPy: {error}") from None


def bytes_outside(tensor: Any) -> int:
    """How many bytes of a strided tensor lie past the end of its storage, which was resized under it; 0 as a rule."""
    if tensor.numel() == 0:
        return 0
    end = (tensor.storage_offset() + span_items(tuple(tensor.shape), tensor.stride())) * tensor.element_size()
    return max(end - int(tensor.untyped_storage().nbytes()), 0)


def host_copies(tensors: Sequence[Any]) -> Tuple[Sequence[int], Any]:
    """Addresses of host copies of tensors that lie elsewhere, and what keeps the copies alive.

    Each device storage is copied once, over the span that its tensors use, so that tensors which share memory go on sharing.
    """
    torch = need_torch("the state")
    spans: Dict[Tuple[str, int], Tuple[int, int, Any]] = {}
    keys = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = (str(tensor.device), storage.data_ptr())
        begin = tensor.storage_offset() * tensor.element_size()
        end = begin + span_items(tensor.shape, tensor.stride()) * tensor.element_size()
        keys.append((key, begin))
        if key in spans:
            begin, end = min(begin, spans[key][0]), max(end, spans[key][1])
        spans[key] = (begin, end, storage)
    copies = {}
    for key, (begin, end, storage) in spans.items():
        view = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, begin, (end - begin,), (1,))
        copies[key] = (view.cpu(), begin)
    addresses = [copies[key][0].data_ptr() + begin - copies[key][1] for key, begin in keys]
    return addresses, copies


def refuse_dtype(path: str, dtype: Any) -> Unsupported:
    """The error for a torch dtype that neve cannot store."""
    return Unsupported(f"{path} has dtype {dtype}, which neve cannot store: convert it, or leave it out")
