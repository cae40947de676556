"""Hits and prefill times by pool and fleet size, estimated in one pass over the requests.

Each instance has an LRU cache (`StackDistances`), and the pool is one for all. A request's leading blocks are found
in its instance's cache, those after them in the pool, and the rest is computed: the profile gives the prefill time,
and loads take the pool's link. Two placements bound what a router can do: at random, and by prefix, which takes the
longest match among the instances that have not computed more than their share.

The estimate is optimistic: requests do not queue, running requests occupy no cache, and a sent prompt is cached at
once. A simulation (`run.py`) models these, and takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from router.lab.engine_profile import EngineProfile
from router.lab.rng import Rng
from router.lab.simulator.scenario import LinkSpeed
from router.lab.workloads.block_names import SessionContext
from router.lab.workloads.model import TimedRequest

BLOCK_TOKENS = 512
SHARE = 1.1  # by prefix: an instance that computed more than this multiple of the mean gets no request for a match

Placement = Literal["by prefix", "at random"]


class DistanceRun(NamedTuple):
    """A run of blocks in a path: the first has this stack distance, each next one a distance larger by 1."""

    blocks: int
    distance: int
    request: int  # number of the request that touched the blocks last


def count_within(runs: Iterable[DistanceRun], capacity: int) -> int:
    """Return how many leading blocks a cache of `capacity` blocks still holds: those at a distance up to it."""
    held = 0
    for run in runs:
        if run.distance > capacity:
            break
        held += min(run.blocks, capacity - run.distance + 1)
    return held


class StackDistances:
    """LRU stack distances: one pass over the requests gives the hits of an LRU cache of every size.

    The blocks of a prompt are a path in a tree, from the first block down, and a request touches a whole path, its
    last block first, so that tails are evicted first; a block's name determines all before it, as chained hashes
    do. LRU keeps what was touched last, whatever its size (Mattson et al. 1970): a block is still in a cache of C
    blocks exactly if its stack distance, the number of blocks touched since then, itself included, is at most C.

    Later requests touch an earlier one's path from the top, so the blocks that the earlier one touched last are a
    tail of it. A path is therefore a few runs of blocks that the same request touched last, and in a run the
    distance grows by one per block. Blocks are counted per request, in a Fenwick tree (Fenwick 1994): a request
    costs log(requests) per run instead of log(blocks) per block.
    """

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


class SizingCell(NamedTuple):
    """One fleet with one pool, over all requests."""

    instances: int
    placement: Placement
    pool_tokens: int  # size of the pool
    requests: int
    input_tokens: int
    local_tokens: int  # of those, from the instance's own cache
    loaded_tokens: int  # from the pool
    prefill_s: float  # mean, loading included: the TTFT of an idle instance

    @property
    def hit_share(self) -> float:
        """Share of input tokens from a cache."""
        return (self.local_tokens + self.loaded_tokens) / self.input_tokens


class SizingAdvice(NamedTuple):
    cells: tuple[SizingCell, ...]  # by fleet size, placement and pool size, in this order
    working_set_tokens: int  # all different full blocks of prompts


def advise(
    requests: Iterable[TimedRequest],
    profile: EngineProfile,
    instances: Sequence[int],
    pools: Sequence[int],
    link: LinkSpeed,
    seed: int = 0,
) -> SizingAdvice:
    """Estimate every fleet size with every pool size in tokens. Raises ValueError when there are no requests."""
    shared = StackDistances()
    fleets = [SizingFleet(count, placement, profile, pools, seed) for count, placement in _fleets(instances)]
    capacities = [tokens // BLOCK_TOKENS for tokens in pools]
    for timed in requests:
        request = _sizing_request(timed, profile, link)
        runs = shared.runs(request.path)
        pooled = [min(request.findable, count_within(runs, capacity)) for capacity in capacities]
        shared.touch(request.path, runs)
        for fleet in fleets:
            fleet.serve(request, pooled)
    return SizingAdvice(tuple(cell for fleet in fleets for cell in fleet.cells()), shared.blocks * BLOCK_TOKENS)


def _fleets(instances: Sequence[int]) -> list[tuple[int, Placement]]:
    """Return fleet sizes with placements; a single instance has only one."""
    placements: tuple[Placement, ...] = ("by prefix", "at random")
    return [(count, placement) for count in instances for placement in (placements if count > 1 else placements[:1])]


class SizingRequest:
    """A request as blocks, and its prefill time after a number of cached ones."""

    def __init__(
        self, path: Sequence[int], context: Sequence[int], tokens: int, profile: EngineProfile, link: LinkSpeed
    ) -> None:
        self.path = path  # of the prompt
        self.context = context  # with the answer
        self.tokens = tokens
        self.findable = (tokens - 1) // BLOCK_TOKENS  # the last token is always computed
        self._profile = profile
        self._link = link
        self._computing_s: dict[int, float] = {}  # by cached blocks

    def prefill_s(self, local: int, held: int) -> float:
        """Return the prefill time after `held` cached blocks, of which those beyond `local` come from the pool."""
        computing_s = self._computing_s.get(held)
        if computing_s is None:
            cached = held * BLOCK_TOKENS
            computing_s = self._computing_s[held] = self._profile.prefill_s(self.tokens - cached, cached)
        if held == local:
            return computing_s
        return computing_s + self._link.base_ms / 1e3 + (held - local) * BLOCK_TOKENS / self._link.tokens_per_s


def _sizing_request(timed: TimedRequest, profile: EngineProfile, link: LinkSpeed) -> SizingRequest:
    names = SessionContext(BLOCK_TOKENS)
    for span in timed.context:
        names.add(span)
    tokens = sum(span.tokens for span in timed.prompt)
    return SizingRequest(names.names[: tokens // BLOCK_TOKENS], names.names, tokens, profile, link)


class SizingFleet:
    """A number of instances under one placement, with every pool size at once."""

    def __init__(
        self, count: int, placement: Placement, profile: EngineProfile, pools: Sequence[int], seed: int
    ) -> None:
        self._placement = placement
        self._pools = pools
        self._capacity = profile.kv_tokens // BLOCK_TOKENS
        self._caches = [StackDistances() for _ in range(count)]
        self._computed = [0] * count  # blocks
        self._rng = Rng(seed)
        self._requests = self._tokens = self._local = 0
        self._loaded = [0] * len(pools)  # blocks
        self._prefill_s = [0.0] * len(pools)

    def serve(self, request: SizingRequest, pooled: Sequence[int]) -> None:
        """Place and count a request; `pooled` are its leading blocks in a pool of each size."""
        chosen = self._choose(request)
        cache = self._caches[chosen]
        runs = cache.runs(request.context)
        local = min(request.findable, count_within(runs, self._capacity))
        cache.touch(request.context, runs)
        self._computed[chosen] += len(request.path) - local
        self._requests += 1
        self._tokens += request.tokens
        self._local += local
        for size, there in enumerate(pooled):
            held = max(local, there)
            self._loaded[size] += held - local
            self._prefill_s[size] += request.prefill_s(local, held)

    def _choose(self, request: SizingRequest) -> int:
        computed = self._computed
        if self._placement == "at random":
            return self._rng.below(len(computed))
        share = SHARE * sum(computed) / len(computed)
        least = min(range(len(computed)), key=computed.__getitem__)
        best, most = least, (0, 0)
        for at, cache in enumerate(self._caches):
            match = count_within(cache.runs(request.path), self._capacity)
            if (match, -computed[at]) > most and (computed[at] <= share or at == least):
                best, most = at, (match, -computed[at])
        return best

    def cells(self) -> list[SizingCell]:
        """Return a cell per pool size. Raises ValueError when no request was served."""
        if not self._requests:
            raise ValueError("there are no requests to advise on")
        return [
            SizingCell(
                len(self._caches),
                self._placement,
                tokens,
                self._requests,
                self._tokens,
                self._local * BLOCK_TOKENS,
                self._loaded[size] * BLOCK_TOKENS,
                self._prefill_s[size] / self._requests,
            )
            for size, tokens in enumerate(self._pools)
        ]
