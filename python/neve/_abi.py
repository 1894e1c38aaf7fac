"""neve.h for ctypes: the enums, structs and functions of the C API. A test compares this file with the header."""

from __future__ import annotations

from ctypes import (
    CDLL, CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_int8, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64,
    c_void_p,
)
from typing import Any, Dict, List, Tuple, Type

# ---- Enums ----

CODES: Dict[str, int] = {
    "NEVE_OK": 0, "NEVE_INVALID": 3, "NEVE_TIMEOUT": 4, "NEVE_NOT_FOUND": 5, "NEVE_EXHAUSTED": 8, "NEVE_CLOSED": 9,
    "NEVE_DAMAGED": 11, "NEVE_UNSUPPORTED": 12, "NEVE_INTERNAL": 13, "NEVE_UNAVAILABLE": 14, "NEVE_DATA_LOSS": 15,
}

DTYPES: Dict[str, int] = {
    name: 1 + index for index, name in enumerate((
        "NEVE_BOOL", "NEVE_U8", "NEVE_I8", "NEVE_F8_E5M2", "NEVE_F8_E4M3", "NEVE_F8_E8M0", "NEVE_F8_E4M3FNUZ",
        "NEVE_F8_E5M2FNUZ", "NEVE_I16", "NEVE_U16", "NEVE_F16", "NEVE_BF16", "NEVE_I32", "NEVE_U32", "NEVE_F32",
        "NEVE_I64", "NEVE_U64", "NEVE_F64", "NEVE_C64", "NEVE_C128", "NEVE_C32", "NEVE_F4_E2M1X2", "NEVE_BITS8",
        "NEVE_BITS16", "NEVE_QI8", "NEVE_QU8", "NEVE_QI32"))
}

ON_FULL: Dict[str, int] = {"wait": 0, "skip": 1, "replace": 2}

# ---- Structs: the header's fields in its order; `new` fills in the size and what the INIT macro sets ----


class Sized(Structure):
    """A struct that begins with its own size."""

    _initial_: Dict[str, Any] = {}

    @classmethod
    def new(cls, **values: Any) -> Any:
        fields = dict(cls._initial_)
        fields.update(values)
        return cls(struct_size=_size_of(cls), **fields)


def _size_of(kind: Type[Structure]) -> int:
    import ctypes

    return ctypes.sizeof(kind)


class Options(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("folder", c_char_p),
        ("job", c_char_p),
        ("tiers", POINTER(c_char_p)),
        ("tier_count", c_size_t),
        ("rank", c_uint32),
        ("world", c_uint32),
        ("on_full", c_int),
        ("incarnation", c_int64),
        ("grace_s", c_double),
        ("capture_threads", c_int),
        ("group", c_char_p),
        ("group_set", c_void_p),
        ("group_get", c_void_p),
        ("group_gather", c_void_p),
        ("group_context", c_void_p),
        ("group_timeout_s", c_double),
        ("replicated", c_int),
    ]
    _initial_ = {"world": 1, "incarnation": -1, "group_timeout_s": 300.0}


class Tensors(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("count", c_size_t),
        ("names", c_void_p),
        ("name_bytes", POINTER(c_uint32)),
        ("dtypes", POINTER(c_uint8)),
        ("ranks", POINTER(c_uint8)),
        ("extents", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("pieces", POINTER(c_uint8)),
        ("global_extents", POINTER(c_int64)),
        ("offsets", POINTER(c_int64)),
        ("logical_names", POINTER(c_char_p)),
        ("devices", POINTER(c_int32)),
    ]


class SaveRequest(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_uint64),
        ("state", c_void_p),
        ("addresses", c_void_p),
        ("values", c_void_p),
        ("values_bytes", c_size_t),
        ("blobs", POINTER(c_char_p)),
        ("blob_bytes", POINTER(c_size_t)),
        ("tags_json", c_char_p),
        ("to", c_char_p),
        ("slot_timeout_s", c_double),
        ("stream_devices", POINTER(c_int32)),
        ("streams", POINTER(c_void_p)),
        ("stream_count", c_size_t),
        ("fence", c_int),
        ("fenced", POINTER(c_uint8)),
    ]
    _initial_ = {"slot_timeout_s": -1.0}


