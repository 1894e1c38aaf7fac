"""One leaf of each kind that torch.save takes, in both directions: neve.save -> torch.load and torch.save -> neve.load, bit for bit.

What a leaf is, is told by `facts`: its components with the bytes of each, so that two leaves are compared without asking either.
"""

import argparse
import collections
import datetime
import decimal
import fractions
import functools
import io
import pathlib
import random
import uuid
import warnings

import neve
import numpy
import pytest
import torch
from torch_states import Point

pytestmark = pytest.mark.filterwarnings("ignore")

Wide = collections.namedtuple("Wide", "a b c d e")


class Tagged(torch.Tensor):
    pass


def sparse_coo(**options):
    return torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 0]], [1.0, -0.0, 3.0], (3, 2), **options)


def per_channel(dtype, scales=torch.float64):
    return torch.quantize_per_channel(torch.arange(-3.0, 3.0).view(2, 3), torch.tensor([0.1, 0.2], dtype=scales),
                                      torch.tensor([1, 2]), 0, dtype)


def per_tensor(dtype, shape=(3,)):
    return torch.quantize_per_tensor(torch.arange(float(numpy.prod(shape))).view(shape), 0.1, 3, dtype)


def with_attribute(tensor):
    tensor.tag = "kept"
    return tensor


def masked():
    return numpy.ma.array([1.5, 2.5], mask=[False, True])


def seeded(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return make()


# Those that weights-only loading takes, by torch and by neve.
SAFE = {
    "coo": sparse_coo,
    "coo coalesced": lambda: sparse_coo().coalesce(),
    "coo that asks for gradients": lambda: sparse_coo(requires_grad=True),
    "coo hybrid": lambda: torch.sparse_coo_tensor([[0, 2]], torch.arange(6.0).view(2, 3), (3, 3)),
    "coo of bfloat16": lambda: sparse_coo().to(torch.bfloat16),
    "coo of nothing": lambda: torch.sparse_coo_tensor(size=(3, 4)),
    "coo parameter": lambda: torch.nn.Parameter(torch.eye(3).to_sparse()),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "csr with int32 indices": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2), (2, 2)),
    "csr batched": lambda: torch.ones(2, 3, 3).to_sparse_csr(),
    "csr of nothing": lambda: torch.zeros(3, 4).to_sparse_csr(),
    "csc": lambda: torch.tensor([[1.0, 0], [2, 3]]).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(6).to_sparse_bsc((3, 2)),
    "qint8": lambda: per_tensor(torch.qint8),
    "quint8": lambda: per_tensor(torch.quint8),
    "qint32": lambda: per_tensor(torch.qint32),
    "quantized by channel": lambda: per_channel(torch.qint8),
    "quantized by channel, float32 scales": lambda: per_channel(torch.quint8, torch.float32),
    "quantized by channel, qint32": lambda: per_channel(torch.qint32),
    "quantized and turned": lambda: per_tensor(torch.qint8, (4, 3)).t(),
    "quantized, channels last": lambda: per_tensor(torch.qint8, (2, 3, 4, 4)).contiguous(memory_format=torch.channels_last),
    "quint4x2": lambda: torch.quantize_per_channel(torch.arange(8.0).view(2, 4), torch.tensor([0.1, 0.2]), torch.tensor([1.0, 2.0]),
                                                   0, torch.quint4x2),
    "quantized parameter": lambda: torch.nn.Parameter(per_tensor(torch.qint8), requires_grad=False),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.arange(3.0)]),
    "nested, jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.arange(3.0)], layout=torch.jagged),
    "meta": lambda: torch.empty(3, 4, device="meta").t(),
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "turned": lambda: torch.arange(6.0).view(2, 3).t(),
    "overlapping itself": lambda: torch.arange(6.0).unfold(0, 3, 1),
    "scalar": lambda: torch.tensor(-0.0),
    "parameter with an attribute": lambda: with_attribute(torch.nn.Parameter(torch.ones(2))),
    "buffer": lambda: torch.nn.Buffer(torch.ones(2)),
    "subclass": lambda: with_attribute(torch.ones(2).as_subclass(torch.nn.Parameter)),
    "typed storage": lambda: torch.arange(3.0).storage(),
    "untyped storage": lambda: torch.arange(3.0).untyped_storage(),
    "tensor and its storage": lambda: (lambda t: [t, t.storage(), t[1:]])(torch.arange(4.0)),
    "bits1x8": lambda: torch.arange(4, dtype=torch.uint8).view(torch.bits1x8),
    "bits2x4": lambda: torch.arange(4, dtype=torch.uint8).view(torch.bits2x4),
    "float4": lambda: torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "generator state": lambda: torch.Generator().manual_seed(3).get_state(),
    "size": lambda: torch.Size([1, 2]),
    "layout": lambda: torch.sparse_csr,
    "quantization scheme": lambda: torch.per_channel_affine,
    "Counter": lambda: collections.Counter("abracadabra"),
    "set": lambda: {1, 2},
    "bytearray": lambda: bytearray(b"a\xff"),
}

