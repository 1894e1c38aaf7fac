"""Rows about the file tier, beside the best of fio's ways to do the same; on the machine's disk and on XFS in memory."""

import os
import resource
import statistics
import time
from pathlib import Path

import measure
import neve
import roofline
import states

PAIRS = 21


def write_disk(folder: Path) -> list[measure.Row]:
    return _write("disk", folder)


def write_loop(_: Path) -> list[measure.Row]:
    with roofline.LoopFileSystem() as folder:
        return _write("loop", folder)


def read_disk(folder: Path) -> list[measure.Row]:
    return _read("disk", folder, ">= 0.95")


def read_loop(_: Path) -> list[measure.Row]:
    with roofline.LoopFileSystem() as folder:
        return _read("loop", folder, ">= 0.8")


def _write(where: str, folder: Path) -> list[measure.Row]:
    """Rate from captured to durable, over fio's; and our CPU, over 1.5 x fio's and one hash pass."""
    state = states.gibibyte()
    size = states.total_bytes(state)
    fio = roofline.Fio(folder, size)
    best = measure.fastest({name: lambda way=way: fio.write(**way) for name, way in roofline.Fio.WRITES.items()})
    hash_seconds = roofline.hash_pass_seconds(next(iter(state.values()))) * size / 2**30
    our_cpu, fio_cpu, step = [], [], 0

    with neve.Checkpointer("bench", tiers=["ram:?slots=3", f"file:{folder}?keep=2"]) as checkpointer:
        def ours() -> float:
            nonlocal step
            step += 1
            ticket = checkpointer.save(step, state)
            cpu, began = _cpu_seconds(), time.perf_counter()
            ticket.wait("file")
            seconds = time.perf_counter() - began
            our_cpu.append(_cpu_seconds() - cpu)
            ticket.wait()
            return seconds

        def base() -> float:
            seconds = fio.write(**roofline.Fio.WRITES[best])
            fio_cpu.append(fio.cpu_seconds)
            return seconds

        for _ in range(4):
            ours()                     # until files are recycled
        our_cpu.clear()
        found = measure.pairs(ours, base, PAIRS)
    fio.close()
    gib = size / 2**30
    rates = dict(base=best, gib_per_s=round(gib / statistics.median(a for a, _ in found), 3),
                 base_gib_per_s=round(gib / statistics.median(b for _, b in found), 3))
    allowed = [1.5 * cpu + hash_seconds for cpu in fio_cpu]
    cpu_facts = dict(cpu_s_per_gib=round(statistics.median(our_cpu) / gib, 4), fio_cpu_s_per_gib=round(statistics.median(fio_cpu) / gib, 4),
                     hash_s_per_gib=round(hash_seconds / gib, 4))
    return [
        measure.ratio_row(f"file_write_{where}", [b / a for a, b in found], ">= 0.95", **rates),
        measure.ratio_row(f"file_write_cpu_{where}", [a / b for a, b in zip(our_cpu, allowed)], "<= 1", **cpu_facts),
    ]


def _read(where: str, folder: Path, bar: str) -> list[measure.Row]:
    """Rate of a verified restore into tensors that are there, from a file that is not in the page cache, over fio's read of the
    same file: where a file lies decides how fast a disk gives it."""
    state = states.gibibyte()
    size = states.total_bytes(state)
    with neve.Checkpointer("bench", tiers=[f"file:{folder}?keep=1"]) as checkpointer:
        ticket = checkpointer.save(1, state)
        ticket.wait("file")
        image = ticket.places["file"]
        fio = roofline.Fio(folder, size, Path(image))
        best = measure.fastest({name: lambda way=way: fio.read(**way) for name, way in roofline.Fio.READS.items()})

        def ours() -> float:
            _forget(image)
            return measure.timed(lambda: checkpointer.restore(into=state))

        ours()
        found = measure.pairs(ours, lambda: fio.read(**roofline.Fio.READS[best]), PAIRS)
    gib = size / 2**30
    return [measure.ratio_row(f"file_read_{where}", [b / a for a, b in found], bar, base=best,
                              gib_per_s=round(gib / statistics.median(a for a, _ in found), 3),
                              base_gib_per_s=round(gib / statistics.median(b for _, b in found), 3))]


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _forget(path: str) -> None:
    """Drops a file's pages from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
