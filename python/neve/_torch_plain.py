"""Pickles of plain states, written directly: dicts, lists, tuples, numbers and strings around ordinary host tensors.

The opcodes are those that pickle and torch.save write at protocol 2, but for this: only what occurs again is put into the
memo. Tensors are gathered while the nesting is written and looked at in bulk afterwards, which makes one cost about a
microsecond and a half. Whatever is not plain raises :class:`NotPlain`, and pickle itself takes over.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from operator import attrgetter
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _tensors
from ._torch_storages import Part, Plan, Span, Storages, plan

_CHUNK = 256   # tensors looked at together

_pack_int = struct.Struct("<i").pack
_pack_count = struct.Struct("<I").pack
_pack_float = struct.Struct(">d").pack


class NotPlain(Exception):
    """Something that only pickle itself can write."""


def plain_pickle(torch: Any, obj: Any) -> Tuple[bytes, List[Part]]:
    """The pickle and the storages that it names; raises :class:`NotPlain`. torch: None when it is not loaded."""
    if torch is not None and _is_special(torch):
        raise NotPlain
    return _Writer(torch).write(obj)


def _is_special(torch: Any) -> bool:
    """Whether torch is told to save tensors in another way than usual."""
    local = getattr(torch.serialization, "_serialization_tls", None)
    return bool(getattr(local, "skip_data", False) or getattr(local, "materialize_fake_tensors", False))


def encode_int(number: int) -> bytes:
    """An int as pickle writes it."""
    if 0 <= number < 256:
        return b"K" + number.to_bytes(1, "little")
    if 0 <= number < 65536:
        return b"M" + number.to_bytes(2, "little")
    if -0x80000000 <= number <= 0x7FFFFFFF:
        return b"J" + _pack_int(number)
    size = number.bit_length() // 8 + 1
    content = number.to_bytes(size, "little", signed=True)
    if number < 0 and size > 1 and content[-1] == 0xFF and content[-2] & 0x80:
        content = content[:-1]
    return (b"\x8a" + bytes([len(content)]) if len(content) < 256 else b"\x8b" + _pack_count(len(content))) + content


def encode_text(text: str) -> bytes:
    """A string as pickle writes it."""
    content = text.encode("utf-8", "surrogatepass")
    return b"X" + _pack_count(len(content)) + content


def _encode_numbers(numbers: Tuple[int, ...]) -> bytes:
    content = b"".join(map(encode_int, numbers))
    count = len(numbers)
    return (b")", content + b"\x85", content + b"\x86", content + b"\x87")[count] if count < 4 else b"(" + content + b"t"


class _Names:
    """Classes and words that are put into the memo where they are first written. Those of the nesting and those of the tensors,
    which are written later, know nothing of each other: what comes first in the stream is not what was written first."""

    def __init__(self, put_name: Callable[[], Tuple[bytes, bytes]]) -> None:
        self._put_name = put_name
        self._known: Dict[bytes, bytes] = {}

    @property
    def count(self) -> int:
        return len(self._known)

    def get_global(self, name: bytes) -> bytes:
        """Opcodes for a class or function, "module name"."""
        known = self._known.get(name)
        if known is None:
            put, self._known[name] = self._put_name()
            known = b"c" + name.replace(b" ", b"\n") + b"\n" + put
        return known

    def get_word(self, word: bytes) -> bytes:
        """Opcodes for a short string."""
        known = self._known.get(word)
        if known is None:
            put, self._known[word] = self._put_name()
            known = b"X" + _pack_count(len(word)) + word + put
        return known


class _Open:
    """A tuple whose items are being written: it has no place in the memo yet."""


_OPEN = _Open()


class _Writer:
    """Writes one object. `_parts` are pieces of the stream; those of tensors are filled in last."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._parts: List[bytes] = [b"\x80\x02"]
        self._memo_size = 0
        self._places: Dict[int, Any] = {}        # id of a container -> the part after which it can be put into the memo
        self._memo: Dict[Tuple[bool, Any], bytes] = {}   # (is text, text or id) -> opcode that gets it
        self._texts: Dict[str, int] = {}         # text -> its part
        self._names = _Names(self._put_name)
        self._tensors: List[Any] = []
        self._slots: List[int] = []              # part of each tensor
        self._tensor_ids: Dict[int, int] = {}    # id -> place among the tensors
        self._shared: Dict[int, bytes] = {}      # place of a tensor that occurs again -> opcode that puts it
        self._keep: List[Any] = []
        self._writers: Dict[type, Callable[[Any], None]] = {
            dict: self._dict, list: self._list, tuple: self._tuple, str: self._text, OrderedDict: self._ordered_dict,
            bytes: self._bytes,
        }
        self._tensor_types: Tuple[Any, ...] = ()
        if torch is not None:
            self._tensor_types = (torch.Tensor, torch.nn.Parameter)
            for kind in self._tensor_types:
                self._writers[kind] = self._tensor
            self._writers[torch.Size] = self._size
            self._writers[torch.dtype] = self._dtype
            self._writers[torch.device] = self._device

    def write(self, obj: Any) -> Tuple[bytes, List[Part]]:
        """The pickle and the storages that it names. Once."""
        try:
            return self._write(obj)
        finally:   # own methods are in these: the tensors would stay until the garbage collector comes by
            self._writers.clear()
            del self._names

    def _write(self, obj: Any) -> Tuple[bytes, List[Part]]:
        self._value(obj)
        parts: List[Part] = []
        if self._tensors:
            looked = _Tensors(self._torch, self._tensors, self._tensor_types[1])
            parts = looked.write(self._slots, self._parts, self._shared, _Names(self._put_name))
        self._parts.append(b".")
        return b"".join(self._parts), parts

    # ---- Memo ----

    def _put_name(self) -> Tuple[bytes, bytes]:
        """Opcodes that put what is on the stack into the memo, and that get it again."""
        index = self._memo_size
        self._memo_size += 1
        if index < 256:
            return b"q" + bytes([index]), b"h" + bytes([index])
        return b"r" + _pack_count(index), b"j" + _pack_count(index)

    def _global(self, name: bytes) -> bytes:
        return self._names.get_global(name)

    def _again(self, thing: Any) -> bool:
        """Writes a container that was written before, from the memo."""
        place = self._places.get(id(thing))
        if place is None:
            return False
        if place is _OPEN:
            raise NotPlain   # a tuple that contains itself
        get = self._memo.get((False, id(thing)))
        if get is None:
            put, get = self._put_name()
            self._memo[(False, id(thing))] = get
            self._parts[place] += put
        self._parts.append(get)
        return True

    # ---- Values ----

    def _value(self, thing: Any) -> None:
        kind = type(thing)
        if kind is int:
            self._parts.append(encode_int(thing))
        elif kind is float:
            self._parts.append(b"G" + _pack_float(thing))
        elif thing is None:
            self._parts.append(b"N")
        elif kind is bool:
            self._parts.append(b"\x88" if thing else b"\x89")
        else:
            writer = self._writers.get(kind)
            if writer is None:
                raise NotPlain
            writer(thing)

    def _text(self, text: str) -> None:
        place = self._texts.get(text)
        if place is None:
            self._texts[text] = len(self._parts)
            self._parts.append(encode_text(text))
            return
        get = self._memo.get((True, text))
        if get is None:
            put, get = self._put_name()
            self._memo[(True, text)] = get
            self._parts[place] += put
        self._parts.append(get)

    def _bytes(self, content: bytes) -> None:
        # At protocol 2 there is no opcode for bytes: pickle writes text that is encoded again.
        self._parts.append(self._global(b"_codecs encode"))
        self._text(content.decode("latin-1"))
        self._text("latin1")
        self._parts.append(b"\x86R")

    def _dict(self, mapping: Dict[Any, Any]) -> None:
        if self._again(mapping):
            return
        self._places[id(mapping)] = len(self._parts)
        self._parts.append(b"}")
        self._items(mapping)

    def _ordered_dict(self, mapping: "OrderedDict[Any, Any]") -> None:
        if self._again(mapping):
            return
        self._parts.append(self._global(b"collections OrderedDict"))
        self._places[id(mapping)] = len(self._parts)
        self._parts.append(b")R")
        self._items(mapping)
        if vars(mapping):   # a state_dict's versions
            attributes = dict(vars(mapping))
            self._keep.append(attributes)   # so that no other object gets its id
            self._dict(attributes)
            self._parts.append(b"b")

    def _items(self, mapping: Dict[Any, Any]) -> None:
        if not mapping:
            return
        parts, text, value, tensor, plain = self._parts, self._text, self._value, self._tensor, self._tensor_types[:1]
        parts.append(b"(")
        for key, item in mapping.items():
            if type(key) is str:
                text(key)
            else:
                value(key)
            if type(item) in plain:
                tensor(item)
            else:
                value(item)
        parts.append(b"u")

    def _list(self, items: List[Any]) -> None:
        if self._again(items):
            return
        self._places[id(items)] = len(self._parts)
        self._parts.append(b"]")
        if items:
            self._parts.append(b"(")
            for item in items:
                self._value(item)
            self._parts.append(b"e")

    def _tuple(self, items: Tuple[Any, ...]) -> None:
        if not items:
            self._parts.append(b")")
            return
        if self._again(items):
            return
        self._places[id(items)] = _OPEN
        count = len(items)
        if count > 3:
            self._parts.append(b"(")
        for item in items:
            self._value(item)
        self._places[id(items)] = len(self._parts)
        self._parts.append((b"\x85", b"\x86", b"\x87")[count - 1] if count < 4 else b"t")

    def _size(self, size: Any) -> None:
        self._parts.append(self._global(b"torch Size") + _encode_numbers(tuple(size)) + b"\x85R")

    def _dtype(self, dtype: Any) -> None:
        self._parts.append(self._global(str(dtype).replace(".", " ").encode("ascii")))

    def _device(self, device: Any) -> None:
        self._parts.append(self._global(b"torch device"))
        self._text(device.type)
        if device.index is not None:
            self._parts.append(encode_int(device.index) + b"\x86R")
        else:
            self._parts.append(b"\x85R")

    def _tensor(self, tensor: Any) -> None:
        place = self._tensor_ids.get(id(tensor))
        if place is None:
            self._tensor_ids[id(tensor)] = len(self._tensors)
            self._slots.append(len(self._parts))
            self._parts.append(b"")
            self._tensors.append(tensor)
            return
        get = self._memo.get((False, id(tensor)))
        if get is None:
            self._shared[place], get = self._put_name()
            self._memo[(False, id(tensor))] = get
        self._parts.append(get)


