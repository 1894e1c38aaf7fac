"""The storages that a torch pickle names: numbered as torch numbers them, and cut to what is used of them.

A view drags its whole storage into a file, and two dtypes over one storage are refused, by torch. Here a storage of which
less than half is used is cut to the parts in use (views that overlap stay views of one another), and a storage of several
dtypes is named untyped, which torch.load reads since 2.1.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

_CUT_BYTES_MIN = 4096   # smaller ones are not worth it
_CUT_ALIGNMENT = 16     # a multiple of every item size

Span = Tuple[int, int]   # bytes [begin, end) of a storage


Part = Tuple[Any, int, int]   # one record of the archive: bytes [begin, end) of a storage


class Plan(NamedTuple):
    """What is done otherwise than torch would with one storage."""

    begins: Sequence[int]   # where its parts begin, ascending; none: it is one part
    ends: Sequence[int]
    is_untyped: bool        # it has several dtypes

    def part(self, begin: int) -> Span:
        """The part that a view from `begin` on lies in."""
        at = max(bisect_right(self.begins, begin) - 1, 0)
        return self.begins[at], self.ends[at]


def plan(size: int, spans: Optional[Sequence[Span]], is_mixed: bool) -> Optional[Plan]:
    """The plan for a storage of `size` bytes; None: as torch does. spans: of its views; None: all of it is wanted."""
    parts: List[Span] = []
    if spans is not None and size >= _CUT_BYTES_MIN:
        for begin, end in sorted(spans):
            if begin == end:
                continue
            begin -= begin % _CUT_ALIGNMENT
            if parts and begin < parts[-1][1]:
                parts[-1] = (parts[-1][0], max(end, parts[-1][1]))
            else:
                parts.append((begin, end))
        if 2 * sum(end - begin for begin, end in parts) >= size:
            parts = []
        elif not parts:
            parts = [(0, 0)]   # nothing but empty views
    if not parts and not is_mixed:
        return None
    return Plan([begin for begin, _ in parts], [end for _, end in parts], is_mixed)


class Use:
    """How a storage is used by what has been pickled so far."""

    __slots__ = ("storage", "size", "dtype", "is_mixed", "spans", "is_typed")

    def __init__(self, storage: Any, size: int, dtype: Any) -> None:
        self.storage, self.size, self.dtype = storage, size, dtype
        self.is_mixed = False
        self.is_typed = False                    # it is named by its dtype whatever the plan: torch's own code does so
        self.spans: Optional[List[Span]] = []    # None: all of it


class Storages:
    """Keys of storages, given in the order in which they are first asked for."""

    def __init__(self, plans: Dict[int, Plan]) -> None:
        self.plans = plans
        self.parts: List[Part] = []
        self._keys: Dict[Tuple[int, int], int] = {}

    def key(self, identity: int, storage: Any, begin: int, end: int) -> int:
        """The key of bytes [begin, end) of a storage; identity: its `_cdata`."""
        key = self._keys.get((identity, begin))
        if key is None:
            key = self._keys[(identity, begin)] = len(self.parts)
            self.parts.append((storage, begin, end))
        return key