# Those that only weights_only=False brings back in torch.
UNSAFE = {
    "namedtuple": lambda: Point(torch.ones(1), [torch.arange(2.0)]),
    "wide namedtuple": lambda: Wide(1, 2, 3, 4, torch.ones(1)),
    "what max returns": lambda: torch.max(torch.eye(3), 0),
    "subclass of one's own": lambda: with_attribute(torch.ones(2).as_subclass(Tagged)),
    "uninitialized parameter": lambda: torch.nn.UninitializedParameter(),
    "defaultdict": lambda: collections.defaultdict(list, a=[torch.ones(1)]),
    "deque": lambda: collections.deque([1, torch.ones(1)], maxlen=3),
    "ChainMap": lambda: collections.ChainMap({"a": 1}, {"b": 2}),
    "frozenset": lambda: frozenset({1}),
    "range": lambda: range(3),
    "slice": lambda: slice(1, 2),
    "Ellipsis": lambda: ...,
    "array": lambda: numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "structured array": lambda: numpy.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
    "array of objects": lambda: numpy.array([None, 1], dtype=object),
    "masked array": masked,
    "NumPy scalar": lambda: numpy.float32(1.5),
    "NumPy date": lambda: numpy.datetime64("2020-01-01"),
    "NumPy dtype": lambda: numpy.dtype("<f4"),
    "NumPy generator": lambda: numpy.random.default_rng(3),
    "RandomState": lambda: numpy.random.RandomState(3),
    "Random": lambda: random.Random(3),
    "datetime": lambda: datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
    "Decimal": lambda: decimal.Decimal("1.50"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "UUID": lambda: uuid.UUID(int=3),
    "namespace": lambda: argparse.Namespace(lr=0.1, w=torch.ones(1)),
    "partial": lambda: functools.partial(int, base=2),
    "function of torch": lambda: torch.relu,
    "BytesIO": lambda: io.BytesIO(b"abc"),
    "module": lambda: torch.nn.Linear(2, 2),
    "quantized module": lambda: torch.ao.nn.quantized.Linear(2, 2),
    "distribution": lambda: torch.distributions.Normal(0.0, 1.0),
}

# What is the same object twice, or a storage seen as another type, is compared in other tests; these have a state of their own.
_GENERATORS = {numpy.random.Generator: lambda it: it.bit_generator.state, random.Random: random.Random.getstate,
               numpy.random.RandomState: lambda it: it.get_state(legacy=False), io.BytesIO: io.BytesIO.getvalue}


def facts(leaf):
    """All that a leaf consists of, as plain values."""
    kind = type(leaf)
    if isinstance(leaf, torch.nn.parameter.UninitializedTensorMixin):
        return kind, leaf.requires_grad
    if isinstance(leaf, torch.Tensor):
        return (kind, leaf.dtype, leaf.layout, leaf.requires_grad, facts({**vars(leaf)}) if hasattr(leaf, "__dict__") and not
                leaf.is_nested else None, *_tensor_facts(leaf.detach()))
    if isinstance(leaf, (torch.storage.TypedStorage, torch.storage.UntypedStorage)):
        untyped = leaf if isinstance(leaf, torch.storage.UntypedStorage) else leaf.untyped()
        return kind, getattr(leaf, "dtype", None), bytes(torch.tensor([], dtype=torch.uint8).set_(untyped).numpy())
    if isinstance(leaf, torch.nn.Module):
        return kind, facts(dict(leaf.state_dict()))
    if isinstance(leaf, torch.distributions.Distribution):
        return kind, facts(leaf.loc), facts(leaf.scale)
    if isinstance(leaf, numpy.ma.MaskedArray):
        return kind, facts(leaf.data), facts(leaf.mask)
    if isinstance(leaf, numpy.ndarray):
        return kind, leaf.dtype, leaf.shape, leaf.strides, repr(leaf.tolist()) if leaf.dtype.hasobject else leaf.tobytes()
    if kind in _GENERATORS:
        return kind, facts(_GENERATORS[kind](leaf))
    if isinstance(leaf, functools.partial):
        return kind, leaf.func, leaf.args, leaf.keywords
    if isinstance(leaf, argparse.Namespace):
        return kind, facts(vars(leaf))
    if isinstance(leaf, collections.ChainMap):
        return kind, facts(leaf.maps)
    if isinstance(leaf, dict):
        return kind, getattr(leaf, "default_factory", None), [(facts(key), facts(value)) for key, value in leaf.items()]
    if isinstance(leaf, (list, tuple, collections.deque)):
        return kind, getattr(leaf, "maxlen", None), [facts(item) for item in leaf]
    return kind, leaf.hex() if isinstance(leaf, float) else leaf


def _raw(tensor):
    flat = tensor.resolve_conj().resolve_neg().contiguous()
    return bytes(flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy())


def _tensor_facts(tensor):
    if tensor.is_nested:
        return [facts(part) for part in tensor.unbind()]
    if tensor.layout is torch.sparse_coo:
        return tensor.shape, tensor.is_coalesced(), facts(tensor._indices()), facts(tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.shape, facts(tensor.crow_indices()), facts(tensor.col_indices()), facts(tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.shape, facts(tensor.ccol_indices()), facts(tensor.row_indices()), facts(tensor.values())
    if tensor.is_meta:
        return tensor.shape, tensor.stride(), "meta"
    if tensor.is_quantized:
        if tensor.qscheme() == torch.per_tensor_affine:
            scale = tensor.q_scale(), tensor.q_zero_point()
        else:
            scale = facts(tensor.q_per_channel_scales()), facts(tensor.q_per_channel_zero_points()), tensor.q_per_channel_axis()
        codes = _raw(tensor.int_repr()) if tensor.dtype is not torch.quint4x2 else bytes(tensor.untyped_storage())
        return tensor.shape, tensor.stride(), tensor.qscheme(), scale, codes
    return tensor.shape, tensor.stride(), tensor.as_subclass(torch.Tensor).is_conj(), _raw(tensor.as_subclass(torch.Tensor))


@pytest.mark.parametrize("weights_only", [True, False], ids=["safe", "all"])
@pytest.mark.parametrize("name", SAFE)
def test_a_leaf_of_torch_crosses_both_ways(tmp_path, name, weights_only):
    leaf = seeded(SAFE[name])
    neve.save(leaf, tmp_path / "ours.pt")
    torch.save(leaf, tmp_path / "theirs.pt")
    from_theirs = torch.load(tmp_path / "theirs.pt", weights_only=weights_only)
    wanted = facts(from_theirs)   # torch.save itself drops what it drops
    assert facts(torch.load(tmp_path / "ours.pt", weights_only=weights_only)) == wanted
    if name in ("conjugated", "negated"):   # neve.load gives their values: plain, of the same bytes
        wanted = _raw(from_theirs)
        assert _raw(neve.load(tmp_path / "theirs.pt", weights_only=weights_only)) == wanted
        assert _raw(neve.load(tmp_path / "ours.pt", weights_only=weights_only)) == wanted
        return
    assert facts(neve.load(tmp_path / "theirs.pt", weights_only=weights_only)) == wanted
    assert facts(neve.load(tmp_path / "ours.pt", weights_only=weights_only)) == wanted


@pytest.mark.parametrize("name", UNSAFE)
def test_a_leaf_that_its_class_brings_back_crosses_both_ways(tmp_path, name):
    leaf = seeded(UNSAFE[name])
    neve.save(leaf, tmp_path / "ours.pt")
    torch.save(leaf, tmp_path / "theirs.pt")
    wanted = facts(torch.load(tmp_path / "theirs.pt", weights_only=False))
    assert facts(torch.load(tmp_path / "ours.pt", weights_only=False)) == wanted
    assert facts(neve.load(tmp_path / "theirs.pt", weights_only=False)) == wanted
    assert facts(neve.load(tmp_path / "ours.pt", weights_only=False)) == wanted


@pytest.mark.parametrize("make", [lambda: torch._efficientzerotensor(3), lambda: torch.empty(2, dtype=torch.int4),
                                  lambda: torch.ones(2, 2).to_mkldnn(), lambda: torch.channels_last, lambda: (lambda: 0),
                                  lambda: torch.jit.script(torch.nn.Linear(2, 2)), lambda: torch.finfo(torch.float32)],
                         ids=["zero tensor", "int4", "mkldnn", "memory format", "function", "script", "finfo"])
def test_what_torch_cannot_save_is_refused_by_place_and_the_old_file_stays(tmp_path, make):
    (tmp_path / "x.pt").write_bytes(b"good")
    leaf = seeded(make)
    with pytest.raises(Exception):
        torch.save(leaf, io.BytesIO())
    with pytest.raises(neve.Unsupported, match="'a.leaf"):
        neve.save({"w": torch.ones(2), "a": {"leaf": leaf}}, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").read_bytes() == b"good"


def test_the_facts_of_a_leaf_tell_one_from_another():
    """The comparison itself: any two kinds, and a leaf that differs in one bit, are told apart."""
    told = [repr(facts(seeded(make))) for make in {**SAFE, **UNSAFE}.values()]
    assert len(set(told)) == len(told)
    other = sparse_coo()
    other._values()[1] = 0.0   # was -0.0
    assert facts(other) != facts(sparse_coo())
