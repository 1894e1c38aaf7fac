"""Process life: exit while saving, fork while saving, SIGKILL, a Checkpointer that is dropped."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from child import passes, script

import neve


def run(code, folder, timeout=120, **options):
    path = str(Path(neve.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": path, "FOLDER": str(folder)}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout,
                          env=environment, **options)


START = """
    import os, sys, threading, neve, torch
    folder = os.environ["FOLDER"]
    ckpt = neve.Checkpointer(folder + "/run", ["ram:", "file:" + folder + "?rate=8M"], job="run")
    ckpt.save(1, {"w": torch.zeros(1)}).wait("done", 60)
    ckpt.save(2, {"w": torch.ones(2 << 20)})
"""


@pytest.mark.parametrize("ending, code", [("pass", 0), ("raise RuntimeError('x')", 1), ("sys.exit(3)", 3)])
def test_ASY_03_an_exit_while_saving_finishes_the_save_and_keeps_the_exit_code(tmp_path, job, ending, code):
    done = run(textwrap.dedent(START) + ending, tmp_path)
    assert done.returncode == code, done.stderr
    notices = [line for line in done.stderr.splitlines() if line.startswith("neve:")]
    assert len(notices) == 1 and "step 2" in notices[0], done.stderr
    found = job(tmp_path / "run", [f"file:{tmp_path}"], job="run").restore()
    assert found.step == 2 and found.state["w"].sum() == 2 << 20


def test_ASY_03_after_a_hard_exit_the_previous_save_is_the_newest_in_files(tmp_path, job):
    done = run(textwrap.dedent(START) + "os._exit(0)", tmp_path)
    assert done.returncode == 0
    found = job(tmp_path / "run", [f"file:{tmp_path}"], job="run").restore()
    assert found.step in (1, 2) and (found.step == 1 or found.state["w"].sum() == 2 << 20)


def test_ASY_03_an_exit_finishes_a_file_being_saved(tmp_path):
    done = run("""
        import os, neve, torch
        neve.async_save({"w": torch.ones(8 << 20)}, os.environ["FOLDER"] + "/a.safetensors")
    """, tmp_path)
    assert done.returncode == 0, done.stderr
    assert neve.load(tmp_path / "a.safetensors")["w"].sum() == 8 << 20


def test_a_clean_exit_says_nothing(tmp_path):
    done = run("""
        import os, neve, torch
        ckpt = neve.Checkpointer(os.environ["FOLDER"] + "/run")
        ckpt.save(1, {"w": torch.zeros(1)}).wait("done", 60)
    """, tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_ASY_07_forked_children_neither_hang_nor_write(tmp_path, job):
    done = run(textwrap.dedent(START) + textwrap.dedent("""
        ticket = ckpt.save(3, {"w": torch.full((2 << 20,), 3.0)})
        children = []
        for index in range(4):
            child = os.fork()
            if child == 0:
                import json, decimal
                for call in (lambda: ckpt.save(9, {"w": torch.zeros(1)}), ckpt.restore, ckpt.steps, ticket.wait, ckpt.health):
                    try:
                        call()
                        os._exit(1)
                    except neve.Invalid:
                        pass
                list(range(100000))
                del ckpt, ticket
                sys.exit(7)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [7] * 4, codes
        ticket.wait("done", 60)
        ckpt.close()
    """), tmp_path)
    assert done.returncode == 0, done.stderr
    found = job(tmp_path / "run", [f"file:{tmp_path}"], job="run").restore()
    assert found.step == 3 and found.state["w"][-1] == 3


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_ASY_07_a_forked_child_saves_files_in_the_background_too(tmp_path, name):
    passes(script("""
        import os, signal, sys, neve, torch
        torch.set_num_threads(1)   # torch's own threads do not outlive a fork
        path = os.environ["FOLDER"] + "/" + os.environ["NAME"]
        neve.async_save({"w": torch.zeros(1000)}, path).wait()     # the parent's thread is there, and not in the child
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            neve.async_save({"w": torch.ones(1000)}, path).wait()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert (neve.load(path)["w"] == 1).all()
        neve.async_save({"w": torch.full((1000,), 2.0)}, path).wait()
        assert (neve.load(path)["w"] == 2).all()
    """), tmp_path, variables={"NAME": name})


def test_a_loader_with_forked_workers_runs_beside_saves(tmp_path):
    done = run("""
        import os, neve, torch
        from torch.utils.data import DataLoader
        ckpt = neve.Checkpointer(os.environ["FOLDER"] + "/run")
        for step, batch in enumerate(DataLoader(torch.arange(32.0), batch_size=8, num_workers=2)):
            ticket = ckpt.save(step, {"w": batch})
        ticket.wait("done", 60)
        assert ckpt.restore().state["w"].tolist() == list(range(24, 32))
        ckpt.close()
    """, tmp_path)
    assert done.returncode == 0, done.stderr


def test_after_sigkill_the_state_comes_back_from_ram(tmp_path, job):
    done = run("""
        import os, signal, neve, torch
        folder = os.environ["FOLDER"]
        ckpt = neve.Checkpointer(folder + "/run", ["ram:", "file:" + folder + "?every=100"], job="run")
        ckpt.save(0, {"w": torch.zeros(1000)}).wait("done", 60)
        ckpt.save(5, {"w": torch.full((1000,), 5.0)}).wait("ram", 60)
        os.kill(os.getpid(), signal.SIGKILL)
    """, tmp_path)
    assert done.returncode == -9
    found = job(tmp_path / "run", ["ram:", f"file:{tmp_path}?every=100"], job="run").restore()
    assert found.step == 5 and found.state["w"][0] == 5 and found.sources.get("ram", 0) >= 4000


def test_a_dropped_one_finishes_what_is_in_flight(tmp_path, job):
    checkpointer = neve.Checkpointer(tmp_path / "run")
    checkpointer.save(1, {"w": torch.ones(1 << 20)})
    del checkpointer
    assert job(tmp_path / "run").restore().step == 1


def test_an_exit_from_another_thread_does_not_hang(tmp_path):
    done = run(textwrap.dedent(START) + "threading.Thread(target=lambda: sys.exit(5)).start()", tmp_path)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_leaves_a_program_that_waits(tmp_path):
    import signal
    import time

    path = str(Path(neve.__file__).parent.parent)
    code = textwrap.dedent(START) + "print('waiting', flush=True)\nckpt.save(3, {'w': torch.zeros(1)}).wait('file')"
    code = code.replace("?rate=8M", "?rate=256K")
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + code   # ignored in a shell's background
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": path, "FOLDER": str(tmp_path)})
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    time.sleep(1)
    child.send_signal(signal.SIGINT)   # and the exit, which would finish the save, too
    try:
        _, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in errors or "interrupted" in errors
