"""Is every block that one target holds preceded there by the block before it? Then its share of a prompt is bisected.

    root -- a -- b -- c          one run:  a b c, tip c
                  \\- d -- e      another:  d e,   tip e, hanging from b

Blocks that are stored in one go after each other are a *run*; what follows a run's tip extends it, what follows
another block hangs from that. A set of runs stays whole as long as only tips go from which nothing hangs, which is
how engines evict: a chain's last block first. Whoever removes anything else has made a hole; `shrank` says so, and
the caller stops believing in wholeness (and drops this object) until the target is forgotten.

A run keeps 32 bits per block. They are used once: when a tip has gone, to recognise the block that is the tip now.
A hole goes unseen if the first block removed out of order looks like such a tip: below one in a million for 4,000 runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof
from typing import NamedTuple

from router.kvcache.events import Key

LOW = 0xFFFF_FFFF
RUN_BYTES = 104  # a `_Run`, and its tip's low bits as a CPython int


class ContiguousRun(NamedTuple):
    """A run as it is saved."""

    parent: Key | None
    tip: Key | None
    lows: bytes


class _Run:
    __slots__ = ("lows", "parent", "tip")

    def __init__(self, parent: Key | None, lows: array[int]) -> None:
        self.parent = parent  # what it hangs from; None: it begins a chain
        self.lows = lows  # typecode "I"
        self.tip: Key | None = None  # None: only its low bits are known


class ContiguousRuns:
    """Of one target. After a method has said False, the object says nothing any more."""

    __slots__ = ("_forks", "_tips")

    def __init__(self, saved: Iterable[ContiguousRun] = ()) -> None:
        self._tips: dict[int, _Run] = {}  # by the low bits of the tip
        self._forks: dict[Key, int] = {}  # how many runs hang from a block
        for parent, tip, lows in saved:
            run = _Run(parent, array("I", lows))
            run.tip = tip
            self._tips[run.lows[-1]] = run
            self._hang(parent)

    def append(self, parent: Key | None, keys: Sequence[Key]) -> bool:
        """`keys` (some, new here) were stored one after the other, after `parent` (held; None: they begin a chain).
        False: two tips look alike."""
        lows = [key & LOW for key in keys]
        run = self._tips.get(parent & LOW) if parent is not None else None
        if parent is not None and run is not None and run.tip == parent:
            del self._tips[parent & LOW]
            run.lows.extend(lows)
        else:
            run = _Run(parent, array("I", lows))
            self._hang(parent)
        run.tip = keys[-1]
        return self._tips.setdefault(lows[-1], run) is run

    def remove(self, keys: Sequence[Key]) -> bool:
        """`keys` were removed, one after the other. False: that left a hole."""
        tips, forks = self._tips, self._forks
        for key in keys:
            run = tips.pop(key & LOW, None)
            if run is None or key in forks or (run.tip is not None and run.tip != key):
                return False
            run.tip = None
            run.lows.pop()
            if not run.lows:
                self._unhang(run.parent)
            elif tips.setdefault(run.lows[-1], run) is not run:
                return False
        return True

    def memory_bytes(self) -> int:
        """An estimate of what it takes, in one step: O(runs)."""
        tables = getsizeof(self._tips) + getsizeof(self._forks)
        return tables + sum(RUN_BYTES + getsizeof(run.lows) for run in self._tips.values())

    def __iter__(self) -> Iterator[ContiguousRun]:
        """All of them, for a snapshot: another object made of them knows the same."""
        return (ContiguousRun(run.parent, run.tip, run.lows.tobytes()) for run in self._tips.values())

    def _hang(self, parent: Key | None) -> None:
        if parent is not None:
            self._forks[parent] = self._forks.get(parent, 0) + 1

    def _unhang(self, parent: Key | None) -> None:
        if parent is not None and (left := self._forks.pop(parent) - 1):
            self._forks[parent] = left
