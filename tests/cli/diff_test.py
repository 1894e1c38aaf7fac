"""diff: what is only on one side, and what changed, across formats."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import neve as neve_library


@pytest.fixture
def two(neve, tmp_path):
    def compare(a, b, *arguments):
        save_file(a, tmp_path / "a.safetensors")
        save_file(b, tmp_path / "b.safetensors")
        answer = neve("diff", "a.safetensors", "b.safetensors", "--json", *arguments)
        assert answer.code == (0 if answer.json["equal"] else 1)
        return answer.json

    return compare


def test_equal_files(two):
    state = {"w": torch.randn(4, 5), "nan": torch.tensor([float("nan")]), "e": torch.zeros(0, 2)}
    found = two(state, state)
    assert found["equal"] and (found["only_a"], found["only_b"], found["changed"]) == ([], [], [])


def test_tensors_of_one_side_only(two):
    found = two({"a": torch.ones(1), "c": torch.ones(1)}, {"b": torch.ones(1), "c": torch.ones(1)})
    assert (found["only_a"], found["only_b"], found["changed"]) == (["a"], ["b"], [])


def test_dtype_and_shape(two):
    found = two({"d": torch.ones(2), "s": torch.ones(2, 3), "both": torch.ones(2)},
                {"d": torch.ones(2).double(), "s": torch.ones(3, 2), "both": torch.ones(3).half()})
    assert sorted((change["name"], change["what"]) for change in found["changed"]) == [
        ("both", "dtype"), ("both", "shape"), ("d", "dtype"), ("s", "shape")]


def test_changed_values_are_counted_and_placed(two):
    a, b = torch.zeros(30, 40), torch.zeros(30, 40)
    b[2, 5], b[20, 1] = 0.25, -3.5
    change = two({"w": a}, {"w": b})["changed"][0]
    assert (change["what"], change["count"], change["max_abs"], change["first_index"]) == ("values", 2, 3.5, [2, 5])


def test_equal_means_equal_bits(two):
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    found = two({"n": nan, "z": torch.tensor([0.0])}, {"n": nan.flip(0), "z": torch.tensor([-0.0])})["changed"]
    by_name = {change["name"]: change for change in found}
    assert by_name["n"]["count"] == 2 and by_name["n"]["max_abs"] is None and by_name["n"]["not_finite"] == 2
    assert by_name["z"]["count"] == 1 and by_name["z"]["max_abs"] == 0


def test_a_scalar_has_no_index(two):
    change = two({"s": torch.tensor(1.0)}, {"s": torch.tensor(3.0)})["changed"][0]
    assert change["first_index"] == [] and change["max_abs"] == 2


def test_integers_complex_numbers_and_packed_pairs(two):
    big = 2**62
    a = {"i": torch.tensor([big]), "z": torch.tensor([1 + 1j]), "u": torch.tensor([0], dtype=torch.uint8)}
    b = {"i": torch.tensor([-big]), "z": torch.tensor([4 + 5j]), "u": torch.tensor([255], dtype=torch.uint8)}
    changes = {change["name"]: change["max_abs"] for change in two(a, b)["changed"]}
    assert changes == {"i": 2.0**63, "z": 5, "u": 255}


def test_a_large_tensor_is_compared_in_pieces(two):
    a = torch.zeros(20_000_000, dtype=torch.uint8)
    b = a.clone()
    b[-1] = 9
    change = two({"w": a}, {"w": b})["changed"][0]
    assert (change["count"], change["first_index"]) == (1, [19_999_999])


def test_across_formats_strides_do_not_matter(neve, tmp_path):
    state = {"w": torch.randn(6, 4).t(), "b": torch.randn(3).bfloat16()}
    torch.save(state, tmp_path / "a.pt")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "b.safetensors")
    answer = neve("diff", "a.pt", "b.safetensors", "--json")
    assert answer.code == 0 and answer.json["equal"], answer.out


def test_objects_are_compared_by_path(neve, tmp_path):
    torch.save({"w": torch.ones(1), "step": 5, "opt": {"lr": 0.1, "gone": None}, "same": (1, "x")}, tmp_path / "a.pt")
    torch.save({"w": torch.ones(1), "step": 6, "opt": {"lr": 0.1, "new": True}, "same": (1, "x")}, tmp_path / "b.pt")
    answer = neve("diff", "a.pt", "b.pt", "--json")
    changed = {change["name"]: (change["what"], change["a"], change["b"]) for change in answer.json["changed"]}
    assert answer.code == 1
    assert changed == {"step": ("object", "5", "6"), "opt.gone": ("object", "None", None), "opt.new": ("object", None, "True")}


def test_objects_that_one_kind_cannot_hold_are_a_note(neve, tmp_path):
    torch.save({"w": torch.ones(1), "step": 5}, tmp_path / "a.pt")
    save_file({"w": torch.ones(1)}, tmp_path / "b.safetensors")
    answer = neve("diff", "a.pt", "b.safetensors", "--json")
    assert answer.code == 0 and "1 objects" in answer.json["notes"][0]


def test_two_steps_of_two_jobs(neve, make_job):
    make_job(name="one", steps=2)
    make_job(name="two", steps=1)
    assert neve("diff", "one", "two", "--step", "0").code == 0
    answer = neve("diff", "one", "two", "--json")
    assert answer.code == 1
    assert {(change["name"], change["what"]) for change in answer.json["changed"]} == {("model.w", "values"), ("step", "object")}


def test_a_step_is_of_the_place_that_has_steps(neve, make_job):
    make_job(name="one", steps=2)
    assert neve("convert", "one", "zero.pt", "--step", "0", "--drop", "odd").code == 0
    names = lambda answer: {change["name"] for change in answer.json["changed"]}
    assert names(neve("diff", "one", "zero.pt", "--step", "0", "--json")) == {"odd"}
    assert names(neve("diff", "zero.pt", "one", "--step", "1", "--json")) == {"model.w", "odd", "step"}
    answer = neve("diff", "zero.pt", "zero.pt", "--step", "0")
    assert answer.code == 2 and "--step 0" in answer.err


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("a.safetensors",), 2), (("a.safetensors", "missing"), 5),
                                                 (("a.safetensors", "text"), 3), (("a.safetensors", "short"), 4)])
def test_exit_codes(neve, tmp_path, arguments, code):
    save_file({"w": torch.ones(100)}, tmp_path / "a.safetensors")
    (tmp_path / "text").write_text("<!DOCTYPE html><html>" + "hello " * 100)
    (tmp_path / "short").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-4])
    assert neve("diff", *arguments).code == code


def test_lines_for_people(neve, tmp_path):
    save_file({"w": torch.zeros(2, 2), "old": torch.ones(1)}, tmp_path / "a.safetensors")
    save_file({"w": torch.ones(2, 2), "new": torch.ones(1)}, tmp_path / "b.safetensors")
    answer = neve("diff", "a.safetensors", "b.safetensors")
    assert "only in A old" in answer.out and "only in B new" in answer.out and "4 values, first at [0, 0], by 1 at most" in answer.out
    assert all(len(line) <= 80 for line in answer.out.splitlines())


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("a, b", [
    (b"one", b"two"), (bytearray(b"one"), bytearray(b"two")), ("a" * 256, "a" * 255 + "b"), ("a" * 9000, "a" * 8999 + "b"),
    (np.datetime64("2020-01-01"), np.datetime64("2020-01-02")), ({(1, "k" * 300): 1}, {(1, "k" * 299 + "j"): 1}), ({b"x": 1}, {b"y": 1}),
    ([0.0], [-0.0]), (2**5000, 2**5000 + 1),
], ids=["bytes", "bytearray", "text", "long text", "date", "tuple key", "bytes key", "zeros", "large numbers"])
def test_values_that_differ_somewhere_are_different(neve, tmp_path, a, b, suffix):
    for name, value in (("a", a), ("b", b)):
        state = {"x": value, "w": torch.ones(1)}
        neve_library.save(state, tmp_path / f"{name}.{suffix}")
    for other, code in (("b", 1), ("a", 0)):
        answer = neve("diff", f"a.{suffix}", f"{other}.{suffix}", "--json")
        assert answer.code == code, (answer.out, answer.err)


@pytest.mark.parametrize("rename, removed", [
    (lambda name: "module." + name, '"module."'), (lambda name: "_orig_mod." + name, '"_orig_mod."'),
    (lambda name: "_orig_mod.module." + name, '"_orig_mod." and "module."'),
    (lambda name: name.replace(".", "._orig_mod.", 1), '"_orig_mod."'), (lambda name: "net.model." + name, '"net.model."'),
])
def test_DCP_10_names_that_differ_by_what_a_wrapper_adds_are_told(neve, tmp_path, rename, removed):
    plain = {"x.w": torch.arange(4.0), "x.b": torch.zeros(2), "y.w": torch.ones(3)}
    torch.save(plain, tmp_path / "plain.pt")
    torch.save({rename(name): tensor for name, tensor in plain.items()} | {"more": torch.zeros(1)}, tmp_path / "wrapped.pt")
    for places in (("plain.pt", "wrapped.pt"), ("wrapped.pt", "plain.pt")):
        answer = neve("diff", *places)
        assert answer.code == 1
        assert f"3 of the tensors that only one side has are the same on both by name once {removed} is removed, and their values are " \
               "equal" in " ".join(answer.err.split())
    torch.save({rename(name): tensor + (name == "x.w") for name, tensor in plain.items()}, tmp_path / "other.pt")
    answer = neve("diff", "plain.pt", "other.pt")
    assert answer.code == 1 and "1 of them differ, first" in " ".join(answer.err.split())
    torch.save({rename(name): tensor.double() for name, tensor in plain.items()}, tmp_path / "typed.pt")
    assert "3 of them differ, first x.b" in " ".join(neve("diff", "plain.pt", "typed.pt").err.split())


def test_DCP_10_names_that_nothing_makes_equal_are_told_of_as_before(neve, tmp_path):
    torch.save({"a.w": torch.zeros(2), "module.b": torch.zeros(1), "_fsdp_wrapped_module.b": torch.zeros(1)}, tmp_path / "a.pt")
    torch.save({"c.v": torch.zeros(2), "_orig_mod.b": torch.ones(1)}, tmp_path / "b.pt")   # two of A would be the one of B
    answer = neve("diff", "a.pt", "b.pt")
    assert answer.code == 1 and "removed" not in answer.err + answer.out and "3 only in A, 2 only in B" in answer.out
