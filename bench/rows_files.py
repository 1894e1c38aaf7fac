"""Rows about the command and single files: verify, convert, safetensors beside the reference library, one tensor out of a large archive."""

import os
import shutil
import statistics
import subprocess
from pathlib import Path

import safetensors.torch
import torch

import measure
import neve
import roofline
import states
from rows_file import _forget

COMMAND = Path(__file__).parents[1] / "build" / "release" / "bin" / "neve"
PAIRS = 5
VERIFY_GIB = 4 if os.environ.get("NEVE_LONG") else 1      # the size that the bar speaks of takes minutes on a slow disk
OPEN_GIB = 2 if os.environ.get("NEVE_LONG") else 1


def verify(folder: Path) -> list[measure.Row]:
    """How long verify of a cold file takes, over the best of fio's ways to read it."""
    path = folder / "x.safetensors"
    state = states.gibibyte()
    neve.save(_copies(state, VERIFY_GIB), path)
    fio = roofline.Fio(folder, path.stat().st_size, path)
    best = measure.fastest({name: lambda way=way: fio.read(**way) for name, way in roofline.Fio.READS.items()})

    def ours() -> float:
        _forget(str(path))
        return measure.timed(lambda: subprocess.run([COMMAND, "verify", "--quiet", path], check=True))

    found = measure.pairs(ours, lambda: fio.read(**roofline.Fio.READS[best]), PAIRS)
    return [_row("verify", [a / b for a, b in found], "<= 1.1", found, path.stat().st_size, base=best)]


def convert(folder: Path) -> list[measure.Row]:
    """How long a conversion of a .pt into .safetensors takes, checksums compared, over cp and an fsync of the same file."""
    source, ours_path, copy = folder / "x.pt", folder / "x.safetensors", folder / "copy.pt"
    neve.save(states.gibibyte(), source)

    def ours() -> float:
        _forget(str(source))
        return measure.timed(lambda: subprocess.run([COMMAND, "convert", "--quiet", source, ours_path], check=True))

    def base() -> float:
        _forget(str(source))
        return measure.timed(lambda: _copy(source, copy))

    found = measure.pairs(ours, base, PAIRS)
    return [_row("convert", [a / b for a, b in found], "<= 1.2", found, source.stat().st_size)]


def load(folder: Path) -> list[measure.Row]:
    """How many times less time a cold load of a .safetensors file takes, digests compared, than the reference library's, touched."""
    path = folder / "x.safetensors"
    neve.save(states.gibibyte(), path)

    def cold(read) -> float:
        _forget(str(path))
        return measure.timed(read)

    def touched() -> None:
        for tensor in safetensors.torch.load_file(path).values():
            tensor.view(torch.uint8).view(-1)[::4096].sum()   # it is mapped: reading it is what loads it

    found = measure.pairs(lambda: cold(lambda: neve.load(path)), lambda: cold(touched), PAIRS)
    return [_row("safetensors_load", [b / a for a, b in found], ">= 1", found, path.stat().st_size, unit="x")]


def open_one(folder: Path) -> list[measure.Row]:
    """How long it takes to open a large cold .pt and read 1 MiB of it, over torch.load(mmap=True) and the same read."""
    path = folder / "x.pt"
    state = {"first": torch.ones(1 << 18), **_copies(states.gibibyte(), OPEN_GIB)}
    neve.save(state, path)

    def cold(load) -> float:
        _forget(str(path))
        return measure.timed(lambda: load(path)["first"].clone())

    found = measure.pairs(lambda: cold(lambda p: neve.load(p, mmap=True)), lambda: cold(lambda p: torch.load(p, mmap=True)), 4 * PAIRS + 1)
    ours, base = (statistics.median(pair[side] for pair in found) * 1e3 for side in (0, 1))
    return [measure.ratio_row("torch_open_one", [a / b for a, b in found], "<= 1", ms=round(ours, 2), base_ms=round(base, 2),
                              gib=OPEN_GIB)]


def _copies(state: dict, count: int) -> dict:
    return {f"part{i}": {name: tensor.clone() for name, tensor in state.items()} for i in range(count)}


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _row(name: str, ratios, bar: str, found, size: int, **facts) -> measure.Row:
    gib = size / 2**30
    ours, base = (round(gib / statistics.median(pair[side] for pair in found), 3) for side in (0, 1))
    return measure.ratio_row(name, ratios, bar, gib_per_s=ours, base_gib_per_s=base, **facts)
