"""inspect and verify of other people's files, hostile ones among them. Nothing here needs torch: the pickles are made by hand."""

import io
import json
import pickle
import shutil
import struct
import time
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy
import pytest

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "files"


class Call:
    """Pickles as a call of a function of that name, which need not exist."""

    def __init__(self, module, name, *arguments, state=None):
        self.where, self.arguments, self.state = (module, name), arguments, state


class Storage:
    def __init__(self, key, count, kind="FloatStorage", location="cpu"):
        self.parts = (key, location, count)
        self.kind = kind


class _Global:
    def __init__(self, module, name):
        self.module, self.name = module, name


class Pickler(pickle._Pickler):
    """Writes calls and storages without looking anything up."""

    def persistent_id(self, thing):
        if isinstance(thing, Storage):
            key, location, count = thing.parts
            return ("storage", _Global("torch", thing.kind), key, location, count)
        return None

    def save(self, thing, save_persistent_id=True):
        if isinstance(thing, _Global):
            self.write(b"c" + thing.module.encode() + b"\n" + thing.name.encode() + b"\n")
        elif isinstance(thing, Call):
            self.save(_Global(*thing.where))
            self.save(thing.arguments)
            self.write(b"R")
            if thing.state is not None:
                self.save(thing.state)
                self.write(b"b")
        else:
            super().save(thing, save_persistent_id)


def pickled(thing):
    out = io.BytesIO()
    Pickler(out, 2).dump(thing)
    return out.getvalue()


def tensor(storage, shape, strides, offset=0):
    return Call("torch._utils", "_rebuild_tensor_v2", storage, offset, shape, strides, False, OrderedDict())


def archive(path, thing, records, byteorder=b"little", root="x/"):
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(root + "data.pkl", thing if isinstance(thing, bytes) else pickled(thing))
        if byteorder is not None:
            out.writestr(root + "byteorder", byteorder)
        for key, content in records.items():
            out.writestr(f"{root}data/{key}", content)


FOUR = struct.pack("<4f", 1, 2, 3, 4)
W = tensor(Storage("0", 4), (4,), (1,))


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_every_file_of_the_corpus_is_inspected_and_verified(neve, path):
    shown = neve("inspect", path, "--json")
    assert shown.code == 0, shown.err
    assert shown.json["kind"] in ("torch zip", "torch legacy", "torch tar", "npz", "npy", "dcp")
    assert neve("verify", path).code == 0


def test_PT_24_the_same_archive_packed_again_holds_the_same(neve):
    tensors = [(item["name"], item["dtype"], item["shape"], item["strides"])
               for item in neve("inspect", CORPUS / "views.pt", "--json").json["tensors"]]
    for other in ("deflated", "reversed", "rootless", "extra", "unmarked", "legacy"):
        found = neve("inspect", CORPUS / f"views.{other}.pt", "--json").json["tensors"]
        assert [(item["name"], item["dtype"], item["shape"], item["strides"]) for item in found] == tensors, other


def test_PT_16_pickles_of_all_protocols_are_read(neve):
    names = [item["name"] for item in neve("inspect", CORPUS / "state_dict.pt", "--json").json["tensors"]]
    for protocol in (3, 4, 5):
        found = neve("inspect", CORPUS / f"state_dict.p{protocol}.pt", "--json").json
        assert [item["name"] for item in found["tensors"]] == names


def stream(thing, keys, storages):
    """Torch's stream: storages as (count, bytes) in the order of the keys."""
    return (pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2) + pickled(thing)
            + pickle.dumps(keys, 2) + b"".join(struct.pack("<q", count) + content for count, content in storages))


