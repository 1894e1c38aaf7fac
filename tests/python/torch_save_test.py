"""Saving in torch's own format: torch opens all of it, and finds what torch.save would have left."""

import io
import os
import pickle
import pickletools
import random
import stat
import threading
import warnings
import zipfile

import neve
import numpy
import pytest
import torch
from child import passes, script, with_mounts, MOUNT
from neve import _torch_pickle, _torch_plain
from same import assert_same
from torch_states import OPAQUE, PLAIN, Point, sharing, trained

STATES = {**PLAIN, **OPAQUE}
pytestmark = [pytest.mark.filterwarnings("ignore:these objects are loaded only"),
              pytest.mark.filterwarnings("ignore:Sparse"), pytest.mark.filterwarnings("ignore:.*sparse")]


def loads(path, **options):
    """What torch.load gives, or the error's class."""
    try:
        return torch.load(path, **options)
    except (pickle.UnpicklingError, RuntimeError, TypeError) as error:
        return type(error)


def same(a, b):
    """assert_same, but for objects that contain themselves."""
    if isinstance(a, dict) and a.get("self") is a:
        assert b["self"] is b and b["list"][0] is b["list"]
        a, b = {"w": a["w"]}, {"w": b["w"]}
    assert_same(a, b)


# ---- Torch opens everything ----


@pytest.mark.parametrize("name", STATES)
def test_torch_load_gives_what_was_saved(tmp_path, name):
    state = STATES[name]()
    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    neve.save(state, ours)
    torch.save(state, theirs)
    for options in ({"weights_only": False}, {"weights_only": False, "mmap": True}, {"weights_only": True},
                    {"weights_only": True, "mmap": True}):
        wanted = loads(theirs, **options)
        found = loads(ours, **options)
        if isinstance(wanted, type):
            assert found is wanted, options
        else:
            same(found, wanted)
    with zipfile.ZipFile(ours) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("name", PLAIN)
def test_weights_only_loading_takes_plain_states(tmp_path, name):
    neve.save(PLAIN[name](), tmp_path / "x.pt")
    if name not in ("recursive", "nesting", "texts", "PT_26_torch_generator"):   # what torch itself refuses of them
        torch.load(tmp_path / "x.pt", weights_only=True)


@pytest.mark.parametrize("name", STATES)
def test_both_ways_of_pickling_say_the_same(name):
    state = STATES[name]()
    general = _torch_pickle._dump(torch, state, pickle, 2, {})
    general = _torch_pickle._dump(torch, state, pickle, 2, general.plans(state)).result()
    try:
        content, parts = _torch_plain.plain_pickle(torch, state)
    except _torch_plain.NotPlain:
        return
    assert [part[1:] for part in parts] == [part[1:] for part in general.parts]
    pickletools.dis(content, io.StringIO())   # raises for what is no pickle

    assert repr(Called(io.BytesIO(content)).load()) == repr(Called(io.BytesIO(general.content)).load())


class Called(pickle.Unpickler):
    """Gives what would be called, as text, with all arguments."""

    def persistent_load(self, identity):
        return repr(identity)

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return super().find_class(module, name)
        return Name(f"{module}.{name}")


class Name(str):
    def __call__(self, *arguments):
        return f"{self}{arguments!r}"


def test_a_module_is_saved_whole(tmp_path):
    model, optimizer, _ = trained()
    neve.save({"model": model, "optimizer": optimizer}, tmp_path / "x.pt")
    back = torch.load(tmp_path / "x.pt", weights_only=False)
    assert_same(back["model"].state_dict(), model.state_dict())
    assert back["model"].weight is back["optimizer"].param_groups[0]["params"][0] if hasattr(back["model"], "weight") else True
    assert back["optimizer"].param_groups[0]["params"][0] is next(back["model"].parameters())


def test_the_file_is_that_of_torch_but_for_its_fingerprint(tmp_path):
    state = {f"layer{i}": torch.arange(float(i)) for i in range(30)}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    neve.save(state, tmp_path / "a" / "x.pt")
    torch.save(state, tmp_path / "b" / "x.pt")
    with zipfile.ZipFile(tmp_path / "a" / "x.pt") as ours, zipfile.ZipFile(tmp_path / "b" / "x.pt") as theirs:
        assert ours.namelist() == theirs.namelist()
        for name in ours.namelist():
            if not name.endswith((".pkl", "serialization_id")):
                assert ours.read(name) == theirs.read(name), name
                assert ours.getinfo(name).flag_bits == theirs.getinfo(name).flag_bits
        assert len(ours.read("x/.data/serialization_id")) == 40


