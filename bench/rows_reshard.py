"""Rows about restoring on another number of ranks: what the plan costs before a byte is read."""

import json
import os
import statistics
import subprocess
from pathlib import Path

import measure

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


def _rounds(tensors: int) -> list[dict]:
    return [json.loads(subprocess.run([PROGRAM, str(tensors)], check=True, capture_output=True, text=True).stdout) for _ in range(ROUNDS)]


def _parts(found: dict) -> tuple[float, float, float]:
    return found["parse_ms"], found["merge_ms"], found["plan_ms"]
