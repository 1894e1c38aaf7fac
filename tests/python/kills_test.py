"""SIGKILL at any moment, and SIGTERM with a grace period: what was committed stays, and nothing half-made is ever taken."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from child import COMMAND, LONG, passes, script, start

import neve

# Scripts that kill: a forked child saves k, k + 1, ... and tells each that is done through a pipe. The parent kills it at a
# random time, and what it loads then must be the last one told, or the next.
KILLER = """
import os, random, signal, struct, sys, time, neve, numpy
folder, rounds = os.environ["FOLDER"], int(os.environ["ROUNDS"])
random.seed(int(os.environ["SEED"]))
size = int(os.environ["SIZE"])
def state(k):
    return {"k": k, "a": numpy.full(size // 2, k, "uint32"), "b": {"c": numpy.full(size // 4, k, "int64")}}
def check(found):
    k = found["k"]
    assert (found["a"] == k).all() and (found["b"]["c"] == k).all(), f"a mix under version {k}"
    return k
def killed(saves, k, longest):
    "Runs saves(k, tell) in a child that is killed; the last k that it told, or k - 1."
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        saves(k, lambda done: os.write(writer, struct.pack("q", done)))
        os._exit(0)
    os.close(writer)
    first = os.read(reader, 8) if random.random() < 0.7 else b""   # some are killed before their first save
    time.sleep(random.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told = first
    while piece := os.read(reader, 8):
        told = piece
    os.close(reader)
    return struct.unpack("q", told)[0] if told else k - 1
"""

ROUNDS = {"ROUNDS": "200" if LONG else "20", "SIZE": str(12 << 20 if LONG else 1 << 20)}


def test_DUR_01_a_file_that_is_saved_over_is_the_old_or_the_new_after_every_kill(quick_folder):
    passes(script(KILLER, """
        path = folder + "/w.safetensors"
        neve.save(state(0), path)
        def saves(k, tell):
            while True:
                neve.save(state(k), path)
                tell(k)
                k += 1
        k = 0
        for _ in range(rounds):
            told = killed(saves, k + 1, 0.03)
            k = check(neve.load(path))
            assert k in (told, told + 1), (k, told)
        neve.save(state(k + 1), path)
        assert os.listdir(folder) == ["w.safetensors"], os.listdir(folder)   # nothing is left of those that were killed
    """), quick_folder, variables=ROUNDS, timeout=600)


def test_DUR_01_a_job_folder_gives_the_last_or_the_next_after_every_kill(quick_folder):
    passes(script(KILLER, """
        def open_job():
            return neve.Checkpointer(folder + "/run", ["ram:", "file:" + folder + "?keep=2"], job="run")
        def saves(k, tell):
            ckpt = open_job()
            while True:
                ckpt.save(k, state(k)).wait("file")
                tell(k)
                k += 1
        k = 0
        for _ in range(rounds):
            told = killed(saves, k + 1, 0.03)
            ckpt = open_job()
            try:
                found = ckpt.restore()
                # From RAM or from files; RAM may be ahead by the one whose file was not there yet.
                k = check(found.state)
                assert found.step == k and k in (told, told + 1), (k, told)
            except neve.NotFound:
                assert told == k == 0
            ckpt.close(final=False)
        ckpt = open_job()
        ckpt.save(k + 1, state(k + 1)).wait("done", 60)
        ckpt.close()
        saves = [name for name in os.listdir(folder + "/run") if name.startswith("step-")]
        left = [name for _, _, names in os.walk(folder) for name in names if name.startswith(".tmp-")]
        assert len(saves) <= 3 and not left, (saves, left)
    """), quick_folder, variables=ROUNDS, timeout=600)


def test_RET_01_the_newest_verifies_at_every_poll_and_after_every_kill_though_only_one_is_kept(quick_folder):
    """The previous save is deleted only after the new one is committed. No RAM tier: only the files count."""
    passes(script(KILLER, """
        import subprocess, threading
        tiers = ["file:" + folder + "?keep=1&rate=64M"]
        def open_job():
            return neve.Checkpointer(folder + "/run", tiers, job="run")
        def saves(k, tell):
            ckpt = open_job()
            while True:
                ckpt.save(k, state(k)).wait("file")
                tell(k)
                k += 1
        ckpt = open_job()
        ckpt.save(0, state(0)).wait("done", 60)
        ckpt.close()
        k, polls = 0, 0
        for turn in range(rounds):
            stop = threading.Event()
            reader = open_job()
            newest = k
            def poll():
                global polls, newest
                while not stop.is_set():
                    # A save may be retired between the listing and the reading; then there is a newer one.
                    for _ in range(100):
                        try:
                            step = check(reader.restore().state)
                            break
                        except (neve.NotFound, neve.DataLoss, neve.Damaged, neve.Unavailable) as error:
                            last = error
                    else:
                        print("poll:", last, file=sys.stderr)
                        os._exit(9)
                    if step < newest:
                        print("back from", newest, "to", step, file=sys.stderr)
                        os._exit(10)
                    newest, polls = step, polls + 1
            if turn % 2:   # every other round is watched while it runs
                thread = threading.Thread(target=poll)
                thread.start()
                told = killed(saves, k + 1, 0.15)
                stop.set()
                thread.join()
            else:
                told = killed(saves, k + 1, 0.15)
            k = check(reader.restore().state)
            assert k in (told, told + 1), (k, told)
            reader.close()
            done = subprocess.run([os.environ["COMMAND"], "verify", "--quiet", folder + "/run"], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        assert polls > 0
    """), quick_folder, variables={"ROUNDS": "200" if LONG else "10", "SIZE": str(1 << 18)}, timeout=600)


def test_DCP_07_a_folder_with_an_older_job_gives_all_of_one_save(quick_folder):
    """The folder holds the saves of another state, by another program; this one is killed among them, and read meanwhile."""
    passes(script(KILLER, """
        def open_job():
            return neve.Checkpointer(folder + "/run", ["file:" + folder], job="run")
        def old(k):
            return {"k": k, "a": numpy.full(size, k, "uint32"), "b": {"c": numpy.full(size, k, "int64")}, "only old": k}
        with open_job() as ckpt:
            for k in (1, 2):
                ckpt.save(700 + k, old(k)).wait("done", 60)
        def saves(k, tell):
            ckpt = open_job()
            while True:
                ckpt.save(k, state(k)).wait("file")
                tell(k)
                k += 1
        k = 2
        with open_job() as reader:
            for _ in range(rounds):
                told = killed(saves, k + 1, 0.02)
                found = reader.restore()
                k = check(found.state)
                assert k in (told, told + 1) and ("only old" in found.state) == (k == 2)
                assert len(found.state["a"]) == (size if k == 2 else size // 2)
            assert check(reader.restore(step=701).state) == 1   # the older job's saves are what they were
    """), quick_folder, variables={**ROUNDS, "ROUNDS": "50" if LONG else "8"}, timeout=600)


# ---- ASY-08: SIGTERM ----

TRAINER = """
import os, signal, sys, time, neve, numpy
folder = os.environ["FOLDER"]
def mine(number, frame):
    print("my handler ran", flush=True)
    sys.exit(21)
signal.signal(signal.SIGTERM, mine)
ckpt = neve.Checkpointer(folder + "/run", ["ram:", "file:" + folder + os.environ["RATE"]], job="run", grace=30)
ckpt.save(1, {"w": numpy.ones(1000)}).wait("done", 60)
"""


def newest_in_files(job, tmp_path):
    return job(tmp_path / "run", [f"file:{tmp_path}"], job="run").restore()


def until(child, line):
    while (read := child.stdout.readline()) != line + "\n":
        assert read, child.stderr.read()


def test_ASY_08_sigterm_to_the_group_with_loader_workers_commits_the_save_and_runs_the_users_handler(tmp_path, job):
    child = start(script(TRAINER, """
        import torch
        from torch.utils.data import DataLoader
        loader = iter(DataLoader(torch.arange(1e6), batch_size=1, num_workers=2))
        next(loader)
        ckpt.save(2, {"w": torch.full((3 << 20,), 2.0)})   # 12 MB at 8 MB/s: in flight when the signal comes
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)   # torch's handler would raise for each killed worker, wherever the program is
        print("saving", flush=True)
        try:
            for batch in loader:
                time.sleep(0.001)
        except Exception:   # the workers were killed by the same signal: a RuntimeError, or a batch that went with one of them
            time.sleep(60)
    """), tmp_path, start_new_session=True, variables={"RATE": "?rate=8M"})
    try:
        until(child, "saving")
        os.killpg(child.pid, signal.SIGTERM)
        output, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 21 and "my handler ran" in output, (child.returncode, output, errors)
    found = newest_in_files(job, tmp_path)
    assert found.step == 2 and (found.state["w"] == 2).all()


@pytest.mark.parametrize("blocked", ["time.sleep(600)", "os.read(os.pipe()[0], 1)", "__import__('threading').Event().wait()"])
def test_ASY_08_a_save_that_only_lies_in_ram_is_written_and_a_blocked_program_hears_its_handler(tmp_path, job, blocked):
    child = start(script(TRAINER, f"""
        ckpt.save(2, {{"w": numpy.full(1000, 2.0)}}, to=["ram"]).wait("ram", 60)
        print("waiting", flush=True)
        {blocked}
    """), tmp_path)
    try:
        until(child, "waiting")
        child.send_signal(signal.SIGTERM)
        output, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 21 and output == "my handler ran\n", (child.returncode, output, errors)
    assert newest_in_files(job, tmp_path).step == 2


def test_ASY_08_without_a_handler_the_signal_still_ends_the_process(tmp_path, job):
    child = start(script(TRAINER.replace("signal.signal(signal.SIGTERM, mine)", ""), """
        ckpt.save(2, {"w": numpy.full(1000, 2.0)}, to=["ram"]).wait("ram", 60)
        print("waiting", flush=True)
        time.sleep(600)
    """), tmp_path)
    try:
        until(child, "waiting")
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == -signal.SIGTERM
    assert newest_in_files(job, tmp_path).step == 2


def test_ASY_08_a_second_signal_ends_at_once_and_the_previous_save_is_the_newest(tmp_path, job):
    code = TRAINER.replace("signal.signal(signal.SIGTERM, mine)", "").replace("1000", "8").replace("grace=30", "grace=600")
    child = start(script(code, """
        ckpt.save(2, {"w": numpy.full(12 << 20, 2.0)})   # minutes at that rate
        print("saving", flush=True)
        time.sleep(600)
    """), tmp_path, variables={"RATE": "?rate=1M"})
    try:
        until(child, "saving")
        child.send_signal(signal.SIGTERM)
        while "event=sigterm" not in (line := child.stderr.readline()):   # it works on the save now
            assert line, "it has ended"
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == -signal.SIGTERM
    assert newest_in_files(job, tmp_path).step == 1
    assert subprocess.run([COMMAND, "verify", "--quiet", tmp_path / "run"]).returncode == 0
    assert neve.load(next(Path(tmp_path, "run").glob("step-000000000001.*/*.safetensors")))["w"].sum() == 8
