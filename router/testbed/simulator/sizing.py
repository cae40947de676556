"""Hits and prefill times by pool and fleet size, estimated in one pass over the requests.

Each instance has an LRU cache (`stack_distance.py`), and the pool is one for all. A request's leading blocks are found
in its instance's cache, those after them in the pool, and the rest is computed: the profile gives the prefill time, and
loads take the pool's link. Two placements bound what a router can do: at random, and by prefix, which takes the longest
match among the instances that have not computed more than their share.

The estimate is optimistic: requests do not queue, running requests occupy no cache, and a sent prompt is cached at
once. A simulation (`run.py`) models these, and takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from router.testbed.engine_profile import EngineProfile
from router.testbed.rng import Rng
from router.testbed.simulator.scenario import LinkSpeed
from router.testbed.simulator.stack_distance import StackDistances, count_within
from router.testbed.workloads.block_names import SessionContext
from router.testbed.workloads.timeline import TimedRequest

BLOCK_TOKENS = 512
SHARE = 1.1  # by prefix: an instance that computed more than this multiple of the mean gets no request for a match

Placement = Literal["by prefix", "at random"]


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
