"""Rows about memory: how long save() holds training up, restore from RAM, and what neve allocates for itself."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

import measure
import neve
import roofline
import states

PAIRS = 21


def save_block() -> list[measure.Row]:
    """Wall time of a steady save(), digests included, over the best parallel copy of the same bytes."""
    state = states.gibibyte()
    copier = roofline.Copier(list(state.values()))
    kind = copier.choose(copier.out)
    with neve.Checkpointer("bench-save", tiers=["ram:?slots=3"]) as checkpointer:
        found = measure.pairs(Saves(checkpointer, state).save, copier.out, PAIRS)
    return [_copy_row("save_block", found, "<= 1.1", kind)]


def save_block_strided() -> list[measure.Row]:
    """The same for permuted and padded tensors, over torch's own copy of each to a contiguous one."""
    state = states.strided()
    targets = {name: torch.zeros(tensor.shape) for name, tensor in state.items()}

    def base() -> float:
        return measure.timed(lambda: [targets[name].copy_(tensor) for name, tensor in state.items()])

    torch.set_num_threads(roofline.CORES)
    base()
    with neve.Checkpointer("bench-strided", tiers=["ram:?slots=3"]) as checkpointer:
        found = measure.pairs(Saves(checkpointer, state).save, base, PAIRS)
    return [_copy_row("save_block_strided", found, None, "torch copy_")]


def ram_read() -> list[measure.Row]:
    """Rate of a verified restore from RAM into tensors that are there, over the best parallel copy."""
    state = states.gibibyte()
    with neve.Checkpointer("bench-read", tiers=["ram:?slots=2"]) as checkpointer:
        checkpointer.save(0, state).wait("ram")
        copier = roofline.Copier(list(state.values()))
        copier.out()
        kind = copier.choose(copier.back)

        def restore() -> float:
            return measure.timed(lambda: checkpointer.restore(into=state))

        restore()
        found = measure.pairs(restore, copier.back, PAIRS)
    ratios = [base / ours for ours, base in found]
    return [measure.ratio_row("ram_read", ratios, ">= 0.9", base=kind, gib_per_s=_rate(found, 0), base_gib_per_s=_rate(found, 1))]


def anon_memory() -> list[measure.Row]:
    """The most anonymous memory beyond what the program had before: saves to RAM and file, and a restore, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="neve-bench-") as folder:
        result = subprocess.run([sys.executable, __file__, folder], stdout=subprocess.PIPE, text=True, check=True)
    extra = json.loads(result.stdout)["extra_bytes"] / 2**20
    return [measure.Row("anon_memory", round(extra, 1), "MiB", "<= 64", round(extra, 1), round(extra, 1), 1, round(extra, 1))]


class Saves:
    """Steady saves: the slots are made, the layout is known, and the one before has left nothing to wait for."""

    def __init__(self, checkpointer, state):
        self._checkpointer, self._state, self._step = checkpointer, state, 0
        for _ in range(4):
            self.save()

    def save(self) -> float:
        self._step += 1
        began = time.perf_counter()
        ticket = self._checkpointer.save(self._step, self._state)
        seconds = time.perf_counter() - began
        ticket.wait()
        return seconds


def _rate(found, side: int) -> float:
    times = sorted(pair[side] for pair in found)
    return round(1 / times[len(times) // 2], 2)


def _copy_row(name: str, found, bar, kind: str) -> measure.Row:
    ratios = [ours / base for ours, base in found]
    return measure.ratio_row(name, ratios, bar, base=kind, gib_per_s=_rate(found, 0), base_gib_per_s=_rate(found, 1))


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise measure.NotHere("/proc/self/status has no RssAnon")


def _anon_child(folder: str) -> None:
    state = states.gibibyte()
    before = most = _anonymous_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, _anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with neve.Checkpointer("bench-anon", tiers=["ram:?slots=3", f"file:{folder}?keep=2"]) as checkpointer:
        for step in range(5):
            checkpointer.save(step, state).wait()
        checkpointer.restore(into=state)
    done.set()
    watcher.join()
    print(json.dumps({"extra_bytes": most - before}))


if __name__ == "__main__":
    os.environ.setdefault("NEVE_LOG", "error")
    _anon_child(sys.argv[1])
