"""An LRU cache of every size at once: one pass over the requests says how big a cache would still have each block.

The blocks of a prompt are a path in a tree, from the first block down, and a request touches a whole path, its last
block first, so that tails are evicted first. LRU keeps what was touched last, whatever its size (Mattson et al. 1970):
a block is still in a cache of C blocks exactly if its stack distance, the number of blocks touched since counting
itself, is at most C.

Of an earlier request's path only a tail can be what it touched last, for whoever came by later began at the top. So a
path is a few runs of blocks that the same request touched last, and in a run the distance grows by one per block: what
is counted is blocks per request, in a Fenwick tree (Fenwick 1994), and a request costs log(requests) per run instead of
log(blocks) per block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple


class DistanceRun(NamedTuple):
    """Leading blocks of a path, continued: the first of them has this stack distance, each next one more."""

    blocks: int
    distance: int
    request: int  # that touched them last


def count_within(runs: Iterable[DistanceRun], capacity: int) -> int:
    """Leading blocks that a cache of `capacity` blocks would still have: all at a distance up to it."""
    held = 0
    for run in runs:
        if run.distance > capacity:
            break
        held += min(run.blocks, capacity - run.distance + 1)
    return held


class StackDistances:
    """Remembers who touched which block last. A block's name must determine all before it, as chained hashes do."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # block -> the request that touched it last
        self._left = PrefixCounts()  # per request: the blocks that it touched last

    @property
    def blocks(self) -> int:
        """That a cache must hold to forget nothing."""
        return len(self._last)

    def runs(self, path: Sequence[int]) -> list[DistanceRun]:
        """Of the leading blocks of `path` that were ever touched, as things stand before it is."""
        found: list[DistanceRun] = []
        for request, same in groupby(map(self._last.get, path)):
            if request is None:
                break
            found.append(DistanceRun(sum(1 for _ in same), self._left.after(request) + 1, request))
        return found

    def touch(self, path: Sequence[int], runs: Iterable[DistanceRun] | None = None) -> None:
        """The next request has all of `path`. `runs`: what `runs(path)` has just said, where it was asked."""
        for run in self.runs(path) if runs is None else runs:
            self._left.add(run.request, -run.blocks)
        self._last.update(dict.fromkeys(path, len(self._left)))
        self._left.append(len(path))


class PrefixCounts:
    """A row of counts that grows at its end and can say what stands after any of them, both in log time."""

    def __init__(self) -> None:
        self._sums = [0]  # of index i: the counts (i - lowest bit of i, i]
        self._total = 0

    def __len__(self) -> int:
        return len(self._sums) - 1

    def append(self, count: int) -> None:
        at = len(self._sums)
        self._total += count
        step = 1
        while step < at & -at:
            count += self._sums[at - step]
            step <<= 1
        self._sums.append(count)

    def add(self, index: int, change: int) -> None:
        self._total += change
        at = index + 1
        while at < len(self._sums):
            self._sums[at] += change
            at += at & -at

    def after(self, index: int) -> int:
        """The sum of all counts behind `index`."""
        at, up_to = index + 1, 0
        while at:
            up_to += self._sums[at]
            at &= at - 1
        return self._total - up_to
