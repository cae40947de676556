"""LRU stack distances: one pass over the requests gives the hits of an LRU cache of every size.

The blocks of a prompt are a path in a tree, from the first block down, and a request touches a whole path, its last
block first, so that tails are evicted first. LRU keeps what was touched last, whatever its size (Mattson et al. 1970):
a block is still in a cache of C blocks exactly if its stack distance, the number of blocks touched since then, itself
included, is at most C.

Later requests touch an earlier one's path from the top, so the blocks that the earlier one touched last are a tail of
it. A path is therefore a few runs of blocks that the same request touched last, and in a run the distance grows by one
per block. Blocks are counted per request, in a Fenwick tree (Fenwick 1994): a request costs log(requests) per run
instead of log(blocks) per block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple


class DistanceRun(NamedTuple):
    """A run of blocks in a path: the first has this stack distance, each next one a distance larger by 1."""

    blocks: int
    distance: int
    request: int  # number of the one that touched them last


def count_within(runs: Iterable[DistanceRun], capacity: int) -> int:
    """Return how many leading blocks a cache of `capacity` blocks still holds: those at a distance up to it."""
    held = 0
    for run in runs:
        if run.distance > capacity:
            break
        held += min(run.blocks, capacity - run.distance + 1)
    return held


class StackDistances:
    """The last request of each block. A block's name must determine all blocks before it, as chained hashes do."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # block -> the request that touched it last
        self._left = PrefixCounts()  # per request: number of blocks that it touched last

    @property
    def blocks(self) -> int:
        """Number of different blocks: the size of a cache that evicts nothing."""
        return len(self._last)

    def runs(self, path: Sequence[int]) -> list[DistanceRun]:
        """Return the runs of the leading blocks of `path` that were touched before."""
        found: list[DistanceRun] = []
        for request, same in groupby(map(self._last.get, path)):
            if request is None:
                break
            found.append(DistanceRun(sum(1 for _ in same), self._left.after(request) + 1, request))
        return found

    def touch(self, path: Sequence[int], runs: Iterable[DistanceRun] | None = None) -> None:
        """Touch all of `path` by the next request. `runs`: the result of `runs(path)`, if the caller has it."""
        for run in self.runs(path) if runs is None else runs:
            self._left.add(run.request, -run.blocks)
        self._last.update(dict.fromkeys(path, len(self._left)))
        self._left.append(len(path))


class PrefixCounts:
    """A list of counts that grows at its end and gives the sum after any of them, both in log time."""

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
        """Return the sum of all counts after `index`."""
        at, up_to = index + 1, 0
        while at:
            up_to += self._sums[at]
            at &= at - 1
        return self._total - up_to