class FindRequest(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("before_incarnation", c_int64),
        ("before_sequence", c_uint64),
        ("allow_missing", c_char_p),
        ("fallback", c_int),
        ("take_rank0", c_char_p),
        ("include", c_char_p),
    ]
    _initial_ = {"step": -1, "before_incarnation": -1}


class RestoreRequest(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("state", c_void_p),
        ("targets", c_void_p),
        ("include", c_char_p),
        ("allow_missing", c_char_p),
        ("take_rank0", c_char_p),
        ("fallback", c_int),
        ("atomic", c_int),
        ("partial", c_int),
        ("restored", POINTER(c_uint8)),
    ]
    _initial_ = {"step": -1}


class Ranges(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("count", c_size_t),
        ("offsets", POINTER(c_uint64)),
        ("bytes", POINTER(c_uint64)),
        ("targets", c_void_p),
        ("ranks", POINTER(c_int8)),
        ("extents", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("item_bytes", POINTER(c_uint64)),
        ("written", POINTER(c_uint8)),
    ]


class TensorInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_void_p),
        ("name_bytes", c_size_t),
        ("dtype", c_uint8),
        ("rank", c_uint8),
        ("extents", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("bytes", c_uint64),
        ("global_extents", POINTER(c_int64)),
        ("offsets", POINTER(c_int64)),
        ("logical_name", c_void_p),
        ("logical_name_bytes", c_size_t),
    ]


class Boxes(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("count", c_size_t),
        ("tensors", POINTER(c_size_t)),
        ("offsets", POINTER(c_int64)),
        ("extents", POINTER(c_int64)),
        ("targets", c_void_p),
        ("strides", c_void_p),
        ("written", POINTER(c_uint8)),
    ]


class TorchObject(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("pickle", c_char_p),
        ("pickle_bytes", c_size_t),
        ("storages", c_void_p),
        ("storage_bytes", c_void_p),
        ("storage_count", c_size_t),
        ("alignment", c_uint64),
    ]
    _initial_ = {"alignment": 64}


STRUCTS: Dict[str, Type[Sized]] = {
    "neve_options": Options,
    "neve_tensors": Tensors,
    "neve_save_request": SaveRequest,
    "neve_find_request": FindRequest,
    "neve_restore_request": RestoreRequest,
    "neve_ranges": Ranges,
    "neve_tensor_info": TensorInfo,
    "neve_boxes": Boxes,
    "neve_torch_object": TorchObject,
}

# Functions that the program gives: (context, name, value, bytes, reply), (context, name, reply), (context, mine, bytes, timeout_s,
# reply).
GROUP_SET = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, c_void_p)
GROUP_GET = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)
GROUP_GATHER = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_double, c_void_p)

# ---- Functions: result, then arguments. Handles are void pointers ----

_handle, _out, _error = c_void_p, POINTER(c_void_p), POINTER(c_void_p)

FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "neve_version": (c_char_p, []),
    "neve_error_code": (c_int, [_handle]),
    "neve_error_message": (c_char_p, [_handle]),
    "neve_error_errno": (c_int, [_handle]),
    "neve_error_destroy": (None, [_out]),
    "neve_string_data": (c_void_p, [_handle]),
    "neve_string_size": (c_size_t, [_handle]),
    "neve_string_destroy": (None, [_out]),
    "neve_log_set": (None, [c_void_p, c_void_p]),
    "neve_log_level_set": (c_int, [c_int, _error]),
    "neve_memory_set": (c_int, [c_void_p, c_void_p, c_void_p, _error]),
    "neve_reply_add": (None, [_handle, c_char_p, c_size_t]),
    "neve_engine_open": (c_int, [POINTER(Options), _out, _error]),
    "neve_engine_close": (c_int, [_out, c_int, c_double, _error]),
    "neve_engine_destroy": (None, [_out]),
    "neve_state_create": (c_int, [POINTER(Tensors), c_char_p, c_size_t, c_uint32, _out, _error]),
    "neve_state_destroy": (None, [_out]),
    "neve_engine_save": (c_int, [_handle, POINTER(SaveRequest), _out, _error]),
    "neve_engine_prepare": (c_int, [_handle, POINTER(SaveRequest), _error]),
    "neve_engine_count_save": (c_int, [_handle, _error]),
    "neve_engine_drain": (c_int, [_handle, c_double, _error]),
    "neve_engine_pin": (c_int, [_handle, c_uint64, c_int, _error]),
    "neve_devices_describe": (c_int, [_out, _error]),
    "neve_ticket_wait": (c_int, [_handle, c_char_p, c_double, _error]),
    "neve_ticket_describe": (c_int, [_handle, _out, _error]),
    "neve_ticket_fence": (c_int, [_handle, POINTER(c_int32), POINTER(c_void_p), c_size_t, c_double, _error]),
    "neve_ticket_poll": (c_int, [_handle, c_char_p, POINTER(c_int), _error]),
    "neve_ticket_error": (c_int, [_handle, _error]),
    "neve_ticket_step": (c_uint64, [_handle]),
    "neve_ticket_descriptor": (c_int, [_handle]),
    "neve_ticket_destroy": (None, [_out]),
    "neve_engine_steps": (c_int, [_handle, _out, _error]),
    "neve_engine_health": (c_int, [_handle, _out, _error]),
    "neve_engine_counter": (c_int, [_handle, c_char_p, POINTER(c_uint64), _error]),
    "neve_engine_restore": (c_int, [_handle, POINTER(RestoreRequest), _out, _error]),
    "neve_engine_find": (c_int, [_handle, POINTER(FindRequest), _out, _error]),
    "neve_engine_agree": (c_int, [_handle, c_int, c_char_p, _error]),
    "neve_engine_leave": (c_int, [_handle, c_char_p, _error]),
    "neve_image_open": (c_int, [c_char_p, _out, _error]),
    "neve_image_destroy": (None, [_out]),
    "neve_image_step": (c_uint64, [_handle]),
    "neve_image_tensor_data": (c_int, [_handle, c_size_t, _out, _error]),
    "neve_image_values": (c_int, [_handle, _out, _error]),
    "neve_image_blob": (c_int, [_handle, c_uint32, _out, _error]),
    "neve_image_describe": (c_int, [_handle, _out, _error]),
    "neve_image_header": (c_void_p, [_handle, POINTER(c_size_t)]),
    "neve_image_read": (c_int, [_handle, POINTER(Ranges), _error]),
    "neve_image_tensor_count": (c_size_t, [_handle]),
    "neve_image_tensor_describe": (c_int, [_handle, c_size_t, POINTER(TensorInfo), _error]),
    "neve_image_tensor_find": (c_int, [_handle, c_char_p, POINTER(c_size_t), _error]),
    "neve_image_tensors_read": (c_int, [_handle, c_size_t, POINTER(c_size_t), c_void_p, c_void_p, _error]),
    "neve_image_global": (c_int, [_handle, c_char_p, _out, _error]),
    "neve_image_global_part": (c_int, [_handle, c_char_p, c_char_p, _out, _error]),
    "neve_image_is_global": (c_int, [_handle]),
    "neve_image_boxes_read": (c_int, [_handle, POINTER(Boxes), _error]),
    "neve_image_verify": (c_int, [_handle, _error]),
    "neve_place_list": (c_int, [c_char_p, _out, _error]),
    "neve_place_verify": (c_int, [c_char_p, c_int64, _out, _error]),
    "neve_place_recover": (c_int, [c_char_p, c_char_p, c_int, c_int, _out, _error]),
    "neve_place_gc": (c_int, [c_char_p, c_int64, c_int, _out, _error]),
    "neve_file_save": (c_int, [c_char_p, POINTER(SaveRequest), _error]),
    "neve_file_save_async": (c_int, [c_char_p, POINTER(SaveRequest), _out, _error]),
    "neve_torch_file_save": (c_int, [c_char_p, POINTER(TorchObject), _error]),
    "neve_torch_file_save_async": (c_int, [c_char_p, POINTER(TorchObject), _out, _error]),
    "neve_torch_stream_create": (c_int, [POINTER(TorchObject), _out, _error]),
    "neve_torch_stream_read": (c_int, [_handle, c_void_p, c_size_t, POINTER(c_size_t), _error]),
    "neve_torch_stream_destroy": (None, [_out]),
}


def declare(library: CDLL) -> CDLL:
    """Sets result and argument types of every function. AttributeError when the library lacks one."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
