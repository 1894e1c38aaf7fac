"""Python's declarations of the C API against the header itself."""

import ctypes
import re
from pathlib import Path

import pytest

from neve import _abi, _tensors, errors

HEADER = Path(__file__).resolve().parents[2] / "include" / "neve" / "neve.h"


@pytest.fixture(scope="module")
def header():
    return re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.S)


def enum_of(header, name):
    body = re.search(rf"typedef enum {name} \{{(.*?)\}}", header, re.S)[1]
    values, value = {}, -1
    for item in filter(None, (part.strip() for part in body.split(","))):
        found = re.fullmatch(r"(\w+)(?:\s*=\s*(-?\d+))?", item)
        value = int(found[2]) if found[2] else value + 1
        values[found[1]] = value
    return values


def test_codes_are_the_headers(header):
    assert enum_of(header, "neve_code") == _abi.CODES
    for name, value in _abi.CODES.items():
        assert getattr(errors, name[len("NEVE_"):]) == value


def test_dtypes_are_the_headers(header):
    assert enum_of(header, "neve_dtype") == _abi.DTYPES
    assert sorted(dtype.code for dtype in _tensors.DTYPES) == sorted(_abi.DTYPES.values())


def fields_of(header, name):
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", header, re.S)[1]
    fields = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        for index, item in enumerate(declaration.split(",")):
            if index == 0:
                kind, field = re.fullmatch(r"(.*?)(\w+)", item.strip(), re.S).groups()
            else:
                field = item.strip()
            fields.append((field, " ".join(kind.split())))
    return fields


SIMPLE = {"size_t": ctypes.c_size_t, "uint8_t": ctypes.c_uint8, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
          "int32_t": ctypes.c_int32,
          "int64_t": ctypes.c_int64, "int": ctypes.c_int, "double": ctypes.c_double, "neve_group_set_fn": ctypes.c_void_p,
          "neve_group_get_fn": ctypes.c_void_p, "neve_group_gather_fn": ctypes.c_void_p}


@pytest.mark.parametrize("name", _abi.STRUCTS)
def test_structs_have_the_headers_fields(header, name):
    struct = _abi.STRUCTS[name]
    ours = list(struct._fields_)
    theirs = fields_of(header, name)
    assert [field for field, _ in ours] == [field for field, _ in theirs]
    for (field, kind), (_, text) in zip(ours, theirs):
        if "*" in text:
            assert ctypes.sizeof(kind) == ctypes.sizeof(ctypes.c_void_p), field
        else:
            assert kind is SIMPLE[text], field


def test_every_struct_of_the_header_is_declared(header):
    assert set(re.findall(r"typedef struct (\w+) \{", header)) == set(_abi.STRUCTS)


@pytest.mark.parametrize("name", _abi.STRUCTS)
def test_initial_values_are_those_of_the_init_macro(header, name):
    macro = re.search(rf"#define {name.upper()}_INIT \{{(.*?)\}}", header)[1]
    initial = [part.strip() for part in macro.split(",")]
    made = _abi.STRUCTS[name].new()
    assert made.struct_size == ctypes.sizeof(made)
    assert len(initial) == len(made._fields_)
    for (field, _), text in list(zip(made._fields_, initial))[1:]:
        value = getattr(made, field)
        assert (not value) if text in ("NULL", "0", "0.0") else value == float(text), field


def test_every_function_of_the_header_is_declared_with_its_arguments(header):
    found = dict(re.findall(r"NEVE_API\s+[\w\s]+?[\s*]+(neve_\w+)\(([^)]*)\)", header))
    assert set(found) == set(_abi.FUNCTIONS)
    for name, arguments in found.items():
        count = 0 if arguments.strip() == "void" else len(arguments.split(","))
        assert count == len(_abi.FUNCTIONS[name][1]), name


def test_every_code_has_an_exception_and_every_exception_its_builtin_class():
    assert set(errors.BY_CODE) == set(_abi.CODES.values()) - {0}
    builtin = {"Invalid": ValueError, "Closed": ValueError, "Timeout": TimeoutError, "NotFound": FileNotFoundError,
               "Exhausted": OSError, "Damaged": RuntimeError, "Unsupported": TypeError, "Unavailable": OSError,
               "DataLoss": RuntimeError, "Internal": RuntimeError}
    for kind in errors.BY_CODE.values():
        error = kind("what", 28)
        assert isinstance(error, (errors.Error, builtin[kind.__name__])) and isinstance(error, builtin[kind.__name__])
        assert str(error) == "what" and error.errno == 28


@pytest.mark.parametrize("code", [15, "DATA_LOSS", "NEVE_DATA_LOSS", "DataLoss", "data_loss"])
def test_a_code_is_known_in_any_spelling(code):
    assert type(errors.from_code(code, "x")) is errors.DataLoss


def test_an_unknown_code_is_internal():
    assert type(errors.from_code(99, "x")) is errors.Internal


def test_errors_survive_pickling_between_processes():
    import pickle

    error = pickle.loads(pickle.dumps(errors.Exhausted("full", 28)))
    assert type(error) is errors.Exhausted and str(error) == "full" and error.errno == 28
