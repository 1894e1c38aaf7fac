"""inspect on images and on safetensors files of anybody, good and hostile."""

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
    (b"PK\x03\x04" + bytes(100), "zip"),
    (b"", "empty"),
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


def test_a_pipe_is_not_waited_for(neve, tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.safetensors")
    assert neve("inspect", "pipe.safetensors").code == 3 and neve("verify", "pipe.safetensors").code == 3
