"""Full disks, crash states, modes and links, damaged saves, memory limits: what was saved stays, and the error says why."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from child import LONG, MOUNT, passes, script, with_mounts

import neve

MIB = 1 << 20


def state(value, size=1000):
    return {"w": numpy.full(size, value, "float32"), "step": value}


# ---- DUR-02: no room ----

NO_ROOM = MOUNT + """
import errno, re, neve, numpy
folder = os.environ["FOLDER"]
def state(value, size):
    return {"w": numpy.full(size, value, "uint8")}
def refused(call, *numbers):
    try:
        call()
    except OSError as error:
        assert isinstance(error, neve.Error) and error.errno in numbers, repr(error)
        assert len(re.findall(r"\\d{4,}", str(error))) >= 2, f"bytes wanted and free: {error}"
        return error
    raise AssertionError("it was saved")
"""

FILE_SIZE_LIMIT = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
def limit(bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, hard))
"""


def test_DUR_02_a_file_size_limit_leaves_the_good_file(tmp_path):
    passes(script(NO_ROOM, FILE_SIZE_LIMIT, """
        path = folder + "/w.safetensors"
        neve.save(state(1, 1000), path)
        limit(1 << 20)
        refused(lambda: neve.save(state(2, 3 << 20), path), errno.EFBIG, errno.ENOSPC)
        refused(lambda: neve.async_save(state(2, 3 << 20), path).wait("done", 60), errno.EFBIG, errno.ENOSPC)
        assert os.listdir(folder) == ["w.safetensors"] and neve.load(path)["w"][0] == 1
        limit(soft)
        neve.save(state(2, 3 << 20), path)
        assert neve.load(path)["w"][-1] == 2
    """), tmp_path)


def test_DUR_02_a_file_size_limit_leaves_the_previous_save_and_training_goes_on(tmp_path):
    passes(script(NO_ROOM, FILE_SIZE_LIMIT, """
        ckpt = neve.Checkpointer(folder + "/run", ["file:" + folder + "?timeout=1"], job="run")
        ckpt.save(1, state(1, 1000)).wait("done", 60)
        before = sorted(os.listdir(folder + "/run"))
        limit(1 << 20)
        ticket = ckpt.save(2, state(2, 3 << 20))
        refused(lambda: ticket.wait("file", 60), errno.EFBIG, errno.ENOSPC)
        assert ckpt.latest() == 1 and ckpt.restore().state["w"][0] == 1
        limit(soft)
        ckpt.save(3, state(3, 3 << 20)).wait("done", 60)
        assert ckpt.restore().step == 3 and ckpt.restore().state["w"][-1] == 3
        try:
            ckpt.close()
        except OSError as error:
            assert error.errno in (errno.EFBIG, errno.ENOSPC)
        left = [name for _, _, names in os.walk(folder) for name in names if name.startswith(".tmp-")]
        assert not left, left
    """), tmp_path)


def test_DUR_02_a_full_disk_leaves_the_good_file(tmp_path):
    passes(script(NO_ROOM, """
        mount(folder, "2m")
        path = folder + "/w.safetensors"
        neve.save(state(1, 1000), path)
        for save in (neve.save, lambda *given: neve.async_save(*given).wait("done", 60)):
            refused(lambda: save(state(2, 3 << 20), path), errno.ENOSPC)
            assert os.listdir(folder) == ["w.safetensors"] and neve.load(path)["w"][0] == 1
        with open(folder + "/filler", "wb") as filler:   # what fits when it is empty does not when it is not
            filler.write(bytes(1 << 20))
        refused(lambda: neve.save(state(3, (1 << 20) + 8192), path), errno.ENOSPC)
        os.unlink(folder + "/filler")
        neve.save(state(3, (1 << 20) + 8192), path)
        assert os.listdir(folder) == ["w.safetensors"] and neve.load(path)["w"][-1] == 3
    """), tmp_path, before=with_mounts())


def test_DUR_02_a_full_disk_leaves_the_previous_save_and_training_goes_on(tmp_path):
    passes(script(NO_ROOM, """
        mount(folder, "8m")
        ckpt = neve.Checkpointer(folder + "/run", ["file:" + folder + "?timeout=1"], job="run")
        ckpt.save(1, state(1, 1000)).wait("done", 60)
        with open(folder + "/filler", "wb") as filler:
            filler.write(bytes(6 << 20))
        ticket = ckpt.save(2, state(2, 3 << 20))
        refused(lambda: ticket.wait("done", 60), errno.ENOSPC)
        health = ckpt.health()
        assert not health["tiers"]["file"]["ok"] and "No space" in health["tiers"]["file"]["error"], health
        assert ckpt.restore().step == 1 and ckpt.restore().state["w"].sum() == 1000
        os.unlink(folder + "/filler")
        ckpt.save(3, state(3, 3 << 20)).wait("done", 60)
        assert ckpt.health()["tiers"]["file"]["ok"]
        found = ckpt.restore()
        assert found.step == 3 and found.state["w"][-1] == 3
        refused(ckpt.close, errno.ENOSPC)
        left = [name for _, _, names in os.walk(folder) for name in names if name.startswith(".tmp-")]
        assert not left, left
    """), tmp_path, before=with_mounts())


