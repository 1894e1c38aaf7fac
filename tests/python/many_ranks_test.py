"""Jobs of several ranks, each a process of its own, that meet through a shared folder, torch.distributed's store or a function."""

import json
import os
import re
import signal
import subprocess

from child import COMMAND, script, start

# For every rank's script: who it is, its Checkpointer and its state.
RANK = """
import os, sys, time
import numpy as np
import neve
folder, rank, world = os.environ["FOLDER"], int(os.environ["RANK_NUMBER"]), int(os.environ["RANKS"])
def open_job(tiers=None, **options):
    options.setdefault("group", f"dir:{folder}/group")
    options.setdefault("group_timeout", 120)
    return neve.Checkpointer(f"{folder}/job", tiers, rank=rank, world=world, **options)
def state_of(step):
    return {"w": np.full((50, 20), step * 100 + rank, np.float32), "step": step, "rank": rank}
def check(found):
    assert found.state["rank"] == rank and found.state["step"] == found.step, found.state
    assert (found.state["w"] == found.step * 100 + rank).all()
def say(text):
    print(text, flush=True)
"""


class Ranks:
    """Processes of one world, running one script."""

    def __init__(self, folder, world, *parts, only=None, **variables):
        self.processes = {rank: start(script(RANK, *parts), folder,
                                      variables={"RANK_NUMBER": str(rank), "RANKS": str(world), **variables})
                          for rank in (range(world) if only is None else only)}

    def line(self, rank):
        return self.processes[rank].stdout.readline().strip()

    def ends(self, timeout=180):
        """What each printed; every exit must be 0."""
        texts = {}
        try:
            for rank, process in self.processes.items():
                out, err = process.communicate(timeout=timeout)
                assert process.returncode == 0, f"rank {rank}: exit {process.returncode}\n{out}\n{err}"
                texts[rank] = out.strip()
        finally:
            for process in self.processes.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return texts


