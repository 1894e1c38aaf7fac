"""Rows about single files in torch's format, beside torch.save and torch.load."""

import os
import statistics
from pathlib import Path

import torch

import measure
import neve
import roofline
import states
from rows_file import _forget

PAIRS = 5
TINY_PAIRS = 3            # torch takes 8 s to save and 19 s to load these
TINY_COUNT = 100_000


def save(folder: Path) -> list[measure.Row]:
    """How many times less time a durable save takes than torch.save and an fsync."""
    state = states.gibibyte()

    def ours() -> float:
        return measure.timed(lambda: neve.save(state, folder / "ours.pt"))

    ours()
    found = measure.pairs(ours, lambda: measure.timed(lambda: _durable(state, folder / "theirs.pt")), PAIRS)
    return [_times("torch_save", found, ">= 2", states.total_bytes(state))]


def load(folder: Path) -> list[measure.Row]:
    """How many times less time a load takes, checksums compared, than torch.load; neither file is in the page cache."""
    state = states.gibibyte()
    path = folder / "both.pt"
    neve.save(state, path)

    def cold(read) -> float:
        _forget(str(path))
        return measure.timed(read)

    found = measure.pairs(lambda: cold(lambda: neve.load(path)), lambda: cold(lambda: torch.load(path)), PAIRS)
    return [_times("torch_load", found, ">= 1.5", states.total_bytes(state))]


def async_block(folder: Path) -> list[measure.Row]:
    """How long a steady asynchronous save blocks, over the best copy of the same bytes by as many threads."""
    state = states.gibibyte()
    copier = roofline.Copier(list(state.values()))
    kind = copier.choose(copier.out)

    def ours() -> float:
        tickets = []
        seconds = measure.timed(lambda: tickets.append(neve.async_save(state, folder / "ours.pt")))
        tickets[0].wait("done")
        return seconds

    ours()
    found = measure.pairs(ours, copier.out, PAIRS)
    size = states.total_bytes(state) / 2**30
    return [measure.ratio_row("torch_async_block", [a / b for a, b in found], "<= 1.2", base=kind,
                              gib_per_s=round(size / statistics.median(a for a, _ in found), 3),
                              base_gib_per_s=round(size / statistics.median(b for _, b in found), 3), cores=os.cpu_count())]


def tiny(folder: Path) -> list[measure.Row]:
    """How many times less a tensor costs to save, and to load, than in torch.save and torch.load, to and from files."""
    state = states.tiny(TINY_COUNT)
    ours, theirs = folder / "ours.pt", folder / "theirs.pt"
    saves = measure.pairs(lambda: measure.timed(lambda: neve.save(state, ours)),
                          lambda: measure.timed(lambda: torch.save(state, theirs)), TINY_PAIRS)
    loads = measure.pairs(lambda: measure.timed(lambda: neve.load(ours)), lambda: measure.timed(lambda: torch.load(ours)), TINY_PAIRS)
    return [_tiny_row("torch_tiny_save", saves, ">= 5"), _tiny_row("torch_tiny_load", loads, ">= 3")]


def _durable(state, path: Path) -> None:
    torch.save(state, path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _times(name: str, found, bar: str, size: int) -> measure.Row:
    gib = size / 2**30
    return measure.ratio_row(name, [b / a for a, b in found], bar, unit="x",
                             gib_per_s=round(gib / statistics.median(a for a, _ in found), 3),
                             base_gib_per_s=round(gib / statistics.median(b for _, b in found), 3))


def _tiny_row(name: str, found, bar: str) -> measure.Row:
    mine, base = (statistics.median(pair[side] for pair in found) / TINY_COUNT * 1e6 for side in (0, 1))
    return measure.ratio_row(name, [b / a for a, b in found], bar, unit="x", us_per_tensor=round(mine, 2),
                             base_us_per_tensor=round(base, 2), cores=os.cpu_count())
