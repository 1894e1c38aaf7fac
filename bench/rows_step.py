"""The row about training beside a flush: how much longer steps get while the last save is being written."""

import statistics
import time
from pathlib import Path

import torch

import measure
import neve
import states

PAIRS = 21
STEPS = 6


def step_inflation(folder: Path) -> list[measure.Row]:
    """The median step of those right after a save (the save itself not counted), over that of as many without one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    state = states.gibibyte()
    left, right = torch.randn(768, 768), torch.randn(768, 768)
    stream = torch.zeros(24 << 20)
    step = 0

    def train() -> float:
        began = time.perf_counter()
        for _ in range(4):
            torch.mm(left, right)
        stream.mul_(0.5).add_(1.0)           # memory traffic, as an optimizer makes
        return time.perf_counter() - began

    with neve.Checkpointer("bench", tiers=["ram:?slots=3", f"file:{folder}?keep=2"]) as checkpointer:
        def with_save() -> float:
            nonlocal step
            step += 1
            ticket = checkpointer.save(step, state)
            seconds = statistics.median(train() for _ in range(STEPS))
            ticket.wait()
            return seconds

        def without() -> float:
            return statistics.median(train() for _ in range(STEPS))

        for _ in range(4):
            with_save()
        found = measure.pairs(with_save, without, PAIRS)
    torch.set_num_threads(threads)
    step_ms = statistics.median(base for _, base in found) * 1e3
    return [measure.ratio_row("step_inflation", [a / b for a, b in found], "<= 1.05", step_ms=round(step_ms, 1), steps_per_window=STEPS)]