def listing(place):
    done = subprocess.run([COMMAND, "ls", "--json", str(place)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["saves"]


RESTORE = """
with open_job() as ckpt:
    found = ckpt.restore()
    check(found)
    into = state_of(0)
    assert ckpt.restore(into=into).step == found.step
    assert (into["w"] == found.step * 100 + rank).all()
    say(found.step)
"""


def test_DCP_03_a_killed_rank_brings_all_back_to_the_step_that_all_have(tmp_path):
    ranks = Ranks(tmp_path, 3, """
        ckpt = open_job(["file:" + folder])
        for step in range(1, 6):
            if rank == 1 and step == 4:
                say("stopped")
                time.sleep(600)
            ckpt.save(step, state_of(step)).wait("done", 60)
        say("saved")
        time.sleep(600)
    """)
    assert [ranks.line(rank) for rank in range(3)] == ["saved", "stopped", "saved"]
    for process in ranks.processes.values():
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
    saves = listing(tmp_path / "job")
    assert [(save["step"], save["complete"], save["missing_ranks"]) for save in saves] == [
        (5, False, [1]), (4, False, [1]), (3, True, []), (2, True, []), (1, True, [])]
    restored = Ranks(tmp_path, 3, """
        with open_job(["file:" + folder]) as ckpt:
            assert [int(save) for save in ckpt.steps()] == [5, 4, 3, 2, 1] and ckpt.latest() == 3
            found = ckpt.restore()
            check(found)
            ticket = ckpt.save(4, state_of(4))
            ticket.wait("complete", 60)
            ticket.wait("complete:file", 60)
            say(f"{found.step} {ckpt.latest().save_id}")
    """).ends()
    assert set(restored.values()) == {"3 i0002.s000000"} or len(set(restored.values())) == 1
    assert all(text.startswith("3 i0002.") for text in restored.values())


def test_a_killed_world_comes_back_from_ram(tmp_path):
    ranks = Ranks(tmp_path, 2, """
        ckpt = open_job(["ram:", "file:" + folder + "?every=100"])
        for step in range(1, 4):
            ckpt.save(step, state_of(step)).wait("ram", 60)
        say("saved")
        time.sleep(600)
    """)
    assert [ranks.line(rank) for rank in range(2)] == ["saved", "saved"]
    for process in ranks.processes.values():
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
    restored = Ranks(tmp_path, 2, """
        with open_job(["ram:", "file:" + folder + "?every=100"]) as ckpt:
            found = ckpt.restore()
            check(found)
            assert found.sources["ram"] > 0, found.sources
            say(found.step)
    """).ends()
    assert restored == {0: "3", 1: "3"}


def test_DCP_08_a_rank_that_does_not_come_is_named_to_the_others(tmp_path):
    ends = Ranks(tmp_path, 3, """
        try:
            open_job(group_timeout=1)
        except neve.Timeout as error:
            say(error)
    """, only=(0, 2)).ends()
    for text in ends.values():
        assert "rank 1" in text and "open: the job" in text, text


def test_two_jobs_in_the_tiers_of_one_world_are_named(tmp_path):
    for rank in (0, 1):
        os.mkdir(tmp_path / f"host{rank}")
    alone = """
        with neve.Checkpointer(f"{folder}/job", [f"file:{folder}/host{rank}"], rank=0, world=1) as ckpt:
            ckpt.save(1, {"x": 1}).wait("done", 60)
    """
    Ranks(tmp_path, 2, alone).ends()
    ends = Ranks(tmp_path, 2, """
        try:
            open_job([f"file:{folder}/host{rank}"])
        except neve.Invalid as error:
            say(error)
    """).ends()
    assert ends[0] == ends[1] and len(re.findall(r"[0-9a-f]{32}", ends[0])) == 2 and "host1/job" in ends[0]


def test_what_one_rank_cannot_take_is_everybodys_error(tmp_path):
    Ranks(tmp_path, 2, """
        with open_job() as ckpt:
            ckpt.save(1, state_of(1)).wait("complete", 60)
            into = state_of(0)
            if rank == 1:
                into["more"] = np.zeros(3)
            try:
                ckpt.restore(into=into)
                say("restored")
            except neve.Invalid as error:
                assert "rank 1" in str(error) and "more" in str(error), error
                say("refused")
            if rank == 0:   # its own part is filled in, the other rank's is not
                try:
                    ckpt.save(2, into)
                except neve.Invalid as error:
                    assert "every rank" in str(error), error
            into.pop("more", None)
            assert ckpt.restore(into=into, atomic=True).step == 1
            ckpt.save(3, into).wait("complete", 60)
    """).ends()


def test_an_interrupted_restore_is_told_to_the_others(tmp_path):
    Ranks(tmp_path, 2, """
        class Interrupting:
            def state_dict(self): return {"x": 1}
            def load_state_dict(self, state):
                if rank == 1:
                    raise KeyboardInterrupt
        with open_job() as ckpt:
            ckpt.save(1, {"o": Interrupting(), **state_of(1)}).wait("complete", 60)
            try:
                ckpt.restore(into={"o": Interrupting(), **state_of(0)})
                assert False
            except KeyboardInterrupt:
                assert rank == 1
            except neve.Unavailable as error:
                assert rank == 0 and "rank 1" in str(error) and "KeyboardInterrupt" in str(error), error
    """).ends()


def test_a_save_that_fails_on_one_rank_alone_does_not_part_the_ranks(tmp_path):
    ends = Ranks(tmp_path, 2, """
        with open_job() as ckpt:
            ckpt.save(1, state_of(1)).wait("complete", 60)
            try:
                ckpt.save(2, state_of(2), tags={"bad": [1]} if rank == 1 else None)
            except neve.Invalid:
                assert rank == 1
            ticket = ckpt.save(3, state_of(3))
            ticket.wait("complete", 60)
            found = ckpt.restore()
            check(found)
            say(found.step)
    """).ends()
    assert ends == {0: "3", 1: "3"}


def test_keep_counts_what_all_ranks_have(tmp_path):
    Ranks(tmp_path, 2, """
        with open_job([f"file:{folder}?keep=2"]) as ckpt:
            for step in range(1, 8):
                ckpt.save(step, state_of(step)).wait("complete", 60)
            ckpt.save(8, state_of(8)).wait("done", 60)
    """).ends()
    saves = listing(tmp_path / "job")
    assert [save["step"] for save in saves if save["complete"]][:2] == [8, 7]
    assert len(saves) <= 3


def test_DCP_03_what_ranks_do_not_have_alike_is_named_to_a_world_of_another_size(tmp_path):
    Ranks(tmp_path, 2, "with open_job() as ckpt: ckpt.save(1, state_of(1)).wait('complete', 60)").ends()
    ends = Ranks(tmp_path, 3, """
        with open_job() as ckpt:
            try:
                ckpt.restore()
            except neve.Unsupported as error:
                say(error)
    """).ends()
    assert len(ends) == 3 and all("the ranks' states differ" in text and "take_rank0" in text for text in ends.values())


TORCH = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous{os.environ.get('TRY', '')}", rank=rank, world_size=world)
"""


def test_torch_distributed_is_found_and_its_collectives_are_left_alone(tmp_path):
    save = """
        import torch
        with neve.Checkpointer(f"{folder}/job") as ckpt:          # rank, world and store as torch.distributed says
            for step in range(1, 21):
                ticket = ckpt.save(step, {"w": torch.full((100,), float(step * 100 + rank)), "step": step})
                total = torch.ones(1)
                dist.all_reduce(total)                            # at once, on the default group
                assert total.item() == world
            ticket.wait("complete", 120)
            found = ckpt.restore()
            assert found.step == 20 and (found.state["w"] == 2000 + rank).all()
        def gather(message):                                      # a function of the program's
            all_messages = [None] * world
            dist.all_gather_object(all_messages, message)
            return all_messages
        with neve.Checkpointer(f"{folder}/job", group=gather) as ckpt:
            assert ckpt.restore().step == 20
            ckpt.save(21, {"w": torch.full((100,), 1.0)}).wait("complete", 120)
        with neve.Checkpointer(f"{folder}/job", group="torch") as ckpt:
            say(ckpt.restore().step)
        dist.destroy_process_group()
    """
    assert Ranks(tmp_path, 2, TORCH, save).ends() == {0: "21", 1: "21"}
    assert not (tmp_path / "group").exists()
