"""Several writers of one path, saves over the file that was loaded, saves faster than the storage, a folder that fails."""

import errno
import os
import threading

import numpy
import pytest
import torch
from child import LONG, passes
from same import assert_same

import neve

# ---- ST-14: saving over the file that the tensors came from ----


@pytest.mark.parametrize("mmap", [None, True])
def test_ST_14_a_state_is_saved_over_the_file_it_was_loaded_from(tmp_path, mmap):
    path = tmp_path / "w.safetensors"
    neve.save({"w": torch.tensor([1, 2, 3]), "big": torch.arange(1 << 20)}, path)
    loaded = neve.load(path, mmap=mmap)
    with open(path, "rb") as reader:   # a reader that has it open goes on with what it opened
        first = reader.read(16)
        neve.save(loaded, path)
        assert loaded["w"].tolist() == [1, 2, 3] and neve.load(path)["w"].tolist() == [1, 2, 3]
        loaded["w"][0], loaded["more"] = 9, torch.ones(5)
        neve.save(loaded, path)
        assert loaded["w"].tolist() == [9, 2, 3] and first + reader.read(8)
    assert_same(neve.load(path), loaded)
    assert neve.load(path)["big"][-1] == (1 << 20) - 1


def test_ST_14_two_processes_load_change_and_save_one_path(tmp_path):
    passes("""
        import os, neve, numpy
        path = os.environ["FOLDER"] + "/w.safetensors"
        size = 1 << 18
        neve.save({"w": numpy.zeros(size, "int64"), "who": 0}, path)
        children = []
        for who in (1, 2):
            child = os.fork()
            if child == 0:
                for turn in range(10):
                    state = neve.load(path)
                    assert (state["w"] == state["w"][0]).all() and state["w"][0] % 10 == state["who"]
                    state["w"][:] = turn * 10 + who
                    state["who"] = who
                    neve.save(state, path)
                os._exit(0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0, 0], codes
        last = neve.load(path)
        assert (last["w"] == 90 + last["who"]).all() and last["who"] in (1, 2)
        assert os.listdir(os.environ["FOLDER"]) == ["w.safetensors"]
    """, tmp_path)


# ---- DUR-06: several processes write one path ----

MANY = {"ROUNDS": "50" if LONG else "5", "SIZE": str(12 << 20 if LONG else 1 << 19)}


def test_DUR_06_many_processes_save_one_file_and_it_is_one_of_theirs(quick_folder):
    passes("""
        import os, neve, numpy
        path, rounds, size = os.environ["FOLDER"] + "/w.safetensors", int(os.environ["ROUNDS"]), int(os.environ["SIZE"])
        for turn in range(rounds):
            children = []
            ready, go = os.pipe()
            for who in range(8):
                child = os.fork()
                if child == 0:
                    state = {"who": who, "a": numpy.full(size, turn * 8 + who, "int32"), "b": numpy.full(who + 1, who)}
                    os.close(go)
                    os.read(ready, 1)   # all begin when the last is there
                    neve.save(state, path)
                    os._exit(0)
                children.append(child)
            os.close(ready)
            os.close(go)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            assert codes == [0] * 8, codes
            found = neve.load(path)
            who = found["who"]
            assert (found["a"] == turn * 8 + who).all() and found["b"].tolist() == [who] * (who + 1)
            assert os.listdir(os.environ["FOLDER"]) == ["w.safetensors"]
    """, quick_folder, variables=MANY)


def test_DUR_06_many_processes_save_to_one_folder_and_the_losers_are_told(quick_folder):
    passes("""
        import os, subprocess, sys, neve, numpy
        folder, rounds, size = os.environ["FOLDER"] + "/run", int(os.environ["ROUNDS"]), int(os.environ["SIZE"])
        os.environ["NEVE_LOG"] = "off"
        for turn in range(rounds):
            children = []
            ready, go = os.pipe()
            for who in range(8):
                child = os.fork()
                if child == 0:
                    mine = turn * 8 + who
                    state = {"who": mine, "a": numpy.full(size, mine, "int32")}
                    os.close(go)
                    os.read(ready, 1)
                    ckpt = neve.Checkpointer(folder, ["file:" + os.environ["FOLDER"]], job="run")
                    try:
                        ckpt.save(turn, state).wait("file", 60)
                        os._exit(0)
                    except (neve.Unavailable, neve.Invalid) as error:   # superseded, or another run began there
                        told = str(error)
                        os._exit(1 if "superseded" in told or "another run" in told else 2)
                    except BaseException as error:
                        print(repr(error), file=sys.stderr, flush=True)
                        os._exit(3)
                children.append(child)
            os.close(ready)
            os.close(go)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            assert set(codes) <= {0, 1} and 0 in codes, codes
            with neve.Checkpointer(folder, ["file:" + os.environ["FOLDER"]], job="run") as ckpt:
                found = ckpt.restore()
                mine = found.state["who"]
                assert found.step == turn and mine // 8 == turn and (found.state["a"] == mine).all()
                assert codes[mine % 8] == 0, (codes, mine)   # whoever was told that it failed did
        done = subprocess.run([os.environ["COMMAND"], "verify", "--quiet", folder], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    """, quick_folder, variables=MANY)


# ---- ASY-05: saves faster than the storage ----