def test_DUR_02_the_always_full_device_is_no_file_to_replace(tmp_path):
    link = tmp_path / "full.safetensors"
    link.symlink_to("/dev/full")
    for save in (neve.save, neve.async_save):
        with pytest.raises(neve.Invalid, match="not a regular file"):
            save(state(1), link)
    assert link.is_symlink() and os.listdir(tmp_path) == ["full.safetensors"]
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


# ---- DUR-03 and RET-04: crash states and damaged saves ----


def images(folder):
    """The images of a job folder by step."""
    return {int(path.parent.name[5:17]): path for path in Path(folder).glob("step-*/*.safetensors")}


def three_saves(job):
    with job(name="run", tiers=None) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, state(step)).wait("done", 60)
    return job(name="run")


def empty(path, older):
    path.write_bytes(b"")


def zeroed(path, older):
    path.write_bytes(bytes(path.stat().st_size))


def with_old_content(path, older):
    path.write_bytes(older.read_bytes())


def tail_lost(path, older):
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


def flipped(path, older):
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)


def cut(path, older):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("crash", [empty, zeroed, with_old_content, tail_lost])
def test_DUR_03_a_record_without_its_data_is_never_taken_for_a_save(job, tmp_path, crash):
    checkpointer = three_saves(job)
    found = images(tmp_path / "run")
    crash(found[3], found[2])
    if crash is empty:   # its size is wrong, which is seen without reading it: it is not complete
        assert checkpointer.restore().step == 2
    else:
        with pytest.raises((neve.DataLoss, neve.Damaged), match="3"):
            checkpointer.restore()
    back = checkpointer.restore(fallback=True)
    assert back.step == 2 and (back.state["w"] == 2).all() and back.state["step"] == 2
    with pytest.raises((neve.DataLoss, neve.Damaged)):
        checkpointer.restore(step=3)


@pytest.mark.parametrize("crash", [empty, zeroed])
def test_DUR_03_a_record_that_was_lost_with_its_data_is_no_record(job, tmp_path, crash):
    checkpointer = three_saves(job)
    crash(next((tmp_path / "run").glob("step-000000000003.*/*.commit.json")), None)
    assert checkpointer.restore().step == 2
    assert [save.step for save in checkpointer.steps() if save.complete] == [2, 1]


@pytest.mark.parametrize("damage", [flipped, cut])
def test_RET_04_fallback_takes_the_newest_that_is_whole_and_says_why(job, tmp_path, damage, capfd):
    checkpointer = three_saves(job)
    found = images(tmp_path / "run")
    for step in (2, 3):
        damage(found[step], None)
    (tmp_path / "run" / "60").write_text("a file")
    (tmp_path / "run" / ".tmp-50").mkdir()
    back = checkpointer.restore(fallback=True)
    assert back.step == 1 and (back.state["w"] == 1).all()
    told = capfd.readouterr().err.splitlines()
    assert all(sum(f"event=save_skipped step={step}" in line for line in told) == 1 for step in (2, 3)), told
    damage(found[1], None)
    with pytest.raises((neve.DataLoss, neve.Damaged)):   # not a start from zero
        checkpointer.restore(fallback=True)


def test_RET_04_a_flipped_bit_that_was_restored_into_a_state_is_told_and_the_older_one_is_whole(job, tmp_path):
    checkpointer = three_saves(job)
    flipped(images(tmp_path / "run")[3], None)
    target = state(0)
    back = checkpointer.restore(into=target, fallback=True)
    assert back.step == 2 and (target["w"] == 2).all() and target["step"] == 2
    checkpointer.save(4, target).wait("done", 60)   # nothing is refused after a restore that succeeded


# ---- DUR-04, DUR-05: links and modes ----