def test_storages_can_be_aligned_to_pages(tmp_path):
    from torch.utils.serialization import config

    config.save.storage_alignment = 4096
    try:
        neve.save([torch.ones(3), torch.ones(5000)], tmp_path / "x.pt")
    finally:
        config.save.storage_alignment = 64
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.read("x/.storage_alignment") == b"4096"
    back = torch.load(tmp_path / "x.pt", mmap=True)
    assert all(tensor.data_ptr() % 4096 == 0 for tensor in back)
    assert_same(back, [torch.ones(3), torch.ones(5000)])


# ---- Sharing, and storages that are cut ----


def test_PT_02_tied_weights_stay_tied_and_are_stored_once(tmp_path):
    neve.save(sharing(), tmp_path / "x.pt")
    back = torch.load(tmp_path / "x.pt")
    assert back["a"] is back["b"] and back["one"] is back["two"] and back["three"][0] is back["one"]
    back["a"][0] = 5
    assert all(back[key].flatten()[0] == 5 for key in "abcd")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert sum("/data/" in name for name in archive.namelist()) == 1


@pytest.mark.parametrize("more", [[], [numpy.float64(1)]], ids=["plain", "general"])
def test_PT_01_a_view_does_not_drag_its_base_along(tmp_path, more):
    base = torch.arange(1_000_000.0)
    neve.save([base[:10], *more], tmp_path / "a.pt")
    neve.save([base[:10], base[2:4], base[-8:], base[5:5], *more], tmp_path / "b.pt")
    assert (tmp_path / "a.pt").stat().st_size < 2000 and (tmp_path / "b.pt").stat().st_size < 2500
    a, b = (torch.load(tmp_path / name, weights_only=False) for name in ("a.pt", "b.pt"))
    assert_same(a[0], base[:10])
    assert_same(b[:4], [base[:10], base[2:4], base[-8:], base[5:5]])
    b[0][2] = -1
    assert b[1][0] == -1   # still views of one another
    neve.save([base[:600_000], *more], tmp_path / "c.pt")   # most of it is used: as torch does
    assert torch.load(tmp_path / "c.pt", weights_only=False)[0].untyped_storage().nbytes() == 4_000_000


@pytest.mark.parametrize("more", [[], [numpy.float64(1)]], ids=["plain", "general"])
def test_PT_03_two_dtypes_over_one_storage(tmp_path, more):
    a, x = torch.randn(4, dtype=torch.complex64), torch.arange(4, dtype=torch.int32)
    neve.save([a, a.real, a.imag, x, x.view(torch.float32), torch.arange(5000.0)[3:7].view(torch.int32), *more], tmp_path / "x.pt")
    for mmap in (False, True):
        back = torch.load(tmp_path / "x.pt", weights_only=not more, mmap=mmap)
        assert_same(back[:6], [a, a.real, a.imag, x, x.view(torch.float32), torch.arange(5000.0)[3:7].view(torch.int32)])
        back[1][0] = 7
        back[3][1] = 0
        assert back[0][0].real == 7 and back[4][1] == 0


