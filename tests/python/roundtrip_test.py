"""Whole states there and back through the engine: saved by one life of a job, restored by the next."""

import collections
import copy
import dataclasses
import enum
import random
import types
import warnings
from collections import OrderedDict, defaultdict

import numpy
import pytest
import torch
from same import assert_same, bits

import neve


class Phase(enum.Enum):
    WARM = 1


@dataclasses.dataclass
class Plan:
    rate: float
    steps: list
    weight: object = None


Pair = collections.namedtuple("Pair", "left right")


def image_bytes(job_folder):
    return sum(path.stat().st_size for path in job_folder.rglob("*.safetensors"))


def test_PT_01_a_small_view_does_not_drag_its_base_along(around, tmp_path):
    base = torch.zeros(1_000_000)
    back = around({"view": base[:10]})
    assert back["view"].shape == (10,) and back["view"].stride() == (1,)
    assert image_bytes(tmp_path) < 20_000
    views = around([base[:10], base[2:4]])
    views[1][0] = 5
    assert views[0][2] == 5


def test_PT_02_tied_weights_stay_tied_and_are_stored_once(around, tmp_path):
    t = torch.ones(3)
    back = around({"model": {"a": t, "b": t}, "optimizer": {"c": t.view(3, 1), "d": t.detach()}})
    a, b, c, d = *back["model"].values(), *back["optimizer"].values()
    assert a is b and c.shape == (3, 1)
    a[0] = 5
    assert b[0] == c[0, 0] == d[0] == 5


def test_PT_02_one_byte_range_for_tied_weights(around, tmp_path):
    t = torch.ones(1_000_000)
    around({"a": t, "b": t, "c": t.view(1000, 1000), "d": t.detach()})
    assert image_bytes(tmp_path) < 4_100_000


def test_PT_03_two_dtypes_over_one_storage(around):
    a = torch.randn(4, dtype=torch.complex64)
    x = torch.arange(4, dtype=torch.int32)
    back = around([a, a.real, a.imag, x, x.view(torch.float32)])
    assert_same(back, [a, a.real, a.imag, x, x.view(torch.float32)])
    back[1][0] = 7
    assert back[0][0].real == 7 and back[1].stride() == (2,)
    back[3][0] = 1
    assert back[4].view(torch.int32)[0] == 1


def test_PT_04_lazy_conjugates_and_negatives_keep_their_values(around):
    x = torch.tensor([1 + 2j])
    m = torch.tensor([[1 + 2j, 3j], [4, 5 - 1j]])
    back = around({"conj": x.conj(), "neg": x.conj().imag, "mh": m.mH})
    assert back["conj"].tolist() == [1 - 2j] and back["neg"].tolist() == [-2.0]
    assert torch.equal(back["mh"].resolve_conj(), m.mH.resolve_conj())


DTYPES = ["bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "int64", "uint64", "float64", "complex64",
          "complex128", "complex32", "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8"]


@pytest.mark.parametrize("name", [name for name in DTYPES if hasattr(torch, name)])
def test_PT_05_every_dtype_is_bit_exact(around, name):
    dtype = getattr(torch, name)
    data = torch.randint(0, 256, (10 * dtype.itemsize,), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    if name == "bool":
        data &= 1
    back = around({"t": data.view(dtype), "scalar": data[:dtype.itemsize].view(dtype).view(()), "empty": data[:0].view(dtype)})
    assert back["t"].dtype == dtype and back["t"].shape == (10,)
    assert back["t"].view(torch.uint8).tolist() == data.tolist()
    assert back["scalar"].shape == () and back["empty"].shape == (0,)


def test_PT_05_nan_payloads_and_negative_zero_are_unchanged(around):
    state = {"bf16": torch.tensor([0x7FC1], dtype=torch.int16).view(torch.bfloat16),
             "f32": torch.tensor([0x7F800001, -0x80000000], dtype=torch.int32).view(torch.float32),
             "u64": torch.tensor([2**63 + 1], dtype=torch.uint64), "b": torch.tensor([2], dtype=torch.uint8).view(torch.bool)}
    back = around(state)
    for key, tensor in state.items():
        assert bits(back[key]) == bits(tensor), key


def test_PT_06_sparse_tensors_keep_duplicates_and_flags(around):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))
        state = {"twice": twice, "once": twice.coalesce(), "none": torch.sparse_coo_tensor(size=(2, 2)),
                 "csr": torch.eye(3).to_sparse_csr(), "csc": torch.eye(3).to_sparse_csc()}
        back = around(state)
    assert back["twice"]._nnz() == 2 and not back["twice"].is_coalesced() and back["twice"].to_dense()[0, 1] == 3
    assert back["once"]._nnz() == 1 and back["once"].is_coalesced()
    assert back["none"]._nnz() == 0
    assert back["csr"].layout == torch.sparse_csr and back["csc"].layout == torch.sparse_csc
    assert torch.equal(back["csr"].to_dense(), torch.eye(3))


