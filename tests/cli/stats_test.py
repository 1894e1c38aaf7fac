"""stats: the numbers of each tensor, against numpy and torch, for every type and for the edges."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

FINITE_TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
                torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
WHOLE_TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]


def stats_of(neve, path):
    answer = neve("stats", path, "--json")
    assert answer.code == 0, answer.err
    return {tensor["name"]: tensor for tensor in answer.json["tensors"]}


def expect(found, values, rel=1e-9):
    """`values`: float64, of which the finite ones count."""
    finite = values[np.isfinite(values)]
    assert found["nan"] == np.isnan(values).sum() and found["inf"] == np.isinf(values).sum()
    assert found["zeros"] == (values == 0).sum()
    if finite.size == 0:
        assert found["min"] is None and found["max"] is None and found["mean"] is None and found["std"] is None
        return
    assert (found["min"], found["max"]) == (finite.min(), finite.max())
    assert found["mean"] == pytest.approx(finite.mean(), rel=rel, abs=1e-12)
    assert found["std"] == pytest.approx(finite.std(), rel=rel, abs=1e-12)


def test_every_float_type_is_measured(neve, tmp_path):
    torch.manual_seed(1)
    tensors = {str(kind): (torch.randn(70, 31) * 3).to(kind) for kind in FINITE_TYPES}
    save_file(tensors, tmp_path / "f.safetensors")
    found = stats_of(neve, "f.safetensors")
    for name, tensor in tensors.items():
        expect(found[name], tensor.double().numpy().ravel())


def test_every_code_of_a_small_float_type_is_decoded(neve, tmp_path):
    codes = torch.arange(256, dtype=torch.uint8)
    tensors = {str(kind): codes.clone().view(kind) for kind in FINITE_TYPES[4:]}
    tensors["half"] = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    save_file(tensors, tmp_path / "f.safetensors")
    found = stats_of(neve, "f.safetensors")
    for name, tensor in tensors.items():
        expect(found[name], tensor.double().numpy())


@pytest.mark.parametrize("kind", WHOLE_TYPES)
def test_whole_numbers_are_exact(neve, tmp_path, kind):
    info = torch.iinfo(kind)
    tensor = torch.tensor([info.max, info.min, 0, 1, 5], dtype=kind)
    save_file({"t": tensor}, tmp_path / "w.safetensors")
    found = stats_of(neve, "w.safetensors")["t"]
    assert (found["min"], found["max"], found["zeros"]) == (info.min, info.max, 2 if info.min == 0 else 1)


def test_bool_and_complex_have_stated_rules(neve, tmp_path):
    z = torch.tensor([3 + 4j, 0, complex(float("nan"), 1), complex(float("inf"), 0)], dtype=torch.complex64)
    save_file({"b": torch.tensor([True, False, True]), "z": z}, tmp_path / "b.safetensors")
    found = stats_of(neve, "b.safetensors")
    assert (found["b"]["min"], found["b"]["max"], found["b"]["zeros"]) == (0, 1, 1)
    assert (found["z"]["min"], found["z"]["max"], found["z"]["mean"]) == (0, 5, 2.5)
    assert (found["z"]["nan"], found["z"]["inf"], found["z"]["zeros"]) == (1, 1, 1)


@pytest.mark.parametrize("tensor", [torch.full((5,), float("nan")), torch.full((2, 2), float("inf")), torch.zeros(0),
                                    torch.zeros(3, 0, 2), torch.tensor(2.5), torch.tensor(float("nan"))])
def test_the_edges(neve, tmp_path, tensor):
    save_file({"t": tensor}, tmp_path / "e.safetensors")
    expect(stats_of(neve, "e.safetensors")["t"], tensor.double().numpy().ravel())
    assert neve("stats", "e.safetensors").code == 0


def test_sums_of_the_greatest_doubles_do_not_overflow(neve, tmp_path):
    values = np.array([1.7e308, 1.6e308, 1.7e308])
    save_file({"t": torch.from_numpy(values)}, tmp_path / "big.safetensors")
    found = stats_of(neve, "big.safetensors")["t"]
    assert found["mean"] == pytest.approx(5 / 3 * 1e308, rel=1e-12)


def test_a_large_tensor_is_measured_in_pieces(neve, tmp_path):
    rng = np.random.default_rng(7)
    values = rng.standard_normal(20_000_000).astype(np.float32) + 100   # 80 MB: several windows
    values[-1] = np.inf
    save_file({"t": torch.from_numpy(values)}, tmp_path / "l.safetensors")
    expect(stats_of(neve, "l.safetensors")["t"], values.astype(np.float64), rel=1e-6)


def test_the_digest_is_that_of_the_bytes_whatever_the_format(neve, tmp_path):
    tensor = torch.arange(12.0).reshape(3, 4)
    save_file({"t": tensor}, tmp_path / "a.safetensors")
    torch.save({"t": tensor.t().contiguous().t()}, tmp_path / "a.pt")   # other strides, the same elements
    digest = stats_of(neve, "a.safetensors")["t"]["digest"]
    assert len(digest) == 32
    assert stats_of(neve, "a.pt")["t"]["digest"] == digest


def test_no_tensors_at_all(neve, tmp_path):
    save_file({}, tmp_path / "none.safetensors")
    answer = neve("stats", "none.safetensors", "--json")
    assert answer.code == 0 and answer.json == {"tensors": []}


def test_a_job_folder_and_one_of_its_steps(neve, make_job):
    make_job(steps=2)
    assert stats_of(neve, "gpt")["model.w"]["max"] == 1
    answer = neve("stats", "gpt", "--step", "0", "--json")
    assert {tensor["name"]: tensor["max"] for tensor in answer.json["tensors"]}["model.w"] == 0


def test_bytes_that_differ_from_their_digest_are_told(neve, newest):
    _, image, _ = newest()
    with open(image, "r+b") as file:
        file.seek(200_000)
        file.write(b"\xff")
    answer = neve("stats", "gpt")
    assert answer.code == 1 and "chunk 0" in answer.err and str(image.name) in answer.err


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("nothing",), 5), (("text",), 3), (("--frobnicate",), 2), (("ram:",), 3)])
def test_exit_codes(neve, tmp_path, arguments, code):
    (tmp_path / "text").write_text("<!DOCTYPE html><html>" + "hello " * 100)
    answer = neve("stats", *arguments)
    assert answer.code == code and answer.err


def test_a_tensor_that_repeats_a_byte_for_ever_is_not_gone_through(neve, safetensors_file):
    tree = '{"v":1,"tensors":{"strided":{"t":[[1000000,1000000,1000],[0,0,0]]}}}'
    safetensors_file({"__metadata__": {"neve.format": "1", "neve.values": "", "neve.tree": tree},
                      "t": {"dtype": "U8", "shape": [1, 1, 1], "data_offsets": [0, 1]}}, b"x", name="hostile.safetensors")
    for arguments in (("stats", "hostile.safetensors"), ("diff", "hostile.safetensors", "hostile.safetensors"),
                      ("convert", "hostile.safetensors", "out.npz")):
        answer = neve(*arguments)
        assert answer.code == 3 and '"t"' in answer.err, answer.err


def test_lines_of_a_pipe_are_aligned_and_quiet_is_quiet(neve, tmp_path):
    save_file({"weight": torch.tensor([1.0, 0.0]), "x": torch.tensor([float("nan")])}, tmp_path / "q.safetensors")
    answer = neve("stats", "q.safetensors")
    assert "1 zero" in answer.out and "1 NaN" in answer.out and all(len(line) <= 80 for line in answer.out.splitlines())
    quiet = neve("stats", "q.safetensors", "--quiet")
    assert quiet.out == "" and quiet.err == ""


def test_rows_fit_80_columns_whatever_the_names_and_numbers(neve, tmp_path):
    long = "transformer.layers.11.attention.output.projection.weight"
    tensors = {long: torch.randn(64, 64) * 1e-7, "b": torch.full((7,), float("nan")), "i": torch.tensor([0, -(2**62)]),
               "f8": torch.randn(100000).to(torch.float8_e4m3fnuz)}
    tensors["mixed"] = torch.cat([torch.zeros(1234567), torch.tensor([float("nan")] * 12345 + [float("inf")] * 12345 + [-1.2345e-30])])
    save_file(tensors, tmp_path / "wide.safetensors")
    lines = neve("stats", "wide.safetensors").out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    for name in tensors:
        assert name in lines
    at = lines.index("mixed")
    assert lines[at + 1].split()[0] == "F32" and "1234567 zero, 12345 NaN, 12345 Inf" in lines[at + 2]
    numbers = lines[lines.index(long) + 1]
    ends = {line.index(word) + len(word) for line, word in ((lines[1], "MIN"), (numbers, numbers.split()[1]))}
    assert len(ends) == 1, "numbers stand below their heads"