@pytest.mark.parametrize("umask, file_mode, folder_mode", [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750), (0o077, 0o600, 0o700)])
def test_DUR_05_files_and_folders_have_the_mode_of_the_umask(tmp_path, umask, file_mode, folder_mode):
    before = os.umask(umask)
    try:
        new, old = tmp_path / "new.safetensors", tmp_path / "old.safetensors"
        old.write_bytes(b"")
        old.chmod(0o664)
        for save in (neve.save, lambda *given: neve.async_save(*given).wait("done", 60)):
            for path, mode in ((new, file_mode), (old, 0o664)):
                save(state(1), path)
                assert stat.S_IMODE(path.stat().st_mode) == mode
            new.unlink()
        with neve.Checkpointer(tmp_path / "deep" / "run") as checkpointer:
            checkpointer.save(1, state(1)).wait("done", 60)
        for path in (tmp_path / "deep").rglob("*"):
            if ".spare" not in path.parts:
                assert stat.S_IMODE(path.stat().st_mode) == (folder_mode if path.is_dir() else file_mode), path
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


def test_DUR_04_a_link_stays_a_link_and_its_target_is_replaced_where_it_lies(tmp_path, ram_folder):
    elsewhere = ram_folder / "elsewhere"   # another file system, where /dev/shm is one
    elsewhere.mkdir()
    real, link = elsewhere / "real.safetensors", tmp_path / "link.safetensors"
    neve.save(state(1), real)
    link.symlink_to(real)
    hidden = tmp_path / "tmp"
    hidden.mkdir(mode=0o500)   # TMPDIR plays no part
    subprocess.run([sys.executable, "-c", "import neve, numpy, sys; neve.save({'w': numpy.full(9, 2)}, sys.argv[1])", link],
                   check=True, env={**os.environ, "PYTHONPATH": str(Path(neve.__file__).parent.parent), "TMPDIR": str(hidden)})
    assert link.is_symlink() and neve.load(real)["w"].sum() == 18 and neve.load(link)["w"].sum() == 18
    assert os.listdir(elsewhere) == ["real.safetensors"] and os.listdir(hidden) == []
    dangling = tmp_path / "dangling.safetensors"
    dangling.symlink_to(elsewhere / "later.safetensors")
    neve.save(state(3), dangling)
    assert dangling.is_symlink() and neve.load(elsewhere / "later.safetensors")["step"] == 3


# ---- DUR-07: readers of what is rotated ----


def test_DUR_07_an_open_reader_gets_the_whole_file_while_saves_rotate_and_a_pin_keeps_it(job, tmp_path):
    checkpointer = job(tmp_path / "run", [f"file:{tmp_path}?keep=2"], job="run")
    ticket = checkpointer.save(1, state(1, MIB))
    ticket.wait("done", 60)
    path = ticket.places["file"]
    before = Path(path).read_bytes()
    with open(path, "rb") as reader:
        got = reader.read(100)
        mapped = numpy.memmap(path, "uint8", "r")
        for step in range(2, 7):
            checkpointer.save(step, state(step, MIB)).wait("done", 60)
            got += reader.read(100)
        checkpointer.drain(60)
        assert not os.path.exists(path)
        got += reader.read()
    assert got == before and mapped.tobytes() == before
    pinned = checkpointer.save(7, state(7, MIB))
    pinned.wait("done", 60)
    checkpointer.pin(7)
    for step in range(8, 13):
        checkpointer.save(step, state(step, MIB)).wait("done", 60)
    checkpointer.drain(60)
    assert neve.load(pinned.places["file"])["step"] == 7 and (checkpointer.restore(step=7).state["w"] == 7).all()
    assert set(checkpointer.steps()) == {7, 11, 12}


# ---- DUR-08: a memory limit ----


