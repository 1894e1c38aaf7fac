"""Rows about restoring on another number of ranks: what the plan costs before a byte is read, and what reading then does."""

import json
import os
import shutil
import statistics
import subprocess
import threading
from pathlib import Path

import measure
import numpy
import neve
from rows_file import _forget

PROGRAM = Path(__file__).parents[1] / "build" / "release" / "bin" / "neve_reshard_plan"
COUNT = 10_000
ROUNDS = 5


def plan() -> list[measure.Row]:
    """Milliseconds that one of 12 ranks takes from the parsed headers of 8 to its plan; and how much longer all of it, the parsing
    included, takes for four times the tensors."""
    few, many = _rounds(COUNT), _rounds(4 * COUNT)
    whole = [one["merge_ms"] + one["plan_ms"] / 12 for one in few]
    growth = [sum(_parts(b)) / sum(_parts(a)) for a, b in zip(few, many)]
    parse, merge, boxes = (round(statistics.median(column), 1) for column in zip(*map(_parts, few)))
    return [measure.ratio_row("plan_reshard", whole, "<= 200", unit="ms", parse_ms=parse, merge_ms=merge, boxes_of_all_ranks_ms=boxes,
                              tensors=COUNT, cores=os.cpu_count()),
            measure.ratio_row("plan_reshard_growth", growth, "<= 5", unit="x", tensors=4 * COUNT)]


FIND = Path(__file__).parents[1] / "build" / "release" / "bin" / "neve_find_save"
RANKS, SAVES, LISTING_MS = 16384, 4, 100


def find() -> list[measure.Row]:
    """What one of 16,384 ranks waits for, asks for and holds until it knows the newest complete of 4 saves, when each listing of a folder
    takes 100 ms. The newest lacks one rank. The names lie in memory."""
    found = []
    for i in range(ROUNDS):
        place = Path(os.environ["NEVE_RAM_DIR"]) / f"find-{i}"
        found.append(json.loads(subprocess.run([FIND, place, str(RANKS), str(SAVES), str(LISTING_MS)], check=True, capture_output=True,
                                               text=True).stdout))
        shutil.rmtree(place)
    return [measure.ratio_row("find_16k", [one["seconds"] for one in found], "<= 2", unit="s", files=2 * RANKS * SAVES - 2),
            measure.ratio_row("find_16k_requests", [one["listings"] for one in found], "<= 40", unit="listings", sizes=found[0]["sizes"]),
            measure.ratio_row("find_16k_memory", [one["mib"] for one in found], "<= 256", unit="MiB")]


def _rounds(tensors: int) -> list[dict]:
    return [json.loads(subprocess.run([PROGRAM, str(tensors)], check=True, capture_output=True, text=True).stdout) for _ in range(ROUNDS)]


def _parts(found: dict) -> tuple[float, float, float]:
    return found["parse_ms"], found["merge_ms"], found["plan_ms"]


TENSORS, ROWS, COLUMNS = 4, 65536, 1024   # float32: 256 MiB each
SAVERS, READERS = 4, 3


def reshard(folder: Path) -> list[measure.Row]:
    """Time of a verified restore of one GiB, cut by rows on 4 ranks, into 3 ranks, over that of the same bytes into the 4; and the bytes
    that the disk gave for it, over those wanted. From files that are not in the page cache. Ranks are threads of this process."""
    tiers = [f"file:{folder}"]

    def states(world: int) -> list[dict]:
        cuts = [(ROWS * rank // world, ROWS * (rank + 1) // world) for rank in range(world)]
        return [{f"w{i}": neve.Piece(numpy.zeros((end - begin, COLUMNS), numpy.float32), (ROWS, COLUMNS), (begin, 0))
                 for i in range(TENSORS)} for begin, end in cuts]

    def on_each(world: int, work) -> list:
        results = [None] * world

        def run(rank: int) -> None:
            results[rank] = work(rank)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def open_world(world: int, life: int) -> list:
        return on_each(world, lambda rank: neve.Checkpointer("bench", tiers, rank=rank, world=world, group=f"dir:{folder}/group-{life}"))

    saved = states(SAVERS)
    for state in saved:
        for i in range(TENSORS):
            piece = state[f"w{i}"]
            piece.tensor[:] = numpy.arange(piece.offset[0], piece.offset[0] + len(piece.tensor), dtype=numpy.float32)[:, None] + i
    writers = open_world(SAVERS, 0)
    on_each(SAVERS, lambda rank: writers[rank].save(1, saved[rank]).wait("complete:file", 600))
    readers, wanted = open_world(READERS, 1), states(READERS)
    images = [str(path) for path in folder.rglob("*.safetensors")]
    disk_bytes = []

    def restore(checkpointers: list, into: list) -> float:
        for image in images:
            _forget(image)
        before = _disk_bytes()
        seconds = measure.timed(lambda: on_each(len(into), lambda rank: checkpointers[rank].restore(into=into[rank])))
        if into is wanted:
            disk_bytes.append(_disk_bytes() - before)
        return seconds

    found = measure.pairs(lambda: restore(readers, wanted), lambda: restore(writers, saved), ROUNDS)
    for state in wanted:
        for i in range(TENSORS):
            piece = state[f"w{i}"]
            assert (piece.tensor[:, 0] == numpy.arange(piece.offset[0], piece.offset[0] + len(piece.tensor), dtype=numpy.float32) + i).all()
    for checkpointers in (readers, writers):
        on_each(len(checkpointers), lambda rank: checkpointers[rank].close())
    total = TENSORS * ROWS * COLUMNS * 4
    seconds = statistics.median(a for a, _ in found)
    return [measure.ratio_row("reshard_time", [a / b for a, b in found], "<= 1.3", gib_per_s=round(total / 2**30 / seconds, 3)),
            measure.ratio_row("reshard_bytes", [bytes_read / total for bytes_read in disk_bytes], "<= 1.05", unit="x")]


def _disk_bytes() -> int:
    """What the block devices have given to this process."""
    return int(Path("/proc/self/io").read_text().split("\nread_bytes: ")[1].split()[0])
