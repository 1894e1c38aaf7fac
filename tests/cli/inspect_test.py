"""inspect on images and on safetensors files of anybody, good and hostile."""

import json

import pytest

TWO = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]}}


def test_a_save_shows_tensors_tree_and_objects(neve, make_job):
    make_job(steps=2)
    answer = neve("inspect", "gpt", "--json")
    found = answer.json
    assert answer.code == 0 and found["kind"] == "neve-step" and len(found["files"]) == 1
    tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
    w = tensors["model.w"]
    assert (w["dtype"], w["shape"], w["strides"], w["bytes"]) == ("F32", [256, 1024], [1024, 1], 1 << 20)
    assert w["offset"] % 4096 == 0 and w["alias_of"] is None
    assert tensors["model.zeros"]["shape"] == [0]
    tree = found["tree"]
    assert tree["step"] == 1 and tree["model"]["w"] == {"$tensor": "model.w"}
    assert tree["optimizer"]["$dict"][1] == ["betas", {"$tuple": [0.9, {"$float": "inf"}]}]
    assert found["objects"] == [{"path": "odd", "type": "__main__.Odd", "callable": None}]
    assert found["total_bytes"] == sum(tensor["bytes"] for tensor in found["tensors"])


def test_a_step_can_be_asked_for(neve, make_job):
    make_job(steps=2)
    assert neve("inspect", "gpt", "--step", "0", "--json").json["tree"]["step"] == 0
    assert neve("inspect", "gpt", "--step", "9").code == 5


@pytest.mark.parametrize("verb", ["inspect", "stats", "verify", "convert", "cp"])
def test_a_step_of_what_has_no_steps_is_refused(neve, make_job, safetensors_file, tmp_path, verb):
    make_job(steps=2)
    step = sorted(path.name for path in (tmp_path / "gpt").glob("step-*"))[1]
    out = ["out.pt" if verb == "convert" else "out"] if verb in ("convert", "cp") else []
    one = safetensors_file(TWO, bytes(9))
    for place in (one, f"gpt/{step}"):
        answer = neve(verb, place, *out, "--step", "0")
        if verb == "cp" and place == one:
            assert answer.code in (2, 3)   # no step in any case
            continue
        assert answer.code == 2 and "--step 0" in answer.err, (place, answer.code, answer.err)
    odd = ["--drop", "odd"] if verb == "convert" else []
    assert neve(verb, f"gpt/{step}", *out, "--step", "1", *odd).code == 0
    assert not (tmp_path / "out").exists() or verb == "cp"


def test_the_tree_for_people_holds_values_and_escapes_keys(neve, make_job):
    make_job(steps=1)
    answer = neve("inspect", "gpt", "--tree")
    assert "w: F32 [256, 1024]" in answer.out and '"lr": 0.5' in answer.out and "esc\\x1b[31m" in answer.out
    assert "\x1b" not in answer.out


def test_a_foreign_safetensors_file(neve, safetensors_file):
    safetensors_file({"__metadata__": {"by": "hand"}, **TWO}, b"123456789")
    answer = neve("inspect", "file.safetensors", "--json")
    assert answer.code == 0 and answer.json["kind"] == "safetensors" and answer.json["metadata"] == {"by": "hand"}
    assert answer.json["tree"] is None and [tensor["name"] for tensor in answer.json["tensors"]] == ["a", "b"]


