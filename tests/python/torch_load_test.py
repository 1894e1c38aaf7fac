"""Loading torch's files: everything that torch.save writes comes back as torch.load gives it."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import neve
import pytest
import torch
from child import COMMAND, environment, passes
from same import assert_same
from torch_save_test import Holder
from torch_states import OPAQUE, PLAIN, sharing

CORPUS = Path(__file__).resolve().parent.parent / "corpus" / "files"
STATES = {**PLAIN, **OPAQUE}
pytestmark = [pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.filterwarnings("ignore:.*sparse"),
              pytest.mark.filterwarnings("ignore:these objects"), pytest.mark.filterwarnings("ignore:TypedStorage")]


def same(name, found, wanted):
    if name == "recursive":
        assert found["self"] is found and found["list"][0] is found["list"]
        found, wanted = found["w"], wanted["w"]
    assert_same(found, wanted, strides=name != "PT_04_lazy")   # their values are saved, not their laziness


@pytest.mark.parametrize("old_form", [False, True], ids=["zip", "stream"])
@pytest.mark.parametrize("name", STATES)
def test_what_torch_saved_is_loaded_as_torch_loads_it(tmp_path, name, old_form):
    path = tmp_path / "x.pt"
    if old_form and name in ("PT_05_dtypes", "PT_05_bits"):   # its old form has no word for the newest dtypes
        with pytest.raises(AttributeError, match="dtype"):
            torch.save(STATES[name](), path, _use_new_zipfile_serialization=False)
            torch.load(path, weights_only=False)
        return
    torch.save(STATES[name](), path, _use_new_zipfile_serialization=not old_form)
    wanted = torch.load(path, weights_only=False)
    same(name, neve.load(path, weights_only=False), wanted)
    try:
        torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError):
        return   # neve may give it all the same, or refuse it
    same(name, neve.load(path), wanted)
    if not old_form:
        same(name, neve.load(path, mmap=True), wanted)


@pytest.mark.parametrize("name", PLAIN)
def test_what_neve_saved_comes_back(tmp_path, name):
    neve.save(PLAIN[name](), tmp_path / "x.pt")
    same(name, neve.load(tmp_path / "x.pt", weights_only=False), torch.load(tmp_path / "x.pt", weights_only=False))


def test_PT_02_what_was_shared_is_shared(tmp_path):
    torch.save(sharing(), tmp_path / "x.pt")
    back = neve.load(tmp_path / "x.pt")
    assert back["a"] is back["b"]
    back["a"][0] = 5
    assert all(back[key].flatten()[0] == 5 for key in "abcd")


def test_PT_09_a_class_that_is_not_here_is_named_and_nothing_is_run(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"model": {"w": torch.ones(2)}, "cfg": Holder(a=1)}, path)
    with pytest.raises(neve.UnsupportedOnLoad, match=r"cfg \(.*Holder\).*weights_only=False") as caught:
        neve.load(path)
    assert isinstance(caught.value, pickle.UnpicklingError) and isinstance(caught.value, TypeError)
    assert neve.load(path, weights_only=False)["cfg"].a == 1
    with torch.serialization.safe_globals([Holder]):
        assert neve.load(path)["cfg"].a == 1
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "y.pt", "w") as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name).replace(b"\nHolder\n", b"\nNobody\n"))
    with pytest.raises(neve.UnsupportedOnLoad, match="Nobody"):
        neve.load(tmp_path / "y.pt")
    with pytest.raises((AttributeError, neve.Error), match="Nobody"):
        neve.load(tmp_path / "y.pt", weights_only=False)
    assert data == path.read_bytes()


def test_what_would_run_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    torch.save({"w": torch.ones(1), "e": Evil()}, tmp_path / "x.pt")
    with pytest.raises(neve.UnsupportedOnLoad, match="system"):
        neve.load(tmp_path / "x.pt")
    assert not (tmp_path / "ran").exists()


def test_PT_12_a_file_object_is_read_from_its_position(tmp_path):
    state = {"w": torch.arange(1000.0)}
    with open(tmp_path / "x", "wb") as file:
        file.write(b"header")
        neve.save(state, file)
    with open(tmp_path / "x", "rb") as file:
        file.seek(6)
        assert_same(neve.load(file), state)
        assert file.read() == b""
    buffer = io.BytesIO(b"ab")
    buffer.seek(2)
    torch.save(state, buffer)
    buffer.seek(2)
    assert_same(neve.load(buffer), state)
    neve.save(state, tmp_path / "x.safetensors")
    with open(tmp_path / "x.safetensors", "rb") as file:
        assert_same(neve.load(file), state)


def test_PT_12_a_tar_of_the_oldest_form_is_read_from_a_file_object():
    path = CORPUS / "state_dict.tar.pt"
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        torch.load(path, weights_only=True)   # torch would have to run what it holds
    wanted = torch.load(path, weights_only=False)
    for loaded in (neve.load(path), neve.load(io.BytesIO(path.read_bytes()))):
        assert_same(loaded, wanted)
        assert loaded["w"] is loaded["again"]
        loaded["w"][0, 1] = 5
        assert loaded["turned"][1, 0] == 5


def test_PT_12_two_objects_in_one_file_object(tmp_path):
    buffer = io.BytesIO()
    for value in (1.0, 2.0):
        torch.save({"w": torch.full((3,), value)}, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    assert neve.load(buffer)["w"][0] == 1 and neve.load(buffer)["w"][0] == 2
    buffer = io.BytesIO(b"before")
    buffer.seek(6)
    for value in (1.0, 2.0, 3.0):
        neve.save({"w": torch.full((3,), value)}, buffer)
    buffer.write(b"")
    buffer.seek(6)
    for value in (1.0, 2.0, 3.0):
        assert neve.load(buffer)["w"][0] == value
    assert buffer.read() == b""


@pytest.mark.parametrize("after", [b"x", b"trailer" * 7, bytes(200_000), b"PK\x05\x06" * 30, b"PK\x05\x06" + bytes(30),
                                   b"PK\x03\x04" + bytes(40)], ids=len)
def test_PT_12_what_follows_an_archive_is_left_in_the_file_object(after):
    state = {"w": torch.arange(1000.0)}
    inner = io.BytesIO()
    torch.save(state, inner)
    nested = {"bytes": torch.frombuffer(bytearray(inner.getvalue()), dtype=torch.uint8), "w": state["w"]}
    for save in (neve.save, torch.save):
        buffer = io.BytesIO(b"before")
        buffer.seek(6)
        ends = []
        for content in (state, nested, state):
            save(content, buffer)
            ends.append(buffer.tell())
            buffer.write(after)
        buffer.seek(6)
        for content, end in zip((state, nested, state), ends):
            assert_same(neve.load(buffer), content)
            assert buffer.tell() == end
            assert buffer.read(len(after)) == after


def test_PT_12_an_archive_without_its_end_is_damaged(tmp_path):
    inner, outer = io.BytesIO(), io.BytesIO()
    torch.save({"w": torch.ones(3)}, inner)
    torch.save({"bytes": torch.frombuffer(bytearray(inner.getvalue()), dtype=torch.uint8)}, outer)
    with pytest.raises(neve.Damaged):
        neve.load(io.BytesIO(outer.getvalue()[:-40]))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.symlink(tmp_path / "pipe", tmp_path / "link_to_pipe")
    for name in ("pipe", "link_to_pipe", "/dev/null", "/dev/zero"):
        for mmap in (None, True):
            with pytest.raises(neve.Unsupported, match=f"{name} is not a regular file.*BytesIO"):
                neve.load(tmp_path / name, mmap=mmap)
    torch.save([1], tmp_path / "x.pt")
    os.symlink("x.pt", tmp_path / "link.pt")
    assert neve.load(tmp_path / "link.pt") == [1]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("save", [neve.save, lambda obj, f: neve.async_save(obj, f).wait(),
                                  lambda obj, f: neve.save(obj, f, _use_new_zipfile_serialization=False)])
def test_a_name_that_no_file_can_have_is_refused_before_anything_is_written(tmp_path, save, suffix):
    with pytest.raises(neve.Invalid, match="is empty: name a file"):
        save({"n": 1}, "")
    with pytest.raises(neve.Invalid, match=f"q{suffix}/ ends in a slash.*name a file"):
        save({"n": 1}, f"{tmp_path}/q{suffix}/")
    assert os.listdir(tmp_path) == []


def test_what_load_advises_is_what_load_has(tmp_path):
    neve.save({"cfg": Holder(a=1)}, tmp_path / "m.safetensors")
    with pytest.raises(neve.UnsupportedOnLoad, match="cfg.*weights_only=False") as caught:
        neve.load(tmp_path / "m.safetensors")
    assert "include" not in str(caught.value)
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ckpt.save(1, {"cfg": Holder(a=1), "n": 1}).wait()
        with pytest.raises(neve.UnsupportedOnLoad, match="weights_only=False.*include="):
            ckpt.restore()
        assert ckpt.restore(include="n").state == {"n": 1}


def test_arrays_stay_where_they_are_and_the_device_asked_for_is_named(tmp_path):
    import numpy

    shared = numpy.arange(4.0)
    state = {"w": torch.arange(3.0), "a": numpy.arange(5), "s": numpy.float32(2), "n": 7,
             "both": [shared, torch.from_numpy(shared)], "two": [shared[1:], shared[:2]]}
    neve.save(state, tmp_path / "m.safetensors")
    with neve.Checkpointer(tmp_path / "job") as ckpt:
        ckpt.save(1, state).wait()
        for load in (lambda where: neve.load(tmp_path / "m.safetensors", map_location=where),
                     lambda where: ckpt.restore(map_location=where).state):
            found = load("meta")
            assert found["w"].is_meta and found["both"][1].is_meta and found["n"] == 7 and found["s"] == 2
            assert found["a"].tolist() == [0, 1, 2, 3, 4] and found["both"][0].tolist() == [0, 1, 2, 3]
            assert found["two"][0].tolist() == [1, 2, 3]
            if not torch.cuda.is_available():
                with pytest.raises(neve.Invalid, match="map_location: .* go to cuda:3, and this machine has no such device") as caught:
                    load("cuda:3")
                assert "saved from" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        neve.load(tmp_path / "nothing.pt")
    for f in (3, None):
        with pytest.raises(neve.Invalid):
            neve.load(f)
    with pytest.raises(neve.Invalid, match="path"):
        neve.load(io.BytesIO(), mmap=True)
    with pytest.raises(neve.Invalid):
        neve.load(tmp_path / "x.pt", weights_only=True, pickle_module=pickle)
    with pytest.raises(neve.Invalid, match="pickle_module="):
        neve.load(tmp_path / "x.pt", "cpu", pickle)


def test_PT_15_devices_that_are_not_here(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("they are here")
    path, source = tmp_path / "x.pt", tmp_path / "source.pt"
    torch.save({"a": torch.arange(3.0), "b": torch.ones(2)}, source)
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w") as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name).replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:7"))
    with pytest.raises(neve.Error, match="(?s)cuda:7.*map_location"):
        neve.load(path)
    wanted = {"a": torch.arange(3.0), "b": torch.ones(2)}
    for where in ("cpu", torch.device("cpu"), {"cuda:7": "cpu"}, b"cpu"):
        assert_same(neve.load(path, map_location=where), wanted)
    calls = []
    assert_same(neve.load(path, map_location=lambda storage, tag: calls.append(tag) or storage), wanted)
    assert calls == ["cuda:7", "cuda:7"]
    assert neve.load(path, map_location="meta")["a"].is_meta


def test_PT_21_a_flipped_bit_is_found(tmp_path):
    path = tmp_path / "x.pt"
    neve.save({"w": torch.arange(64.0), "big": torch.arange(3_000_000.0)}, path)
    data = path.read_bytes()
    for place in (data.index(torch.arange(64.0).numpy().tobytes()) + 9, len(data) // 2, len(data) - 1_000_000):
        path.write_bytes(data[:place] + bytes([data[place] ^ 128]) + data[place + 1:])
        with pytest.raises(neve.DataLoss, match='x.pt.*"(w|big)"') as caught:
            neve.load(path)
        assert "step 0" not in str(caught.value) and "rank" not in str(caught.value)   # it is a file, no save of a job
        with pytest.raises(neve.DataLoss):
            neve.load(path, map_location=lambda storage, tag: storage)
    path.write_bytes(data)
    assert neve.load(path)["w"][2] == 2


def test_PT_22_a_truncated_file_is_damaged(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"w": torch.arange(64.0)}, path)
    data = path.read_bytes()
    for length in (len(data) - 1, len(data) - 22, len(data) // 2, 100):
        path.write_bytes(data[:length])
        for mmap in (None, True):
            with pytest.raises(neve.Damaged, match="x.pt"):
                neve.load(path, mmap=mmap)


def test_mmap_is_lazy(tmp_path):
    neve.save({"w": torch.arange(1_000_000.0)}, tmp_path / "x.pt")
    back = neve.load(tmp_path / "x.pt", mmap=True)
    assert back["w"][77] == 77 and str(tmp_path / "x.pt") in open("/proc/self/maps").read()


def zipped_again(source, path, compression=zipfile.ZIP_STORED, rename=lambda name: name, first=()):
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w", compression) as other:
        for name in first:
            other.writestr(name, b"x")
        for name in archive.namelist():
            other.writestr(rename(name), archive.read(name))
    return path


def unmapped(path):
    return str(path) not in open("/proc/self/maps").read()


def test_PT_24_what_is_compressed_is_not_mapped(tmp_path):
    state = {"w": torch.arange(100_000.0), "n": [torch.ones(3), 5]}
    torch.save(state, tmp_path / "q.pt")
    path = zipped_again(tmp_path / "q.pt", tmp_path / "d.pt", zipfile.ZIP_DEFLATED)
    found = neve.load(path, mmap=True)
    assert_same(found, state)
    assert unmapped(path)
    assert neve.load(path, mmap=True, map_location="meta")["w"].is_meta
    assert_same(neve.load(path, mmap=True, map_location=lambda storage, tag: storage), state)
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with torch.utils.serialization.config.patch("load.mmap", True):
        for f in (path, tmp_path / "q.pt"):
            assert_same(neve.load(f, map_location=lambda storage, tag: storage), state)
            assert_same(neve.load(io.BytesIO(f.read_bytes()), map_location=lambda storage, tag: storage), state)
        assert_same(neve.load(io.BytesIO((tmp_path / "old.pt").read_bytes())), state)


def test_PT_24_one_compressed_record_is_enough(tmp_path):
    state = {"w": torch.arange(1000.0), "v": torch.ones(1000)}
    torch.save(state, tmp_path / "q.pt")
    with zipfile.ZipFile(tmp_path / "q.pt") as archive, zipfile.ZipFile(tmp_path / "d.pt", "w") as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name), zipfile.ZIP_DEFLATED if name.endswith("data/1") else zipfile.ZIP_STORED)
    assert_same(neve.load(tmp_path / "d.pt", mmap=True), state)


def test_PT_24_the_patched_load_does_not_map_it_either(tmp_path):
    passes("""
        import os, neve, torch, zipfile
        folder = os.environ["FOLDER"]
        state = {"w": torch.arange(1000.0)}
        torch.save(state, folder + "/q.pt")
        with zipfile.ZipFile(folder + "/q.pt") as a, zipfile.ZipFile(folder + "/d.pt", "w", zipfile.ZIP_DEFLATED) as b:
            for name in a.namelist():
                b.writestr(name, a.read(name))
        neve.patch_torch()
        assert torch.equal(torch.load(folder + "/d.pt", mmap=True)["w"], state["w"])
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
        assert torch.equal(torch.load(folder + "/d.pt", mmap=True)["w"], state["w"])
        assert torch.equal(torch.load(folder + "/q.pt", mmap=True)["w"], state["w"])
    """, tmp_path)


def test_what_cannot_be_mapped_is_read_as_without_it(tmp_path):
    import numpy

    state = {"w": torch.arange(1000.0), "n": [torch.ones(3), 5]}
    torch.save(state, tmp_path / "q.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    zipped_again(tmp_path / "q.pt", tmp_path / "no_root.pt", rename=lambda name: name.split("/", 1)[1])
    zipped_again(tmp_path / "q.pt", tmp_path / "mac.pt", first=["__MACOSX/._q"])
    neve.save(state, tmp_path / "s.safetensors")
    for name in ("old.pt", "no_root.pt", "mac.pt", "s.safetensors"):
        assert_same(neve.load(tmp_path / name, mmap=True), state)
    numpy.savez(tmp_path / "a.npz", x=numpy.arange(3))
    assert neve.load(tmp_path / "a.npz", mmap=True)["x"].tolist() == [0, 1, 2]


def test_what_is_damaged_raises_the_same_with_and_without_mapping(tmp_path):
    torch.save({"w": torch.arange(64.0), "n": [1, "two"]}, tmp_path / "q.pt")
    data = (tmp_path / "q.pt").read_bytes()
    path = tmp_path / "x.pt"
    different = []
    for place in [*range(0, len(data), 7), *range(len(data) - 600, len(data), 3)]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x81]) + data[place + 1:])
        try:
            neve.load(path)
            continue   # a byte that nothing depends on
        except neve.Error as error:
            wanted = type(error)
        try:
            neve.load(path, mmap=True)   # checksums of what is mapped are not compared
            assert wanted is neve.DataLoss, place
        except neve.Error as error:
            if type(error) is not wanted:
                different.append((place, wanted, type(error)))
    assert not different


# ---- Without a change to the script ----


SCRIPT = """
import sys, torch, io
path = sys.argv[1]
model = torch.nn.Linear(3, 2)
torch.save({"model": model.state_dict(), "epoch": 3}, path)
back = torch.load(path)
model.load_state_dict(back["model"])
assert back["epoch"] == 3 and torch.equal(back["model"]["weight"], model.weight)
torch.save(model, path + ".whole")
assert torch.equal(torch.load(path + ".whole", weights_only=False).weight, model.weight)
buffer = io.BytesIO()
torch.save([torch.ones(2)], buffer)
buffer.seek(0)
assert torch.load(buffer)[0].sum() == 2
torch.save({"w": torch.ones(2)}, path + ".old", _use_new_zipfile_serialization=False)
assert torch.load(path + ".old")["w"].sum() == 2
try:
    torch.load(path + ".whole")
    raise SystemExit("loaded")