@pytest.fixture
def memory_group():
    """Makes control groups with a memory limit (version 1 or 2) and removes them."""
    made = []

    def make(limit):
        own = {line.split(":")[1]: line.strip().split(":")[2] for line in open("/proc/self/cgroup")}
        for parent, file in ((Path("/sys/fs/cgroup/memory") / own.get("memory", "/").lstrip("/"), "memory.limit_in_bytes"),
                             (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max")):
            group = parent / f"neve-test-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            made.append(group)
            try:
                (group / file).write_text(str(limit))
                return group
            except OSError:
                continue
        pytest.skip("no control group with a memory limit can be made here")

    yield make
    for group in made:
        try:
            group.rmdir()
        except OSError:
            print(f"{group} is still in use")


def test_DUR_08_a_memory_limit_below_the_size_of_the_files_kills_nobody(tmp_path, memory_group):
    if subprocess.run(["stat", "-fc", "%T", tmp_path], capture_output=True, text=True).stdout.strip() == "tmpfs":
        pytest.skip("the temporary folder is on tmpfs, where files are memory: set TMPDIR to a disk")
    size, limit = (4 << 30, 512 << 20) if LONG else (192 << 20, 128 << 20)
    group = memory_group(limit)
    source = tmp_path / "source"   # the state is a mapped file, whose pages the kernel can drop
    with open(source, "wb") as file:
        file.truncate(size)
        file.seek(size - 1)
        file.write(b"\x07")
    passes("""
        import mmap, os, subprocess, neve, numpy
        folder, group = os.environ["FOLDER"], os.environ["GROUP"]
        with open(group + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        with open(folder + "/source", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        state = {"w": numpy.frombuffer(mapped, "uint8"), "small": numpy.arange(3)}
        neve.save({"w": state["w"]}, folder + "/w.safetensors")
        with neve.Checkpointer(folder + "/run") as ckpt:   # RAM slots of that size do not fit: it is streamed
            ticket = ckpt.save(1, state)
            ticket.wait("file", 300)
            assert ckpt.restore(include="small").state["small"].tolist() == [0, 1, 2]
        os.unlink(folder + "/source")
        subprocess.run([os.environ["COMMAND"], "verify", folder + "/run", folder + "/w.safetensors"], check=True)
        with open(folder + "/w.safetensors", "rb") as file:
            file.seek(-1, 2)
            assert file.read() == b"\x07"
    """, tmp_path, variables={"GROUP": str(group)}, timeout=600)
    peak = next((group / name for name in ("memory.max_usage_in_bytes", "memory.peak") if (group / name).exists()), None)
    assert peak is None or int(peak.read_text()) <= limit


# ---- RAM slots that somebody takes away ----

@pytest.mark.parametrize("taken", ["removed", "emptied", "cut"])
def test_slots_that_a_cleaner_takes_away_are_made_anew_and_never_end_the_trainer(tmp_path, quick_folder, taken):
    output = passes(script("""
        import glob, os, shutil, subprocess, sys, neve, numpy
        folder, ram = os.environ["FOLDER"], os.environ["NEVE_RAM_DIR"]
        ckpt = neve.Checkpointer(folder + "/run", ["ram:?slots=3", f"file:{folder}?every=1000"], job="run")
        def save(step):
            ckpt.save(step, {"w": numpy.full(100_000, step, "int64")}).wait("ram", 60)
        for step in range(1, 5):
            save(step)
        slots = glob.glob(ram + "/*/*.slot")
        assert len(slots) == 3, slots
        if TAKEN == "removed":
            shutil.rmtree(ram)
        for slot in slots if TAKEN != "removed" else []:
            os.truncate(slot, 0) if TAKEN == "cut" else os.remove(slot)
        for step in range(5, 8):
            save(step)
        # Another process finds in RAM what this one says lies there.
        print(subprocess.run([os.environ["COMMAND"], "verify", "ram:run"], capture_output=True, text=True).stdout)
        found = ckpt.restore()
        assert found.step == 7 and found.sources["ram"] > 0 and (found.state["w"] == 7).all()
        ckpt.close()
    """.replace("TAKEN", repr(taken))), quick_folder, variables={"NEVE_RAM_DIR": str(quick_folder / "ram")})
    assert "ok" in output, output


# ---- file systems that refuse O_DIRECT ----

@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_an_overlay_that_refuses_direct_io_is_written_and_read_through_the_page_cache(tmp_path, engine):
    passes(script(MOUNT, """
        import sys, time, neve, numpy
        folder = os.environ["FOLDER"]
        base, root = folder + "/base", folder + "/root"
        os.makedirs(base), os.makedirs(root)
        subprocess.run(["mount", "-t", "ramfs", "neve", base], check=True)    # it knows no O_DIRECT
        for name in ("lower", "upper", "work"):
            os.mkdir(f"{base}/{name}")
        options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
        if subprocess.run(["mount", "-t", "overlay", "neve", "-o", options, root]).returncode != 0:
            sys.exit(0)    # a kernel without overlays here
        try:
            os.close(os.open(root + "/probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
            raise AssertionError("the overlay takes O_DIRECT: this test shows nothing")
        except OSError as error:
            assert error.errno == 22, error
        os.remove(root + "/probe") if os.path.exists(root + "/probe") else None
        ckpt = neve.Checkpointer(folder + "/run", [f"file:{root}?keep=2"], job="run")
        for step in range(6):     # with files that are retired and used again
            ckpt.save(step, {"w": numpy.full(1_000_003, step, "uint8"), "b": numpy.arange(step, 300_000)}).wait("file", 60)
        found = ckpt.restore()
        assert found.step == 5 and (found.state["w"] == 5).all() and (found.state["b"] == numpy.arange(5, 300_000)).all()
        until = time.monotonic() + 60
        while sorted(save.step for save in ckpt.steps()) != [4, 5]:     # retired in the background
            assert time.monotonic() < until, ckpt.steps()
            time.sleep(0.02)
        ckpt.close()
        assert subprocess.run([os.environ["COMMAND"], "verify", root + "/run"]).returncode == 0
    """), tmp_path, before=with_mounts(), variables={"NEVE_IO": engine})