def test_ST_09_names_are_escaped_for_terminals(neve, safetensors_file):
    safetensors_file({"a\0b\x1b[2J\n": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x")
    answer = neve("inspect", "file.safetensors")
    assert answer.code == 0 and "a\\x00b\\x1b[2J\\n" in answer.out and "\x1b" not in answer.out
    assert neve("inspect", "file.safetensors", "--json").json["tensors"][0]["name"] == "a\0b\x1b[2J\n"


@pytest.mark.parametrize("content, what", [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n", "Git LFS"),
    (b"<!DOCTYPE html><html><body>not found</body></html>" * 4, "HTML"),
    (b"PK\x05\x06" + bytes(18), "zip"),
    (b"", "empty"),
    (b"abc", "3 bytes"),
    (b"1234567", "7 bytes"),
])
def test_ST_03_a_file_that_is_something_else_is_named(neve, tmp_path, content, what):
    (tmp_path / "file.safetensors").write_bytes(content)
    for verb in ("inspect", "verify"):
        answer = neve(verb, "file.safetensors")
        assert answer.code == 3 and what in answer.err, verb


def test_ST_04_a_short_file_is_refused_with_both_sizes(neve, safetensors_file):
    path = safetensors_file(TWO, b"12345")
    for verb in ("inspect", "verify"):
        answer = neve(verb, path.name)
        text = answer.out + answer.err
        assert answer.code == 4 and str(path.stat().st_size) in text and str(path.stat().st_size + 4) in text, verb


def test_a_header_longer_than_the_file_is_truncated(neve, safetensors_file):
    safetensors_file(TWO, b"123456789", announced=500)
    answer = neve("verify", "file.safetensors", "--json")
    assert answer.code == 4 and answer.json["problems"][0]["code"] == "truncated"


def test_trailing_bytes_pass_only_when_lenient(neve, safetensors_file):
    safetensors_file(TWO, b"1234567890")
    assert neve("inspect", "file.safetensors").code == 4
    answer = neve("inspect", "file.safetensors", "--lenient")
    assert answer.code == 0 and "note:" in answer.err


@pytest.mark.parametrize("header", [
    b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    b'{"__metadata__":{"neve.format":"1","neve.tree":"{\\"v\\":1,\\"root\\":{\\"d\\":[99999999999]}}"}}',
    b'{"__metadata__":{"neve.format":"1","neve.tree":"{\\"v\\":1,\\"root\\":\\"v\\"}","neve.values":"[[[[i1"}}',
    b'{"__metadata__":{"neve.format":"1","neve.tree":"[[[["}}',
    b'{"__metadata__":{"neve.format":"1","neve.tree":"{\\"v\\":1,\\"root\\":{\\"b\\":3,\\"q\\":\\"os.system\\"}}"}}',
])
def test_hostile_headers_are_refused(neve, safetensors_file, header):
    safetensors_file(header, b"")
    assert neve("inspect", "file.safetensors", "--tree").code == 4


def metadata(tree, values=""):
    return {"neve.format": "1", "neve.values": values, "neve.tree": tree if isinstance(tree, str) else json.dumps(tree)}


A = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
B = {"d": [1, ["b", {"T": 1}]]}
BLOB = {"neve.blob.0": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}


def aliased(*alias):
    return metadata({"v": 1, "root": B, "tensors": {"alias": [list(alias)]}})


def rooted(root, values=""):
    return metadata({"v": 1, "root": root}, values)


@pytest.mark.parametrize("about, entries", [
    (aliased(1, "b", "a", 4, "F32", [2], [1]), A),
    (aliased(1, "b", "a", -4, "F32", [2], [1]), A),
    (aliased(1, "b", "zz", 0, "F32", [2], [1]), A),
    (aliased(99, "b", "a", 0, "F32", [2], [1]), A),
    (aliased(1, "a", "a", 0, "F32", [2], [1]), A),
    (metadata({"v": 1, "root": {"d": [1]}, "tensors": {"strided": {"a": [[2], [1 << 45]]}}}), A),
    (rooted({"d": [10 ** 9]}), A),
    (rooted({"d": [-1]}), A),
    (rooted({"d": []}), A),
    (rooted({"d": [["x", {"r": "a"}], 1]}), A),
    (rooted({"l": [10 ** 9]}), {}),
    (rooted({"b": 7}), {}),
    (rooted({"l": [{"b": 0}, {"b": 0}]}), BLOB),
    (rooted("v", "[" * 100_000), {}),
    (rooted("v", "S([])"), {}),
    (rooted("v", "i1;i2;"), {}),
    (rooted("v", ""), {}),
    (rooted("v", "i" + "9" * 5_000_000 + ";"), {}),
    (metadata('{"v":1,"root":' + '{"l":[' * 5000 + "]}" * 5000 + "}"), {}),
    (metadata("null"), A), (metadata("[]"), A), (metadata("{"), A), (metadata('{"v":NaN,"root":1}'), A),
    ({"neve.tree": json.dumps({"v": 1, "root": {"d": [5]}})}, A),
])
def test_inspect_and_verify_refuse_the_same_trees(neve, safetensors_file, about, entries):
    safetensors_file({"__metadata__": about, **entries}, bytes(8 if entries else 0))
    assert neve("inspect", "file.safetensors").code == 4
    answer = neve("verify", "file.safetensors", "--json")
    assert answer.code == 4 and answer.json["ok"] is False and answer.json["problems"][0]["code"] in ("tree", "blob")


def test_a_node_of_a_newer_version_is_a_kind_that_cannot_be_read(neve, safetensors_file):
    for about in (rooted({"z": 1}), metadata({"v": 2})):
        safetensors_file({"__metadata__": about}, b"")
        assert neve("inspect", "file.safetensors").code == 3
        assert neve("verify", "file.safetensors").code == 3


def test_ST_04_an_image_that_is_cut_to_nothing_is_still_one(neve, newest):
    _, image, _ = newest(steps=1)
    for size in (5, 0):
        with open(image, "r+b") as file:
            file.truncate(size)
        for verb in ("inspect", "verify"):
            assert neve(verb, image).code == 4, (verb, size)


def test_a_pipe_is_not_waited_for(neve, tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.safetensors")
    assert neve("inspect", "pipe.safetensors").code == 3 and neve("verify", "pipe.safetensors").code == 3