def test_PT_07_attributes_parameters_and_requires_grad_come_back(around):
    t = torch.ones(2)
    t.foo = 1
    p = torch.nn.Parameter(torch.ones(2))
    p.tensor_model_parallel = True
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    leaf = torch.ones(2, requires_grad=True)
    back = around({"t": t, "p": p, "frozen": frozen, "leaf": leaf})
    assert back["t"].foo == 1 and back["p"].tensor_model_parallel is True
    assert type(back["p"]) is torch.nn.Parameter and back["p"].requires_grad
    assert type(back["frozen"]) is torch.nn.Parameter and not back["frozen"].requires_grad
    assert type(back["leaf"]) is torch.Tensor and back["leaf"].requires_grad and back["leaf"].is_leaf


def test_PT_07_a_tensor_as_attribute_comes_back(around):
    p = torch.nn.Parameter(torch.ones(2))
    p.scale = torch.full((1,), 3.0)
    assert around({"p": p})["p"].scale.tolist() == [3.0]


def test_PT_08_numpy_scalars_come_back_under_restricted_loading(around):
    state = {"lr": numpy.float64(1e-3), "n": numpy.int64(3), "best": numpy.mean([1.0, 2.0]), "w": torch.zeros(1)}
    assert_same(around(state, weights_only=True), state)


class Cfg:
    def __init__(self):
        self.depth = 3

    def __eq__(self, other):
        return type(other) is Cfg and other.depth == self.depth


def test_PT_09_pickled_objects_are_loaded_only_when_asked_for(job):
    with job() as checkpointer:
        with pytest.warns(UserWarning, match=r"cfg \(.*Cfg\)"):
            checkpointer.save(1, {"model": {"w": torch.ones(2)}, "cfg": Cfg()}).wait("file", 60)
        with pytest.raises(neve.UnsupportedOnLoad, match=r"cfg \(.*Cfg\)"):
            checkpointer.restore()
        assert torch.equal(checkpointer.restore(include="model").state["model"]["w"], torch.ones(2))
        assert checkpointer.restore(weights_only=False).state["cfg"] == Cfg()


def test_PT_14_meta_tensors_keep_everything_but_bytes(around, tmp_path):
    m = torch.empty(3, 4, device="meta", requires_grad=True)
    large = torch.empty(1_000_000, device="meta")
    back = around({"m": m, "large": large, "w": torch.zeros(1)})
    assert_same(back["m"], m)
    assert image_bytes(tmp_path) < 20_000


def test_PT_17_the_version_table_of_a_state_dict_comes_back(around):
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    back = around({"model": module.state_dict()})["model"]
    assert type(back) is OrderedDict and back._metadata == module.state_dict()._metadata
    assert back._metadata["0"] == {"version": 2} and back["0.num_batches_tracked"].dtype == torch.int64
    assert back["0.num_batches_tracked"].shape == ()
    assert_same(back, module.state_dict())