except __import__("pickle").UnpicklingError:
    pass
print(__name__, sys.argv[2:], torch.save.__module__, "neve" in sys.modules)
"""


def test_a_script_runs_unchanged(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    plain = subprocess.run([sys.executable, tmp_path / "train.py", tmp_path / "a.pt", "--flag"], capture_output=True, text=True)
    ours = subprocess.run([sys.executable, "-m", "neve", "run", tmp_path / "train.py", tmp_path / "b.pt", "--flag"],
                          capture_output=True, text=True, env=environment(tmp_path))
    assert plain.returncode == 0 and ours.returncode == 0, ours.stderr
    assert plain.stdout.replace("False", "True") == ours.stdout
    assert ours.stderr.count("neve: ") == 1 and "old format" in ours.stderr
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["train.py", *(name + more for name in ("a.pt", "b.pt") for more in ("", ".whole", ".old"))])
    assert torch.load(tmp_path / "b.pt")["epoch"] == 3


@pytest.mark.parametrize("arguments, code, text", [([], 2, "usage"), (["-h"], 0, "usage"), (["nothing.py"], 2, "nothing.py"),
                                                   (["-m"], 2, "module")], ids=str)
def test_run_without_a_script_says_what_it_wants(tmp_path, arguments, code, text):
    done = subprocess.run([sys.executable, "-m", "neve", "run", *arguments], capture_output=True, text=True,
                          env=environment(tmp_path), cwd=tmp_path)
    assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr


def test_patching_twice_is_patching_once_and_torch_is_still_there():
    passes("""
        import neve, torch
        theirs = torch.save
        neve.patch_torch()
        ours = torch.save
        neve.patch_torch()
        from neve._torch_original import original
        assert torch.save is ours is torch.serialization.save is not theirs and original("save") is theirs
    """, "/tmp")


@pytest.mark.parametrize("by_torch", [True, False])
def test_lists_and_dictionaries_that_stand_in_several_places_stay_one(tmp_path, by_torch):
    shared, inner = {"lr": 1}, [torch.ones(2)]
    state = {"a": [shared, shared], "b": inner, "c": (inner,), "d": {1: 2}, "e": {1: 2}}
    (torch.save if by_torch else neve.save)(state, tmp_path / "g.pt")
    found = neve.load(tmp_path / "g.pt")
    assert found["a"][0] is found["a"][1] and found["b"] is found["c"][0] and found["d"] is not found["e"]
    assert found["a"] == [{"lr": 1}] * 2 and torch.equal(found["b"][0], torch.ones(2))


def test_a_small_file_of_very_many_places_costs_no_time(tmp_path):
    nested = {"x": 1}
    for _ in range(60):
        nested = {"a": nested, "b": nested}
    torch.save(nested, tmp_path / "n.pt")
    found = neve.load(tmp_path / "n.pt")
    assert found["a"] is found["b"]
    shown = subprocess.run([COMMAND, "inspect", tmp_path / "n.pt"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 3 and "stand in so many places" in shown.stderr, shown.stderr