class _Tensors:
    """The tensors of one object, in the order of the stream."""

    def __init__(self, torch: Any, tensors: List[Any], parameter: Any) -> None:
        from ._torch_pickle import _dtype_table

        self._torch, self._tensors = torch, tensors
        self._table = _dtype_table(torch)
        self._storages: List[Any] = []
        self._identities: List[int] = []
        self._sizes: List[int] = []
        self._offsets: List[int] = []
        self._dtypes: List[Any] = []
        self._geometries: List[Tuple[bytes, int]] = []   # shape and strides as opcodes, and the items from first to last
        self._gradients: List[bool] = []
        self._kinds: List[bool] = []                     # whether it is a parameter
        known: Dict[Any, Tuple[bytes, int]] = {}
        try:
            for begin in range(0, len(tensors), _CHUNK):
                self._look(tensors[begin:begin + _CHUNK], known, parameter)
        except (RuntimeError, NotImplementedError, ValueError):
            raise NotPlain from None   # it has no storage, or no strides

    def _look(self, chunk: List[Any], known: Dict[Any, Tuple[bytes, int]], parameter: Any) -> None:
        torch = self._torch
        base = torch.Tensor
        if not all(map(attrgetter("is_cpu"), chunk)) or any(map(attrgetter("__dict__"), chunk)):
            raise NotPlain
        if any(map(base.is_neg, chunk)):
            raise NotPlain
        dtypes = list(map(attrgetter("dtype"), chunk))
        for dtype in set(dtypes):
            if dtype not in self._table or dtype.is_complex and any(map(base.is_conj, chunk)):
                raise NotPlain
        strided = torch.strided
        if any(layout is not strided for layout in map(attrgetter("layout"), chunk)):
            raise NotPlain
        storages = list(map(base.untyped_storage, chunk))
        self._storages += storages
        self._identities += map(attrgetter("_cdata"), storages)
        self._sizes += map(torch.UntypedStorage.nbytes, storages)
        self._offsets += map(base.storage_offset, chunk)
        self._dtypes += dtypes
        kinds = [kind is parameter for kind in map(type, chunk)]
        gradients = list(map(attrgetter("requires_grad"), chunk))
        for tensor, is_parameter, gradient in zip(chunk, kinds, gradients):
            if gradient and not is_parameter and tensor._backward_hooks:
                raise NotPlain   # torch warns of these
        self._kinds += kinds
        self._gradients += gradients
        for geometry in zip(map(attrgetter("shape"), chunk), map(base.stride, chunk)):
            found = known.get(geometry)
            if found is None:
                shape, strides = tuple(geometry[0]), geometry[1]
                found = known[geometry] = (_encode_numbers(shape) + _encode_numbers(strides), _tensors.span_items(shape, strides))
            self._geometries.append(found)

    def _plans(self) -> Dict[int, Plan]:
        """Storages of which only parts are used, or which have several dtypes."""
        first_dtype: Dict[int, Any] = {}
        spans: Dict[int, Optional[List[Span]]] = {}
        mixed = set()
        table = self._table
        for identity, size, offset, dtype, (_, items) in zip(
                self._identities, self._sizes, self._offsets, self._dtypes, self._geometries):
            if first_dtype.setdefault(identity, dtype) is not dtype and size:
                mixed.add(identity)
            item = table[dtype][0]
            if items and (offset + items) * item > size:
                raise NotPlain   # it reaches past its storage: refused by name there
            if items * item == size:
                spans[identity] = None
            else:
                used = spans.setdefault(identity, [])
                if used is not None:
                    used.append((offset * item, (offset + items) * item))
        plans = {}
        if mixed or any(used is not None for used in spans.values()):
            sizes = dict(zip(self._identities, self._sizes))
            for identity, used in spans.items():
                found = plan(sizes[identity], used, identity in mixed) if used is not None or identity in mixed else None
                if found is not None:
                    plans[identity] = found
        return plans

    def write(self, slots: List[int], parts: List[bytes], shared: Dict[int, bytes], names: _Names) -> List[Part]:
        """Fills in the parts of the tensors; returns the storages."""
        storages = Storages(self._plans())
        plans, table = storages.plans, self._table
        # What stands before and after the key of a storage, for the many tensors of a shape.
        known: Dict[Any, Tuple[bytes, bytes]] = {}
        for slot, identity, storage, size, offset, dtype, (geometry, _), gradient, is_parameter in zip(
                slots, self._identities, self._storages, self._sizes, self._offsets, self._dtypes, self._geometries,
                self._gradients, self._kinds):
            first, last, is_untyped = 0, size, False
            if plans:
                done = plans.get(identity)
                if done is not None:
                    is_untyped = done.is_untyped
                    if done.begins:
                        first, last = done.part(offset * table[dtype][0])
                        offset = max(offset - first // table[dtype][0], 0)
            same = (dtype, last - first, offset, geometry, gradient, is_parameter, is_untyped)
            around = known.get(same)
            if around is None:
                count = names.count
                around = self._around(names, *same)
                if names.count == count:   # it has put nothing new into the memo, so it can be written again
                    known[same] = around
            key = b"%d" % storages.key(identity, storage, first, last)
            parts[slot] = b"%b%c\0\0\0%b%b" % (around[0], len(key), key, around[1])
        for place, put in shared.items():
            parts[slots[place]] += put
        return storages.parts

    def _around(self, names: _Names, dtype: Any, size: int, offset: int, geometry: bytes, gradient: bool, is_parameter: bool,
                is_untyped: bool) -> Tuple[bytes, bytes]:
        item, storage_type = self._table[dtype]
        is_untyped = is_untyped or storage_type is None
        codes = (b"\x89", b"\x88")
        before = names.get_global(b"torch._utils _rebuild_parameter") + b"(" if is_parameter else b""
        before += names.get_global(b"torch._utils _rebuild_tensor_v3" if is_untyped else b"torch._utils _rebuild_tensor_v2") + b"(("
        before += names.get_word(b"storage")
        before += names.get_global(b"torch.storage UntypedStorage" if is_untyped
                                   else b"torch " + storage_type.__name__.encode("ascii")) + b"X"
        after = names.get_word(b"cpu") + encode_int(size if is_untyped else size // item) + b"tQ" + encode_int(offset)
        after += geometry + codes[gradient and not is_parameter] + names.get_global(b"collections OrderedDict") + b")R"
        if is_untyped:
            after += names.get_global(str(dtype).replace(".", " ").encode("ascii"))
        after += b"tR"
        if is_parameter:
            after += codes[gradient] + names.get_global(b"collections OrderedDict") + b")RtR"
        return before, after