def test_PT_20_several_storages_and_shared_views_in_a_stream(neve, tmp_path):
    floats = {"9": [0.5 + i for i in range(5)], "1": [-7.0], "5": [float(i) for i in range(1000)]}
    raw = {key: struct.pack(f"<{len(values)}f", *values) for key, values in floats.items()}
    third = Storage("5", 1000)
    thing = {"five": tensor(Storage("9", 5), (5,), (1,)), "one": tensor(Storage("1", 1), (), ()), "all": tensor(third, (1000,), (1,)),
             "ten": tensor(third, (20, 3), (6, 2), 10), "tail": tensor(third, (500,), (1,), 500)}
    keys = ["5", "9", "1"]   # in another order than the object names them
    whole = stream(thing, keys, [(len(floats[key]), raw[key]) for key in keys])
    (tmp_path / "x.pt").write_bytes(whole)
    assert neve("verify", "x.pt").code == 0
    shown = {item["name"]: item for item in neve("inspect", "x.pt", "--json").json["tensors"]}
    assert [shown[name]["shape"] for name in thing] == [[5], [], [1000], [20, 3], [500]]
    assert shown["tail"]["alias_of"] == shown["ten"]["alias_of"] is not None and shown["ten"]["strides"] == [6, 2]
    assert neve("convert", "x.pt", "x.npz").code == 0
    read = numpy.load(tmp_path / "x.npz")
    assert read["five"].tolist() == floats["9"] and read["one"] == -7 and read["all"].tolist() == floats["5"]
    assert read["tail"].tolist() == floats["5"][500:]
    assert read["ten"].tolist() == [[10.0 + 6 * i + 2 * j for j in range(3)] for i in range(20)]
    for changed, text in ((whole + b"\0", "trailing"), (whole[:-1], "truncated"), (whole[:-4 * 500], "truncated"),
                          (stream(thing, keys, [(500, raw["5"][:2000]), (5, raw["9"]), (1, raw["1"])]), "500 elements"),
                          (stream(thing, keys[:2], [(1000, raw["5"]), (5, raw["9"])]), "missing")):
        (tmp_path / "y.pt").write_bytes(changed)
        answer = neve("inspect", "y.pt")
        assert answer.code == 4 and text in answer.err, (text, answer.err)


def test_SEC_01_a_call_is_named_with_its_place_and_not_made(neve, tmp_path):
    bad = Call("os", "system", "touch pwned")
    nested = Call("builtins", "getattr", Call("importlib", "import_module", "os"), "system")
    archive(tmp_path / "bad.pt", {"w": W, "cfg": {"deep": bad}, "n": nested}, {"0": FOUR})
    (tmp_path / "stream.pt").write_bytes(
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
        + pickled({"w": W, "cfg": {"deep": bad}, "n": nested}) + pickle.dumps(["0"], 2) + struct.pack("<q", 4) + FOUR)
    for name in ("bad.pt", "stream.pt"):
        answer = neve("inspect", name, "--json")
        assert answer.code == 0, answer.err
        found = {item["path"]: item["callable"] for item in answer.json["objects"]}
        assert found["cfg.deep"] == "os.system" and "getattr" in found["n"]
        assert [item["name"] for item in answer.json["tensors"]] == ["w"]
        assert neve("verify", name).code == 0
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickled(bad))
    assert neve("inspect", "dcp").code == 4
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("found", [0, 8, 15])
def test_SEC_02_a_record_shorter_than_declared_is_refused_with_both_sizes(neve, tmp_path, found):
    archive(tmp_path / "a.pt", {"w": W}, {"0": FOUR[:found]})
    for verb in ("inspect", "verify"):
        answer = neve(verb, "a.pt")
        assert answer.code == 4 and f"16 bytes wanted, {found} found" in answer.out + answer.err


def test_SEC_02_a_longer_record_is_noted(neve, tmp_path):
    archive(tmp_path / "a.pt", {"w": W}, {"0": FOUR * 2})
    answer = neve("verify", "a.pt")
    assert answer.code == 0 and "32 bytes, of which 16 are used" in answer.err


@pytest.mark.parametrize("shape, strides, offset", [((5,), (1,), 0), ((4,), (1,), 1), ((2,), (4,), 0), ((1,), (1,), 1 << 62),
                                                   ((1 << 40, 1 << 40), (1, 1), 0)])
def test_SEC_02_a_view_that_passes_the_end_is_refused(neve, tmp_path, shape, strides, offset):
    archive(tmp_path / "a.pt", {"w": tensor(Storage("0", 4), shape, strides, offset)}, {"0": FOUR})
    answer = neve("inspect", "a.pt")
    assert answer.code == 4 and '"w"' in answer.err, answer.err


def test_PT_23_a_missing_record_is_named_and_the_others_stay_readable(neve, tmp_path):
    archive(tmp_path / "a.pt", {"w": W, "v": tensor(Storage("1", 4), (4,), (1,))}, {"0": FOUR})
    answer = neve("inspect", "a.pt")
    assert answer.code == 4 and "x/data/1" in answer.err and '"v"' in answer.err
    answer = neve("inspect", "a.pt", "--lenient", "--json")
    assert answer.code == 0 and [item["name"] for item in answer.json["tensors"]] == ["w"]
    assert any("x/data/1" in note for note in answer.json["notes"])


