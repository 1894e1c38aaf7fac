"""Ranks as on hosts of their own: a disk and RAM of each, so that only what they tell each other shows what all of them have."""

import json
import os
import signal
import socket

from many_ranks_test import RESTORE, Ranks

# Each rank's own disk, and no sight of the others' RAM.
HOST = """
os.environ["NEVE_RAM_DIR"] = f"{folder}/ram{rank}"
disk = f"{folder}/disk{rank}"
os.makedirs(disk, exist_ok=True)
"""


def left(folder, rank):
    return sorted(int(name[5:17]) for name in os.listdir(folder / f"disk{rank}" / "job") if name.startswith("step-"))


def test_disks_of_each_host_retire_and_come_back(tmp_path):
    ranks = Ranks(tmp_path, 3, HOST, """
        ckpt = open_job(["ram:", f"file:{disk}?keep=2"])
        for step in range(1, 7):
            ticket = ckpt.save(step, state_of(step))
            for stage in ("complete", "complete:ram", "complete:file"):
                ticket.wait(stage, 60)
        ckpt.drain(60)
        say("saved")
        for step in range(7, 7 + rank):
            ckpt.save(step, state_of(step)).wait("done", 60)
        control = ckpt.health()["control"]
        assert control["on"] and control["joined"], control
        say("stopped")
        time.sleep(600)
    """)
    assert [[ranks.line(rank) for _ in range(2)] for rank in range(3)] == [["saved", "stopped"]] * 3
    for process in ranks.processes.values():
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
    for rank in range(3):
        assert left(tmp_path, rank) == [5, 6, *range(7, 7 + rank)], rank
    restored = Ranks(tmp_path, 3, HOST, RESTORE.replace("open_job()", 'open_job(["ram:", f"file:{disk}?keep=2"])')).ends()
    assert restored == {rank: "6" for rank in range(3)}


def test_a_save_in_ram_of_several_hosts_is_known_to_be_complete(tmp_path):
    ranks = Ranks(tmp_path, 2, HOST, """
        with open_job(["ram:"]) as ckpt:
            ckpt.save(1, state_of(1)).wait("complete", 60)
            if rank == 0:
                ticket = ckpt.save(2, state_of(2))
                try:
                    ticket.wait("complete", 1)
                except neve.Timeout as error:
                    assert "rank 1 of 2" in str(error), error
                else:
                    raise AssertionError("rank 1 has not saved")
            say("both")
    """)
    assert set(ranks.ends().values()) == {"both"}


def free_places(count):
    """Ports of the loopback that nobody has, as far as can be known."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    places = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return places


def test_ranks_meet_by_a_list_of_places(tmp_path):
    places = ",".join(free_places(3))
    key = tmp_path / "key"
    key.write_text("a key of the job, long enough\n")
    key.chmod(0o600)
    for life in (1, 2):
        ranks = Ranks(tmp_path, 3, """
            with open_job(group="static:" + os.environ["PLACES"]) as ckpt:
                life = int(os.environ["LIFE"])
                if life > 1:
                    found = ckpt.restore()
                    check(found)
                    assert found.step == life - 1
                ckpt.save(life, state_of(life)).wait("complete:file", 60)
                import json
                say(json.dumps(ckpt.health()["control"]))
        """, PLACES=places, LIFE=str(life), NEVE_KEY_FILE=str(key))
        for rank, text in ranks.ends().items():
            control = json.loads(text)
            assert control["on"] and (rank == 0 or control["place"] == places.split(",")[rank]), control


def test_a_rank_with_another_key_does_not_get_in(tmp_path):
    places = ",".join(free_places(2))
    ranks = Ranks(tmp_path, 2, """
        os.environ["NEVE_KEY"] = f"the key that rank {rank} alone has"
        try:
            open_job(group="static:" + os.environ["PLACES"], group_timeout=2)
        except neve.Timeout as error:
            say(error)
    """, PLACES=places)
    texts = ranks.ends()
    assert "rank 1" in texts[0], texts
    assert "another key" in texts[1], texts
