"""Rows about many small tensors: the cost of each, beside torch.save and torch.load."""

import io
import os
import statistics

import torch

import measure
import neve
import states
from rows_memory import Saves

PAIRS = 3                 # torch takes 8 s to save and 19 s to load these
COUNT = 100_000


def tiny_save() -> list[measure.Row]:
    """How many times less a tensor costs on the training thread than in torch.save to memory."""
    state = states.tiny(COUNT)
    with neve.Checkpointer("bench-tiny", tiers=["ram:?slots=3"]) as checkpointer:
        found = measure.pairs(Saves(checkpointer, state).save, lambda: measure.timed(lambda: torch.save(state, io.BytesIO())), PAIRS)
    return [_row("tiny_save", found, ">= 20")]


def tiny_load() -> list[measure.Row]:
    """How many times less a tensor costs in a verified restore from RAM than in torch.load from memory."""
    state = states.tiny(COUNT)
    buffer = io.BytesIO()
    torch.save(state, buffer)

    def base() -> float:
        buffer.seek(0)
        return measure.timed(lambda: torch.load(buffer))

    with neve.Checkpointer("bench-tiny", tiers=["ram:?slots=2"]) as checkpointer:
        checkpointer.save(0, state).wait("ram")
        found = measure.pairs(lambda: measure.timed(checkpointer.restore), base, PAIRS)
    return [_row("tiny_load", found, ">= 10")]


def _row(name: str, found, bar: str) -> measure.Row:
    ours, base = (statistics.median(pair[side] for pair in found) / COUNT * 1e6 for side in (0, 1))
    return measure.ratio_row(name, [b / a for a, b in found], bar, unit="x", us_per_tensor=round(ours, 3),
                             base_us_per_tensor=round(base, 2), cores=os.cpu_count())