def test_PT_03_two_dtypes_that_torch_names_itself_are_refused_by_place(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"good")
    t = torch.ones(4)
    with pytest.raises(neve.Unsupported, match="'a'.*'b.s'"):
        neve.save({"a": t, "b": {"s": t.untyped_storage()}}, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").read_bytes() == b"good"


# ---- What cannot be saved ----


class Holder:
    def __init__(self, **content):
        self.__dict__.update(content)


@pytest.mark.parametrize("save", [neve.save, neve.async_save])
def test_PT_10_what_cannot_be_pickled_is_named_and_the_good_file_stays(tmp_path, save):
    path = tmp_path / "good.pt"
    neve.save({"w": 1}, path)
    good = path.read_bytes()
    for state, place in (({"w": torch.zeros(10), "f": lambda: 0}, "'f'"),
                         ({"a": {"b": [1, 2, Holder(lock=threading.Lock())]}}, r"'a\.b\[2\]\.lock'"),
                         ({"w": torch.zeros(10), ("k", 1): [iter([1])] and (x for x in ())}, r"\[\('k', 1\)\]"),
                         (lambda: 0, "'the state itself'")):
        with pytest.raises(neve.Unsupported, match=place):
            save(state, path)
    assert path.read_bytes() == good and os.listdir(tmp_path) == ["good.pt"]


def test_a_state_that_is_nested_too_deep_is_refused(tmp_path):
    deep = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(neve.Invalid, match="too deep"):
        neve.save(deep, tmp_path / "x.pt")
    assert not os.listdir(tmp_path)


def test_PT_13_a_missing_folder_is_named_and_nothing_is_made(tmp_path):
    for save in (neve.save, neve.async_save):
        with pytest.raises(FileNotFoundError, match="none") as caught:
            save({"w": torch.ones(1)}, tmp_path / "none" / "x.pt")
        assert isinstance(caught.value, neve.Error)
    with pytest.raises(FileNotFoundError, match="none"):
        neve.save({}, tmp_path / "none" / "x.pt", _use_new_zipfile_serialization=False)
    assert not os.listdir(tmp_path)


def test_what_is_no_file_is_refused(tmp_path):
    for f in (3, None, object()):
        with pytest.raises(neve.Invalid):
            neve.save({}, f)
        with pytest.raises(neve.Invalid):
            neve.async_save({}, f)
    with pytest.raises(IsADirectoryError) as caught:
        raise OSError(21, "x") from None
    with pytest.raises(neve.Unavailable) as caught:
        neve.save({}, tmp_path)
    assert caught.value.errno == 21
    with pytest.raises(neve.Unsupported, match="path"):
        neve.async_save({}, io.BytesIO())


@pytest.mark.parametrize("name", ["中文/模型.pt", "папка/файл.bin", "\U0001f600/x", "plain/x.pth"])
def test_PT_13_names_are_taken_as_they_are(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir()
    for form in (str(path), path, os.fsencode(path)):
        neve.save({"w": torch.ones(3)}, form)
        assert os.listdir(path.parent) == [path.name]
        assert_same(torch.load(path), {"w": torch.ones(3)})
        path.unlink()


# ---- Warnings ----


def test_PT_08_objects_that_weights_only_loading_refuses_are_named_once(tmp_path):
    state = {"lr": numpy.float64(1), "deep": [{"n": numpy.int64(3)}], "w": torch.ones(2), "p": Point(1, 2), "h": [Holder(a=1)]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        neve.save(state, tmp_path / "x.pt")
        neve.save({"w": torch.ones(2), "s": {1}, "o": trained()[1].state_dict()}, tmp_path / "y.pt")
    texts = [str(item.message) for item in caught]
    assert len(texts) == 1 and caught[0].filename == __file__
    for place in ("lr (numpy.float64)", "deep[0].n (numpy.int64)", f"h[0] ({__name__}.Holder)"):
        assert place in texts[0]


def test_hooks_are_warned_of_as_torch_does(tmp_path):
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda gradient: gradient)
    with pytest.warns(UserWarning, match="backward hook"):
        neve.save([tensor], tmp_path / "x.pt")


# ---- File objects ----


class OnlyWrites:
    def __init__(self):
        self.kept = []

    def write(self, content):
        self.kept.append(content)
        return len(content)


def test_PT_12_a_file_object_is_written_at_its_position(tmp_path):
    state = {"w": torch.arange(3_000_000.0), "n": 1}
    buffer = io.BytesIO()
    neve.save(state, buffer)
    alone = buffer.getvalue()
    assert_same(torch.load(io.BytesIO(alone)), state)
    with open(tmp_path / "x", "wb") as file:
        file.write(b"header")
        neve.save(state, file)
        end = file.tell()
        file.write(b"after")
    assert (tmp_path / "x").read_bytes() == b"header" + alone + b"after" and end == 6 + len(alone)
    with open(tmp_path / "x", "wb", buffering=0) as raw:
        neve.save(state, raw)
    assert (tmp_path / "x").read_bytes() == alone
    odd = OnlyWrites()
    neve.save(state, odd)
    assert b"".join(odd.kept) == alone
    buffer = io.BytesIO(b"ab" + bytes(len(alone) + 9))
    buffer.seek(2)
    neve.save(state, buffer)
    assert buffer.getvalue() == b"ab" + alone + bytes(9)


def test_what_a_file_object_raises_is_passed_on():
    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, content):
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        neve.save({"w": torch.ones(10)}, Full())
    with pytest.raises(TypeError):
        neve.save({}, io.StringIO())


# ---- Other forms, which torch writes ----


@pytest.mark.parametrize("options", [{"pickle_protocol": 4}, {"pickle_protocol": 3}, {"_use_new_zipfile_serialization": False},
                                     {"_disable_byteorder_record": True}], ids=str)
def test_PT_16_the_other_arguments_of_torch_save(tmp_path, options, capfd):
    state = {"w": torch.ones(3), "v": torch.zeros(2, 2).t()}
    neve.save(state, tmp_path / "x.pt", **options)
    assert_same(torch.load(tmp_path / "x.pt", weights_only=False), state)
    buffer = io.BytesIO()
    neve.save(state, buffer, **options)
    buffer.seek(0)
    assert_same(torch.load(buffer, weights_only=False), state)
    with pytest.raises((neve.Unsupported, AttributeError, pickle.PicklingError)):
        neve.save({"w": 1, "f": lambda: 0}, tmp_path / "x.pt", **options)
    assert_same(torch.load(tmp_path / "x.pt", weights_only=False), state)
    assert os.listdir(tmp_path) == ["x.pt"]


def test_another_pickle_module_is_used(tmp_path):
    class Module:
        __name__ = "mine"
        used = []

        class Pickler(pickle.Pickler):
            def __init__(self, *arguments, **options):
                Module.used.append(1)
                super().__init__(*arguments, **options)

    neve.save({"w": torch.ones(3)}, tmp_path / "x.pt", pickle_module=Module)
    assert Module.used and torch.load(tmp_path / "x.pt")["w"].sum() == 3


def test_torch_need_not_be_there(tmp_path):
    passes("""
        import sys, neve, os
        neve.save({"a": 1, "b": [1.5, "x"]}, os.environ["FOLDER"] + "/x.pt")
        assert "torch" not in sys.modules
    """, tmp_path)


# ---- Asynchronous ----


def test_an_asynchronous_save_is_what_the_object_was(tmp_path):
    state = {f"t{i}": torch.full((100_000,), float(i)) for i in range(30)}
    ticket = neve.async_save(state, tmp_path / "x.pt")
    for tensor in state.values():
        tensor.fill_(-1)
    ticket.wait("done", 60)
    assert ticket.stages["file"] == "reached" and ticket.places["file"] == str(tmp_path / "x.pt")
    assert_same(torch.load(tmp_path / "x.pt"), {f"t{i}": torch.full((100_000,), float(i)) for i in range(30)})


def test_an_asynchronous_save_is_finished_at_exit_and_in_a_forked_child(tmp_path):
    passes("""
        import os, neve, torch
        folder = os.environ["FOLDER"]
        neve.async_save({"w": torch.ones(3_000_000)}, folder + "/parent.pt").wait()
        if os.fork() == 0:
            neve.async_save({"w": torch.empty(3_000_000)}, folder + "/child.pt").wait("done", 60)   # no threads of torch's here
            os._exit(0)
        assert os.wait()[1] == 0
        neve.async_save({"w": torch.ones(3_000_000)}, folder + "/last.pt")
    """, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["child.pt", "last.pt", "parent.pt"]
    for name in os.listdir(tmp_path):
        assert torch.load(tmp_path / name)["w"].shape == (3_000_000,)


# ---- Safe ----


TORCH_STATE = """
import os, neve, torch, errno, signal, sys
torch.set_num_threads(1)   # its threads do not live on in a forked child
folder = os.environ["FOLDER"]
path = folder + "/w.pt"
def state(value, size):
    return {"w": torch.full((size,), float(value)), "k": value}
def holds(value):
    back = torch.load(path)
    assert back["k"] == value and (back["w"] == value).all(), back
"""


@pytest.mark.parametrize("call", ["neve.save(state(k, 1 << 20), path)", "neve.async_save(state(k, 1 << 20), path).wait()"])
def test_DUR_01_after_every_kill_the_file_is_the_old_or_the_new(quick_folder, call):
    passes(script(TORCH_STATE, f"""
        import random, time
        seed = random.seed(int(os.environ["SEED"]))
        neve.save(state(0, 1 << 20), path)
        k = 0
        for round in range(12):
            ready, told = os.pipe()
            child = os.fork()
            if child == 0:
                while True:
                    k += 1
                    {call}
                    os.write(told, b".")
            os.read(ready, 1)
            time.sleep(random.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(told)
            done = 1 + sum(len(piece) for piece in iter(lambda: os.read(ready, 1000), b""))
            os.close(ready)
            found = torch.load(path)
            assert found["k"] in (k + done, k + done + 1) and (found["w"] == found["k"]).all(), (k, done, found["k"])
            k = found["k"]
        neve.save(state(k, 10), path)
        assert os.listdir(folder) == ["w.pt"], os.listdir(folder)
    """), quick_folder)


def test_DUR_02_a_file_size_limit_leaves_the_good_file(tmp_path):
    passes(script(TORCH_STATE, """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        neve.save(state(1, 1000), path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        for call in (lambda: neve.save(state(2, 3 << 20), path), lambda: neve.async_save(state(2, 3 << 20), path).wait("done", 60)):
            try:
                call()
                raise SystemExit("saved")
            except OSError as error:
                assert isinstance(error, neve.Error) and error.errno in (errno.EFBIG, errno.ENOSPC), repr(error)
        assert os.listdir(folder) == ["w.pt"]
        holds(1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        neve.save(state(3, 3 << 20), path)
        holds(3)
    """), tmp_path)


def test_DUR_02_a_full_disk_leaves_the_good_file(tmp_path):
    passes(script(MOUNT, TORCH_STATE, """
        mount(folder, 2 << 20)
        neve.save(state(1, 1000), path)
        for call in (lambda: neve.save(state(2, 1 << 20), path), lambda: neve.async_save(state(2, 1 << 20), path).wait("done", 60)):
            try:
                call()
                raise SystemExit("saved")
            except OSError as error:
                assert isinstance(error, neve.Exhausted) and error.errno == errno.ENOSPC, repr(error)
        assert os.listdir(folder) == ["w.pt"]
        holds(1)
        neve.save(state(3, 1000), path)
        holds(3)
    """), tmp_path, before=with_mounts())


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_DUR_05_files_have_the_mode_of_the_umask_and_old_ones_keep_theirs(tmp_path, umask, mode):
    new, old, stream = tmp_path / "new.pt", tmp_path / "old.pt", tmp_path / "stream.pt"
    old.write_bytes(b"old")
    old.chmod(0o664)
    before = os.umask(umask)
    try:
        neve.save({"w": torch.ones(1)}, new)
        neve.async_save({"w": torch.ones(1)}, old).wait()
        neve.save({"w": torch.ones(1)}, stream, _use_new_zipfile_serialization=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(new.stat().st_mode) == mode and stat.S_IMODE(stream.stat().st_mode) == mode
    assert stat.S_IMODE(old.stat().st_mode) == 0o664


def test_DUR_06_of_many_writers_of_one_path_one_is_whole(quick_folder):
    passes(script(TORCH_STATE, """
        children = []
        for k in range(8):
            child = os.fork()
            if child == 0:
                for _ in range(5):
                    neve.save(state(k, 1 << 18), path)
                os._exit(0)
            children.append(child)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        holds(torch.load(path)["k"])
        assert os.listdir(folder) == ["w.pt"], os.listdir(folder)
    """), quick_folder)


def test_PT_28_a_save_holds_no_interpreter_lock_while_it_writes(quick_folder):
    state = {"w": torch.ones(64 << 20)}
    gaps, stop = [], threading.Event()

    def watch():
        import time

        last = time.perf_counter()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(3):
            neve.save(state, quick_folder / "x.pt")
    finally:
        stop.set()
        watcher.join()
    assert len(gaps) > 20   # a lock held through a save would have left a handful


def test_PT_18_very_many_tiny_tensors(tmp_path):
    state = {f"k{i}": torch.full((1,), float(i)) for i in range(70_000)}
    neve.save(state, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert len(archive.namelist()) == 70_006 and archive.testzip() is None
    back = torch.load(tmp_path / "x.pt")
    assert list(back) == list(state) and torch.equal(torch.cat(list(back.values())), torch.arange(70_000.0))


@pytest.mark.skipif(not os.environ.get("NEVE_LONG"), reason="writes 4 GiB")
def test_PT_11_a_tensor_of_more_than_4_GiB(tmp_path):
    big = torch.zeros((1 << 32) + 16, dtype=torch.uint8)
    big[1 << 31], big[-1] = 5, 7
    neve.save({"big": big, "after": torch.tensor([1.5])}, tmp_path / "x.pt")
    for mmap in (False, True):
        back = torch.load(tmp_path / "x.pt", mmap=mmap)
        assert back["big"][1 << 31] == 5 and back["big"][-1] == 7 and back["after"][0] == 1.5