def test_PT_21_a_flipped_bit_is_found_with_its_tensor(neve, tmp_path):
    archive(tmp_path / "a.pt", {"w": W}, {"0": FOUR})
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(FOUR) + 9] ^= 0x80
    (tmp_path / "a.pt").write_bytes(content)
    answer = neve("verify", "a.pt", "--json")
    assert answer.code == 1
    problem = answer.json["problems"][0]
    assert problem["code"] == "digest" and problem["tensor"] == "w" and problem["file"].endswith("a.pt")


def test_PT_22_truncated_and_extended_archives_say_so(neve, tmp_path):
    archive(tmp_path / "a.pt", {"w": W}, {"0": FOUR})
    whole = (tmp_path / "a.pt").read_bytes()
    for size in (len(whole) - 1, len(whole) - 30, len(whole) // 2, 100):
        (tmp_path / "cut.pt").write_bytes(whole[:size])
        answer = neve("inspect", "cut.pt")
        assert answer.code == 4 and "truncated" in answer.err, (size, answer.err)
    (tmp_path / "long.pt").write_bytes(whole + bytes(70_000))
    answer = neve("inspect", "long.pt")
    assert answer.code == 4 and "trailing data: 70000 bytes" in answer.err
    assert neve("inspect", "long.pt", "--lenient").code == 0


def test_PT_19_the_byte_order_is_told_and_an_unknown_one_refused(neve, tmp_path):
    archive(tmp_path / "none.pt", {"w": W}, {"0": FOUR}, byteorder=None)
    answer = neve("inspect", "none.pt")
    assert answer.code == 0 and "no byteorder record" in answer.err
    archive(tmp_path / "big.pt", {"w": W}, {"0": struct.pack(">4f", 1, 2, 3, 4)}, byteorder=b"big")
    answer = neve("inspect", "big.pt", "--json")
    assert answer.code == 0 and answer.json["tensors"][0]["offset"] is None
    archive(tmp_path / "odd.pt", {"w": W}, {"0": FOUR}, byteorder=b"middle")
    assert neve("inspect", "odd.pt").code == 4


def test_a_list_in_a_circle_is_refused_by_name(neve, tmp_path):
    archive(tmp_path / "a.pt", b"\x80\x02}q\x00(X\x01\x00\x00\x00a]q\x01h\x01aX\x01\x00\x00\x00bK\x01u.", {})
    answer = neve("inspect", "a.pt")
    assert answer.code == 3 and '"a.0"' in answer.err and "contains itself" in answer.err


def test_deep_nesting_is_refused_in_no_time(neve, tmp_path):
    archive(tmp_path / "a.pt", b"\x80\x02" + b"]" * 3_000_000 + b"a" * 2_999_999 + b".", {})
    begin = time.monotonic()
    answer = neve("inspect", "a.pt")
    assert answer.code == 3 and "deep" in answer.err and time.monotonic() - begin < 30


def test_objects_shared_without_end_are_refused_in_bounded_time(neve, tmp_path):
    state = b"\x80\x02]q\x00K\x01a"
    for level in range(1, 60):
        state += b"](h" + bytes([level - 1]) + b"h" + bytes([level - 1]) + b"eq" + bytes([level])
    archive(tmp_path / "a.pt", state + b".", {})
    assert neve("inspect", "a.pt").code >= 3


def test_a_bomb_is_refused_by_what_it_claims(neve, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("x/data.pkl", bytes(600 << 20))
    answer = neve("inspect", "a.pt")
    assert answer.code == 4 and "at most" in answer.err


def test_a_sparse_archive_of_many_gigabytes_is_inspected_in_a_second(neve, tmp_path):
    path = tmp_path / "big.pt"
    count = 25_000_000_000
    archive(path, {"w": tensor(Storage("0", count), (count,), (1,))}, {})
    with open(path, "r+b") as file, zipfile.ZipFile(path) as old:
        info = old.getinfo("x/data.pkl")
        content = old.read("x/data.pkl")
        file.truncate(0)
        local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, 0, info.CRC, len(content), len(content), 10, 0)
        local += b"x/data.pkl" + content
        file.write(local)
        zip64 = struct.pack("<HHQQ", 1, 16, 4 * count, 4 * count)
        begin = len(local)
        wide = 0xFFFFFFFF
        file.write(struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 0, 0, wide, wide, 8, len(zip64)) + b"x/data/0" + zip64)
        end = file.tell() + 4 * count
        file.seek(end)
        entry = "<4sHHHHHHIIIHHHHHII"
        central = struct.pack(entry, b"PK\1\2", 20, 20, 0, 0, 0, 0, info.CRC, len(content), len(content), 10, 0, 0, 0, 0, 0, 0)
        central += b"x/data.pkl"
        central += struct.pack(entry, b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, wide, wide, 8, len(zip64), 0, 0, 0, 0, begin)
        central += b"x/data/0" + zip64
        file.write(central)
        file.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(central), end))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end + len(central), 1))
        file.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 2, 2, len(central), 0xFFFFFFFF, 0))
    begun = time.monotonic()
    answer = neve("inspect", "big.pt", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["tensors"][0]["bytes"] == 4 * count
    assert time.monotonic() - begun < 10   # under a second where nothing else runs


def safetensors(names):
    entries = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * len(names))


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(safetensors(["x", "y"]))
    (folder / "b.safetensors").write_bytes(safetensors(["z"]))

    def index(weights):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 12}, "weight_map": weights}))

    index({"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"})
    return folder, index


