"""State that all ranks hold alike: hosts with memory of their own, kills, and DistributedDataParallel."""

import signal

from many_ranks_test import Ranks, listing
from worlds import run_worlds

# The first `FIRST_HOST` ranks see one RAM folder, the others another: as two hosts would.
HOSTS = """
host = 0 if rank < int(os.environ.get("FIRST_HOST", "2")) else 1
if os.environ.get("LOST_HOST") == str(host):
    host = 9
os.environ["NEVE_RAM_DIR"] += f"/host{host}"
def same(step, text="x"):
    return {"w": np.full((300, 200), step, np.float32), "step": step, "text": text}
def check_same(found, text="x"):
    assert found.state["step"] == found.step and found.state["text"] == text, found.state
    assert (found.state["w"] == found.step).all()
TIERS = ["ram:", "file:" + folder + "?every=100"]
"""

STOPPED = """
ckpt = open_job(TIERS, replicated=True)
for step in range(1, 4):
    ticket = ckpt.save(step, same(step))
    ticket.wait("done", 60)
say(" ".join(ticket.stages))
time.sleep(600)
"""


def kill(ranks):
    for process in ranks.processes.values():
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_each_host_keeps_one_image_and_a_killed_world_comes_back_from_memory(tmp_path, ram_folder):
    ranks = Ranks(tmp_path, 4, HOSTS, STOPPED)
    nothing = "captured done complete"
    assert [ranks.line(rank) for rank in range(4)] == ["captured ram done complete", nothing, "captured ram done complete", nothing]
    kill(ranks)
    for host in (0, 1):
        assert len([path for path in (ram_folder / f"host{host}").rglob("*") if path.is_file()]) == 3
    restored = Ranks(tmp_path, 4, HOSTS, """
        with open_job(TIERS, replicated=True) as ckpt:
            found = ckpt.restore()
            check_same(found)
            assert found.sources["ram"] > 0 and not found.sources.get("file"), found.sources
            assert ckpt.restore(into=same(0)).step == 3
            ticket = ckpt.save(100, same(100))
            ticket.wait("complete:file", 60)
            say(f"{found.step} {ckpt.latest().step} {ckpt.latest().world}")
    """).ends()
    assert set(restored.values()) == {"3 100 1"}
    save = listing(tmp_path / "job")[0]
    assert (save["step"], save["world"], save["complete"]) == (100, 1, True)
    # Another number of ranks, and none of this: from files.
    for world, options in ((3, "replicated=True"), (2, ""), (1, "")):
        Ranks(tmp_path, world, HOSTS, f"""
            with open_job(["file:" + folder], {options}) as ckpt:
                found = ckpt.restore()
                check_same(found)
                into = same(0)
                assert ckpt.restore(into=into).step == 100 and (into["w"] == 100).all()
        """).ends()


def test_what_one_hosts_memory_alone_holds_is_not_offered_to_all(tmp_path):
    ranks = Ranks(tmp_path, 3, HOSTS, """
        with open_job(TIERS, replicated=True) as ckpt:
            ckpt.save(100, same(100)).wait("complete:file", 60)
    """, STOPPED)
    assert [ranks.line(rank).split()[:2] for rank in range(3)] == [["captured", "ram"], ["captured", "done"], ["captured", "ram"]]
    kill(ranks)
    # The second host came back empty: what all reach lies in files. With both there again it would have been step 3.
    text = """
        with open_job(TIERS, replicated=True) as ckpt:
            found = ckpt.restore()
            check_same(found)
            say(found.step)
    """
    assert set(Ranks(tmp_path, 3, HOSTS, text, LOST_HOST="1").ends().values()) == {"100"}
    assert set(Ranks(tmp_path, 2, HOSTS, text, FIRST_HOST="0").ends().values()) == {"3"}   # all on the host that is left


def test_what_hosts_hold_otherwise_is_rank_0s(tmp_path):
    text = """
        ckpt = open_job(TIERS, replicated=True)
        mine = "rank 0's" if rank < 2 else "another's"
        ckpt.save(1, same(1, mine), to=["ram", "file"]).wait("complete:file", 60)
        ckpt.save(2, same(2, mine), to=["ram"]).wait("done", 60)
        say("saved")
        time.sleep(600)
    """
    ranks = Ranks(tmp_path, 3, HOSTS, text)
    assert [ranks.line(rank) for rank in range(3)] == ["saved"] * 3
    while "event=replica_differs step=1" not in ranks.processes[2].stderr.readline():   # told in the background
        assert ranks.processes[2].poll() is None
    kill(ranks)
    ends = Ranks(tmp_path, 3, HOSTS, """
        with open_job(TIERS, replicated=True) as ckpt:
            try:
                ckpt.restore(step=2)   # of which the second host has another state only
            except neve.Error as error:
                assert "rank 2" in str(error) and "did not hold the same state" in str(error), error
                say("named")
            found = ckpt.restore()     # step 1: rank 2 reads rank 0's from the files
            check_same(found, "rank 0's")
            say(found.step)
    """).ends()
    assert set(ends.values()) == {"named\n1"}


def test_a_replicated_model_of_ddp_comes_back_on_other_numbers_of_ranks(tmp_path):
    run_worlds(tmp_path, """
def build(seed):
    torch.manual_seed(seed)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.Linear(7, 3)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)

def train(rank, model, optimizer, steps):
    for step in steps:
        torch.manual_seed(step * 10 + rank)
        model(torch.randn(4, 9)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

def first(rank):
    model, optimizer = build(1)
    ckpt = neve.Checkpointer(f"{folder}/job", replicated=True)
    for step in range(3):
        train(rank, model, optimizer, [step])
        ticket = ckpt.save(step, {"model": model, "optimizer": optimizer, "seen": step})
    ticket.wait("complete:file", 60)
    assert ("file" in ticket.stages) == (rank == 0), ticket.stages
    ckpt.close()
    if rank == 0:
        torch.save([model.state_dict(), optimizer.state_dict()], f"{folder}/expected.pt")

def again(rank):
    model, optimizer = build(2)
    with neve.Checkpointer(f"{folder}/job", replicated=True) as ckpt:
        into = {"model": model, "optimizer": optimizer, "seen": None}
        found = ckpt.restore(into=into)
    assert found.step == 2 and into["seen"] == 2
    check_equal([model.state_dict(), optimizer.state_dict()], torch.load(f"{folder}/expected.pt"))
    train(rank, model, optimizer, [3])   # and it goes on
""", """
world_of(3, first)
world_of(3, again)
world_of(2, again)
""")
    save = listing(tmp_path / "job")[0]
    assert (save["world"], save["complete"], save["step"]) == (1, True, 2)