def test_PT_25_strides_come_back_and_values_are_logical(around, tmp_path):
    channels_last = torch.arange(108.0).reshape(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    transposed = torch.arange(100.0)[7:67].view(6, 10).t()
    expanded = torch.tensor([3.0]).expand(1000, 1000)
    gapped = torch.arange(100.0).view(10, 10)[:, ::3]
    overlapping = torch.arange(10.0).as_strided((4, 3), (2, 1))
    state = {"cl": channels_last, "t": transposed, "e": expanded, "g": gapped, "o": overlapping,
             "e2": torch.arange(3.0).view(3, 1).expand(3, 5),
             "zero": torch.zeros(0, 3).t(), "one": torch.arange(4.0).view(1, 4, 1)}
    assert channels_last.stride() == (27, 1, 9, 3)
    back = around(state)
    assert_same(back, state)
    assert image_bytes(tmp_path) < 40_000


def test_PT_25_random_views_of_one_storage_come_back(around):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(3):
        base = torch.randn(400)
        state = {}
        for index in range(12):
            rank = generator.randrange(4)
            shape = [generator.randrange(1, 5) for _ in range(rank)]
            strides = [generator.choice([0, 1, 2, 3, 5, 12]) for _ in range(rank)]
            state[f"v{index}"] = base.as_strided(shape, strides, generator.randrange(200))
        back = around(state)
        assert_same(back, state)
        stored = {name: tensor.untyped_storage().data_ptr() for name, tensor in back.items()}
        assert len(set(stored.values())) <= len(stored)


def test_PT_26_random_generators_go_on_where_they_were(around):
    generator, cpu = numpy.random.default_rng(5), torch.Generator().manual_seed(9)
    twister, legacy = numpy.random.Generator(numpy.random.MT19937(3)), numpy.random.RandomState(4)
    generator.random(), torch.rand(1, generator=cpu), twister.random(), legacy.rand()
    state = {"python": random.getstate(), "numpy": numpy.random.get_state(), "bits": generator.bit_generator.state,
             "torch": torch.get_rng_state(), "generator": generator, "cpu": cpu, "twister": twister, "legacy": legacy}
    saved = around(state)
    expected = ([random.random() for _ in range(10)], numpy.random.rand(10).tolist(), generator.random(10).tolist(),
                torch.rand(10), torch.rand(10, generator=cpu), twister.random(10).tolist(), legacy.rand(10).tolist())
    random.setstate(saved["python"])
    numpy.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    other = numpy.random.default_rng()
    other.bit_generator.state = saved["bits"]
    assert [random.random() for _ in range(10)] == expected[0]
    assert numpy.random.rand(10).tolist() == expected[1]
    assert other.random(10).tolist() == saved["generator"].random(10).tolist() == expected[2]
    assert torch.equal(torch.rand(10), expected[3])
    assert torch.equal(torch.rand(10, generator=saved["cpu"]), expected[4])
    assert saved["twister"].random(10).tolist() == expected[5] and saved["legacy"].rand(10).tolist() == expected[6]
    assert type(saved["python"]) is tuple and len(saved["python"][1]) == 625 and saved["torch"].dtype == torch.uint8


def test_PT_27_odd_keys_keep_type_and_order(around):
    keys = [1, (2, "x"), "a/b", "a.b", "", "line\nbreak é", None, 1.5, b"b", "k" * 100_000, True, "~", "0", 0]
    keys = [key for index, key in enumerate(keys) if key not in keys[:index]]
    state = {key: torch.full((2,), float(index)) for index, key in enumerate(keys)}
    state["deep"] = {"a": {"b": torch.zeros(1)}, "a.b": torch.ones(1), "a.b.c": {"d": torch.zeros(3)}}
    assert_same(around(state), state)
    values = {key: index for index, key in enumerate(keys)}
    assert_same(around({"w": torch.zeros(1), "v": values}), {"w": torch.zeros(1), "v": values})


def test_USE_01_optimizer_state_keeps_its_dtypes(around):
    state = {"state": {0: {"step": torch.tensor(10001.0),
                           "exp_avg": torch.randn(3).bfloat16(), "exp_avg_sq": torch.randn(3).double()}}}
    back = around(state)
    assert_same(back, state)
    assert back["state"][0]["step"].item() == 10001


def test_numpy_arrays_of_every_kind(around):
    record = numpy.zeros(2, dtype=[("a", "i4")])
    state = {"c": numpy.arange(6).reshape(2, 3), "f": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
             "neg": numpy.arange(5)[::-1], "step": numpy.arange(10, dtype="i2")[::3], "big": numpy.arange(3, dtype=">f4"),
             "bool": numpy.array([True, False]), "date": numpy.array(["2020-01-01"], dtype="M8[D]"),
             "text": numpy.array(["añ", "b"]), "scalar": numpy.array(3.5), "empty": numpy.zeros((0, 2)),
             "c16": numpy.array([1j]), "bigT": numpy.arange(6, dtype=">i2").reshape(2, 3).T}
    state["same"] = state["c"]
    back = around(state)
    assert_same(back, state)
    assert back["same"] is back["c"] and back["f"].flags.f_contiguous and back["neg"].flags.writeable
    with pytest.warns(UserWarning):
        assert_same(around({"r": record, "o": numpy.array([None, 1])}, weights_only=False),
                    {"r": record, "o": numpy.array([None, 1])})


def test_arrays_and_tensors_that_share_memory_go_on_sharing(around):
    array = numpy.arange(6.0)
    back = around({"array": array, "tensor": torch.from_numpy(array), "part": array[2:4]})
    back["array"][2] = 9
    assert back["tensor"][2] == 9 and back["part"][0] == 9
    only = around({"a": array, "b": array[1:3]})
    only["b"][0] = 7
    assert only["a"][1] == 7


def test_a_state_without_torch_comes_back(around):
    state = {"a": numpy.arange(3), "n": 1}
    assert_same(around(state), state)


def test_values_of_every_kind(around):
    state = {"w": torch.zeros(1), "none": None, "t": (1, 2.5, "x"), "set": {1, 2}, "plan": Plan(0.1, [1]), "phase": Phase.WARM,
             "size": torch.Size([2]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"), "bytes": b"\0\xff",
             "long": "é" * 5000,
             "raw": b"\x01" * 10_000, "numbers": list(range(3000)), "complex": 1 - 2j,
             "pair": Pair(1, "r"), "ba": bytearray(b"ab" * 4000)}
    assert_same(around(state), state)


def test_containers_of_every_kind_around_tensors(around):
    state = {"l": [torch.zeros(1), [torch.ones(1)], ()], "t": (torch.zeros(2), 1), "p": Pair(torch.ones(1), {"k": 1}),
             "d": Plan(0.5, [torch.zeros(1)], torch.ones(2)), "o": OrderedDict(b=torch.zeros(1), a=1),
             "dd": defaultdict(list, k=[torch.zeros(1)]), "e": {}, "n": None}
    back = around(state)
    assert_same(back, state)
    assert back["dd"].default_factory is list


@pytest.mark.parametrize("state", [torch.arange(3.0), 5, "text", [], {}, None, [torch.zeros(2), torch.zeros(2)], (torch.ones(1),),
                                   numpy.arange(3), {"a": {}}, b"x" * 9000])
def test_any_root_comes_back(around, state):
    assert_same(around(state), state)


def test_objects_with_state_come_back_as_their_state_dicts(around):
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    back = around({"model": model, "optimizer": optimizer, "scheduler": scheduler})
    assert_same(back["model"], model.state_dict())
    assert_same(back["optimizer"], optimizer.state_dict())
    assert back["scheduler"] == scheduler.state_dict()


def test_include_brings_back_only_what_it_names(around):
    state = {"model": {"a.w": torch.ones(1), "b.w": torch.zeros(1)}, "optimizer": {"lr": 0.1, "m": torch.ones(2)}, "step": 3,
             "l": [torch.zeros(1), torch.ones(1)]}
    assert_same(around(state, include=["model.a.*", "step"]), {"model": {"a.w": torch.ones(1)}, "step": 3})
    assert_same(around(state, include="optimizer"), {"optimizer": state["optimizer"]})
    assert_same(around(state, include="l.1"), {"l": [None, torch.ones(1)]})
    with pytest.raises(neve.Invalid, match="nothing"):
        around(state, include="nothing")


def test_map_location(around):
    assert around({"w": torch.ones(1)}, map_location="cpu")["w"].device.type == "cpu"
    assert around({"w": torch.ones(1)}, map_location=torch.device("cpu"))["w"].device.type == "cpu"
    assert around({"w": torch.ones(1)}, map_location={"cuda:0": "cpu"})["w"].device.type == "cpu"


def test_a_restored_state_owns_its_storages(around):
    back = around({"a": torch.zeros(10), "b": torch.zeros(10)})
    assert back["a"].untyped_storage().nbytes() == 40
    assert back["a"].untyped_storage().data_ptr() != back["b"].untyped_storage().data_ptr()
    copy.deepcopy(back)


def test_a_class_of_a_module_that_is_not_imported_is_named(job, monkeypatch):
    import sys

    module = types.ModuleType("neve_test_module")
    exec("import dataclasses\n@dataclasses.dataclass\nclass C:\n  a: int\n", vars(module))
    module.C.__module__ = "neve_test_module"
    monkeypatch.setitem(sys.modules, "neve_test_module", module)
    with job() as checkpointer:
        checkpointer.save(1, {"w": torch.zeros(1), "c": module.C(3)}).wait("file", 60)
        assert checkpointer.restore().state["c"] == module.C(3)
        monkeypatch.delitem(sys.modules, "neve_test_module")
        with pytest.raises(neve.UnsupportedOnLoad, match="neve_test_module.C"):
            checkpointer.restore()