@pytest.mark.parametrize("on_full", ["wait", "skip", "replace"])
def test_ASY_05_saves_faster_than_the_storage_each_hold_their_own_step(job, tmp_path, on_full):
    """The rule is on_full; memory is bounded by the slots."""
    count = 50 if LONG else 12
    checkpointer = job(tmp_path / "run", ["ram:?slots=2", f"file:{tmp_path}?rate=16M"], job="run", on_full=on_full)
    w = torch.zeros(1 << 19)   # 2 MiB
    tickets = []
    for step in range(count):
        w.fill_(step)   # what the saves before this one captured is not theirs any more to change
        tickets.append(checkpointer.save(step, {"w": w, "step": step}))
        assert checkpointer.health()["slots"] <= 2
    checkpointer.drain(120)
    committed = []
    for ticket in tickets:
        if ticket.stages["file"] == "reached":
            committed.append(ticket.step)
        else:
            with pytest.raises(neve.Exhausted, match=f"step {ticket.step} was {'skipped' if on_full == 'skip' else 'replaced'}"):
                ticket.wait("file", 60)
    assert committed == [save.step for save in reversed(checkpointer.steps()) if "file" in save.tiers]
    assert len(committed) == count if on_full == "wait" else len(committed) >= 2
    reader = job(tmp_path / "run", [f"file:{tmp_path}"], job="run")
    for step in committed:
        state = reader.restore(step=step).state
        assert state["step"] == step and (state["w"] == step).all()
    if on_full == "skip":   # never two in a row
        skipped = sorted(set(range(count)) - set(committed))
        assert not any(later - earlier == 1 for earlier, later in zip(skipped, skipped[1:]))


# ---- ASY-09: a failing folder ----


def broken(tmp_path):
    """The root of the file tier is gone, as a disk that was unmounted."""
    (tmp_path / "root").rename(tmp_path / "gone")


def repaired(tmp_path):
    (tmp_path / "gone").rename(tmp_path / "root")


def test_ASY_09_a_folder_that_fails_is_told_everywhere_but_in_training_and_saves_work_again(job, tmp_path):
    (tmp_path / "root").mkdir()
    checkpointer = job(tmp_path / "run", ["ram:", f"file:{tmp_path}/root?timeout=1"], job="run")
    checkpointer.save(1, {"w": torch.ones(9)}).wait("done", 60)
    assert checkpointer.health()["tiers"]["file"]["ok"]
    broken(tmp_path)
    failing = [checkpointer.save(step, {"w": torch.full((9,), float(step))}) for step in (2, 3)]   # training goes on
    for ticket in failing:
        with pytest.raises(OSError, match=f"step {ticket.step}") as caught:
            ticket.wait("done", 60)
        assert isinstance(caught.value, neve.Error) and ticket.stages["ram"] == "reached" and ticket.stages["file"] == "failed"
        assert isinstance(ticket.error, neve.Error) and str(tmp_path) in str(ticket.error)
    health = checkpointer.health()
    assert not health["tiers"]["file"]["ok"] and "root" in health["tiers"]["file"]["error"] and "step 2" in health["error"]
    assert checkpointer.restore(allow_missing=["file"]).step == 3   # from RAM
    repaired(tmp_path)
    assert numpy.array_equal(checkpointer.restore(step=1).state["w"], numpy.ones(9))   # the previous one is whole
    checkpointer.save(4, {"w": torch.full((9,), 4.0)}).wait("done", 60)
    assert checkpointer.health()["tiers"]["file"]["ok"]
    with pytest.raises(OSError, match="step 2"):   # the first error of this life, once
        checkpointer.close()
    checkpointer.close()
    reader = job(tmp_path / "run", [f"file:{tmp_path}/root"], job="run")
    assert reader.restore().step == 4 and reader.restore(step=1).state["w"].sum() == 9


def test_ASY_09_an_error_that_passes_is_tried_again_and_told_to_nobody(job, tmp_path):
    (tmp_path / "root").mkdir()
    checkpointer = job(tmp_path / "run", ["ram:", f"file:{tmp_path}/root?timeout=60"], job="run")
    checkpointer.save(1, {"w": torch.ones(9)}).wait("done", 60)
    broken(tmp_path)
    ticket = checkpointer.save(2, {"w": torch.full((9,), 2.0)})
    retried = threading.Event()
    while checkpointer.health()["counters"]["file_retries_count"] == 0:
        retried.wait(0.02)
    repaired(tmp_path)
    ticket.wait("done", 60)
    assert ticket.error is None and checkpointer.health()["error"] is None
    checkpointer.close()


def test_ASY_09_a_single_file_whose_folder_fails_is_told_on_its_ticket(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "w.safetensors"
    neve.save({"w": torch.ones(9)}, path)
    os.rename(folder, tmp_path / "gone")
    for save in (neve.save, lambda *given: neve.async_save(*given).wait("done", 60)):
        with pytest.raises(OSError) as caught:
            save({"w": torch.zeros(9)}, path)
        assert caught.value.errno == errno.ENOENT and str(folder) in str(caught.value)
    os.rename(tmp_path / "gone", folder)
    assert neve.load(path)["w"].sum() == 9
    neve.async_save({"w": torch.zeros(9)}, path).wait("done", 60)
    assert neve.load(path)["w"].sum() == 0
