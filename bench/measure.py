"""How a row is measured: ours and the roofline in turns, in one run, so that both meet the same machine."""

import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Callable


class NotHere(Exception):
    """What a row needs is not on this machine."""


@dataclass
class Row:
    name: str
    value: float              # of the ratio's 90 % interval, the end nearer to the bar; the median where there is no bar
    unit: str
    bar: str | None
    min: float
    median: float
    n: int
    max: float = 0.0
    interval: list[float] = field(default_factory=list)
    facts: dict = field(default_factory=dict)

    def held(self) -> bool | None:
        if self.bar is None:
            return None
        sign, limit = self.bar.split()
        return self.value <= float(limit) if sign == "<=" else self.value >= float(limit)

    def document(self) -> dict:
        return asdict(self)


def pairs(ours: Callable[[], float], base: Callable[[], float], count: int, between: Callable[[], None] = lambda: None
          ) -> list[tuple[float, float]]:
    """`count` pairs, in alternating order, of what the two functions return."""
    result = []
    for i in range(count):
        first, second = (ours, base) if i % 2 == 0 else (base, ours)
        a = first()
        between()
        b = second()
        between()
        result.append((a, b) if i % 2 == 0 else (b, a))
    return result


def ratio_row(name: str, ratios: list[float], bar: str | None, unit: str = "ratio", **facts) -> Row:
    """The bootstrap says how far the median could be off; the bar is missed only when even the better end misses it."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    low, high = medians[100], medians[1899]
    median = statistics.median(ratios)
    value = median if bar is None else low if bar.startswith("<=") else high
    return Row(name, round(value, 4), unit, bar, round(min(ratios), 4), round(median, 4), len(ratios), round(max(ratios), 4),
               [round(low, 4), round(high, 4)], facts)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fastest(candidates: dict[str, Callable[[], float]], rounds: int = 1) -> str:
    """The name of the candidate with the least median time."""
    times = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            times[name].append(run())
    best = min(times, key=lambda name: statistics.median(times[name]))
    note("tried " + ", ".join(f"{name} {statistics.median(found):.3f} s" for name, found in times.items()))
    return best


def note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