def test_ST_15_a_sharded_folder_is_one_checkpoint_and_a_missing_shard_is_named(neve, sharded):
    folder, _ = sharded
    answer = neve("inspect", "hf", "--json")
    assert answer.code == 0 and answer.json["kind"] == "huggingface"
    assert [item["name"] for item in answer.json["tensors"]] == ["x", "y", "z"]
    assert answer.json["tensors"][2]["file"].endswith("b.safetensors")
    (folder / "c.safetensors").write_bytes(safetensors(["q"]))
    answer = neve("verify", "hf")
    assert answer.code == 0 and "c.safetensors is not listed" in answer.err
    (folder / "a.safetensors").unlink()
    for verb in ("inspect", "verify"):
        answer = neve(verb, "hf")
        assert answer.code == 4 and "a.safetensors (2 tensors)" in answer.out + answer.err


def test_an_index_of_nothing_beside_shards_is_refused(neve, sharded):
    folder, index = sharded
    index({})
    for verb in ("inspect", "verify"):
        answer = neve(verb, "hf")
        assert answer.code == 4 and "names no tensor" in answer.out + answer.err
    for path in folder.glob("*.safetensors"):
        path.unlink()
    assert neve("inspect", "hf").code == 0   # a model of nothing


def test_ST_15_an_index_that_shards_contradict_or_that_leads_out_is_refused(neve, sharded):
    _, index = sharded
    index({"x": "a.safetensors", "lost": "b.safetensors"})
    answer = neve("inspect", "hf")
    assert answer.code == 4 and '"lost"' in answer.err
    for path in ("../a.safetensors", "/etc/passwd", "sub/a.safetensors", ".."):
        index({"x": path})
        answer = neve("inspect", "hf")
        assert answer.code == 4 and "outside of the folder" in answer.err


def dcp_copy(tmp_path, change):
    shutil.copytree(CORPUS / "dcp", tmp_path / "dcp")
    path = tmp_path / "dcp" / ".metadata"
    path.write_bytes(change(path.read_bytes()))


def test_a_dcp_path_that_leads_out_is_refused(neve, tmp_path):
    dcp_copy(tmp_path, lambda content: content.replace(b"__0_0.distcp", b"../../../../"))
    answer = neve("inspect", "dcp")
    assert answer.code == 4 and "outside of the folder" in answer.err


def test_a_dcp_file_that_is_missing_or_short_is_named(neve, tmp_path):
    dcp_copy(tmp_path, lambda content: content)
    data = tmp_path / "dcp" / "__0_0.distcp"
    whole = data.read_bytes()
    data.write_bytes(whole[:-10])
    answer = neve("inspect", "dcp")
    assert answer.code == 4 and "truncated" in answer.err
    data.unlink()
    answer = neve("inspect", "dcp")
    assert answer.code == 4 and "__0_0.distcp is missing" in answer.err


def test_PT_21_a_flipped_bit_in_a_dcp_piece_is_found(neve, tmp_path):
    dcp_copy(tmp_path, lambda content: content)
    data = tmp_path / "dcp" / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[content.index(struct.pack("<4f", 4, 5, 6, 7))] ^= 1
    data.write_bytes(content)
    answer = neve("verify", "dcp", "--json")
    assert answer.code == 1 and answer.json["problems"][0]["tensor"] == "model.w"


@pytest.mark.parametrize("shape", ["(9223372036854775807, 9223372036854775807)", "(4294967296, 4294967296)", "(-1,)",
                                   "(18446744073709551616,)", "(4,)"])
def test_an_array_of_an_impossible_shape_is_damaged(neve, tmp_path, shape):
    head = ("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % shape).ljust(117).encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head
    (tmp_path / "a.npy").write_bytes(array)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", array)
    for name in ("a.npy", "a.npz"):
        for verb in ("inspect", "verify"):
            answer = neve(verb, name)
            assert answer.code == 4 and name in answer.out + answer.err, (verb, name)
