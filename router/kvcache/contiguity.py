"""Contiguity of one target's blocks: is every block preceded by its parent? Only then may `bisect` be used.

    root -- a -- b -- c          one run:  a b c, tip c
                  \\- d -- e      another:  d e,   tip e, child of b

Blocks stored one after the other form a *run*; blocks that follow a run's tip extend that run, blocks that follow
another block start a run below that block. The runs stay contiguous as long as only tips without child runs are
removed, which is how engines evict: a chain's last block first. Any other removal leaves a hole: `remove` returns
False, and the caller drops this object and walks until the target is forgotten.

A run keeps 32 bits per block. These bits are used once: when a tip was removed, to recognise the block that is the
tip now. A hole goes undetected if the first block removed out of order looks like such a tip: a chance below one in
a million for 4,000 runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from sys import getsizeof
from typing import Any, cast

from router.kvcache.bulk import pack_low_words
from router.kvcache.events import Key

LOW = 0xFFFF_FFFF
RUN_BYTES = 200  # a `_Run`, its array with some room, and its tip's low bits as a CPython int
LOW_BYTES = 4


# A run as it is stored in a snapshot: the block before it (None: it begins a chain), its tip (None: unknown), low bits.
SavedRun = tuple[Key | None, Key | None, bytes]


class _Run:
    __slots__ = ("lows", "parent", "tip")

    def __init__(self, parent: Key | None, lows: array[int]) -> None:
        self.parent = parent  # the block before the run; None: the run begins a chain
        self.lows = lows  # typecode "I"
        self.tip: Key | None = None  # None: only its low bits are known


class ContiguousRuns:
    """The runs of one target. The object is invalid after a method returned False."""

    __slots__ = ("_children", "_tips")

    def __init__(self, saved: Iterable[SavedRun] = ()) -> None:
        self._tips: dict[int, _Run] = {}  # by the low bits of the tip
        self._children: dict[Key, int] = {}  # number of child runs by block
        for parent, tip, lows in saved:
            run = _Run(parent, array("I", lows))
            run.tip = tip
            self._tips[run.lows[-1]] = run
            self._add_child(parent)

    def append(self, parent: Key | None, keys: list[Key]) -> bool:
        """Record that `keys` (at least one, none held before) were stored in order after `parent` (a held block;
        None: a chain begins). Return False if two tips have the same low bits.
        """
        lows = pack_low_words(cast("list[int]", keys))
        run = self._tips.get(parent & LOW) if parent is not None else None
        if parent is not None and run is not None and run.tip == parent:
            del self._tips[parent & LOW]
            run.lows.frombytes(lows)
        else:
            run = _Run(parent, array("I", lows))
            self._add_child(parent)
        run.tip = keys[-1]
        return self._tips.setdefault(keys[-1] & LOW, run) is run

    def remove(self, keys: Iterable[Key]) -> bool:
        """Record that `keys` were removed in this order. Return False if that left a hole."""
        tips, children = self._tips, self._children
        for key in keys:
            run = tips.pop(key & LOW, None)
            if run is None or key in children or (run.tip is not None and run.tip != key):
                return False
            run.tip = None
            run.lows.pop()
            if not run.lows:
                self._remove_child(run.parent)
            elif tips.setdefault(run.lows[-1], run) is not run:
                return False
        return True

    def is_followed(self, key: Key) -> bool:
        """Return whether another block follows `key`, which is held."""
        run = self._tips.get(key & LOW)
        return run is None or key in self._children or (run.tip is not None and run.tip != key)

    def memory_bytes(self, blocks: int) -> int:
        """Estimate the memory of all runs, which have `blocks` blocks in total."""
        return getsizeof(self._tips) + getsizeof(self._children) + RUN_BYTES * len(self._tips) + LOW_BYTES * blocks

    def tables(self) -> tuple[dict[Any, Any], ...]:
        """Return the tables, for a caller that takes the runs apart; the runs are invalid then."""
        return self._tips, self._children

    def __iter__(self) -> Iterator[SavedRun]:
        """Iterate over the runs for a snapshot; `ContiguousRuns(...)` restores them."""
        return ((run.parent, run.tip, run.lows.tobytes()) for run in self._tips.values())

    def _add_child(self, parent: Key | None) -> None:
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1

    def _remove_child(self, parent: Key | None) -> None:
        if parent is not None and (left := self._children.pop(parent) - 1):
            self._children[parent] = left
