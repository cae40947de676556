"""What more memory or better placement would bring, counted on the requests themselves: hits by pool and fleet size.

Each instance has an LRU of its own (`ghost.py`), the pool one for all. A request's leading blocks are found in its
instance's cache, those after them in the pool, the rest is computed: its prefill is what the profile says of that, and
loading takes the pool's link. Two ways to place it bound what a router can do: at random, and by prefix, which takes
the longest match among the instances that have not computed more than their share.

An estimate, and on the bright side: nobody waits, running requests take no cache from others, and what was sent is
cached at once. A simulation (`run.py`) knows better, and takes longer.
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
SHARE = 1.1  # by prefix: an instance that computed more than so much of the mean takes no request because of a match

Placement = Literal["by prefix", "at random"]


class SizingCell(NamedTuple):
    """One fleet with one pool, over all requests."""

    instances: int
    placement: Placement
    pool_tokens: int  # that it has room for
    requests: int
    input_tokens: int
    local_tokens: int  # of those, from the instance's own cache
    loaded_tokens: int  # from the pool
    prefill_s: float  # in the mean, loading included: TTFT, were nobody in the way

    @property
    def hit_share(self) -> float:
        return (self.local_tokens + self.loaded_tokens) / self.input_tokens


class SizingAdvice(NamedTuple):
    cells: tuple[SizingCell, ...]  # fleets in their order, of each the placements, of each the pools
    working_set_tokens: int  # all different full blocks of prompts


def advise(
    requests: Iterable[TimedRequest],
    profile: EngineProfile,
    instances: Sequence[int],
    pools: Sequence[int],
    link: LinkSpeed,
    seed: int = 0,
) -> SizingAdvice:
    """`pools` in tokens. Raises ValueError where there are no requests."""
    shared = StackDistances()
    fleets = [SizingFleet(count, placement, profile, pools, seed) for count, placement in _fleets(instances)]
    capacities = [tokens // BLOCK_TOKENS for tokens in pools]
    for sent in requests:
        asked = _asked(sent, profile, link)
        runs = shared.runs(asked.path)
        pooled = [min(asked.findable, count_within(runs, capacity)) for capacity in capacities]
        shared.touch(asked.path, runs)
        for fleet in fleets:
            fleet.serve(asked, pooled)
    return SizingAdvice(tuple(cell for fleet in fleets for cell in fleet.cells()), shared.blocks * BLOCK_TOKENS)


def _fleets(instances: Sequence[int]) -> list[tuple[int, Placement]]:
    """A single instance leaves no choice."""
    placements: tuple[Placement, ...] = ("by prefix", "at random")
    return [(count, placement) for count in instances for placement in (placements if count > 1 else placements[:1])]


class SizingRequest:
    """A request by its blocks, and what it takes to compute it after so many of them."""

    def __init__(
        self, path: Sequence[int], context: Sequence[int], tokens: int, profile: EngineProfile, link: LinkSpeed
    ) -> None:
        self.path = path  # of the prompt
        self.context = context  # with the answer
        self.tokens = tokens
        self.findable = (tokens - 1) // BLOCK_TOKENS  # the last token is always computed
        self._profile = profile
        self._link = link
        self._known: dict[int, float] = {}

    def prefill_s(self, local: int, held: int) -> float:
        """After `held` blocks, those beyond `local` from the pool."""
        computing_s = self._known.get(held)
        if computing_s is None:
            cached = held * BLOCK_TOKENS
            computing_s = self._known[held] = self._profile.prefill_s(self.tokens - cached, cached)
        if held == local:
            return computing_s
        return computing_s + self._link.base_ms / 1e3 + (held - local) * BLOCK_TOKENS / self._link.tokens_per_s


def _asked(sent: TimedRequest, profile: EngineProfile, link: LinkSpeed) -> SizingRequest:
    names = SessionContext(BLOCK_TOKENS)
    for span in sent.context:
        names.add(span)
    tokens = sum(span.tokens for span in sent.prompt)
    return SizingRequest(names.names[: tokens // BLOCK_TOKENS], names.names, tokens, profile, link)


class SizingFleet:
    """So many instances under one placement, with every pool size beside them at once."""

    def __init__(
        self, count: int, placement: Placement, profile: EngineProfile, pools: Sequence[int], seed: int
    ) -> None:
        self._placement = placement
        self._pools = pools
        self._capacity = profile.kv_tokens // BLOCK_TOKENS
        self._ghosts = [StackDistances() for _ in range(count)]
        self._computed = [0] * count  # blocks
        self._dice = Rng(seed)
        self._requests = self._tokens = self._local = 0
        self._loaded = [0] * len(pools)  # blocks
        self._prefill_s = [0.0] * len(pools)

    def serve(self, asked: SizingRequest, pooled: Sequence[int]) -> None:
        """`pooled`: leading blocks in a pool of each size."""
        chosen = self._choose(asked)
        ghost = self._ghosts[chosen]
        runs = ghost.runs(asked.context)
        local = min(asked.findable, count_within(runs, self._capacity))
        ghost.touch(asked.context, runs)
        self._computed[chosen] += len(asked.path) - local
        self._requests += 1
        self._tokens += asked.tokens
        self._local += local
        for size, there in enumerate(pooled):
            held = max(local, there)
            self._loaded[size] += held - local
            self._prefill_s[size] += asked.prefill_s(local, held)

    def _choose(self, asked: SizingRequest) -> int:
        computed = self._computed
        if self._placement == "at random":
            return self._dice.below(len(computed))
        share = SHARE * sum(computed) / len(computed)
        least = min(range(len(computed)), key=computed.__getitem__)
        best, most = least, (0, 0)
        for at, ghost in enumerate(self._ghosts):
            match = count_within(ghost.runs(asked.path), self._capacity)
            if (match, -computed[at]) > most and (computed[at] <= share or at == least):
                best, most = at, (match, -computed[at])
        return best

    def cells(self) -> list[SizingCell]:
        if not self._requests:
            raise ValueError("there are no requests to advise on")
        return [
            SizingCell(
                len(self._ghosts),
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
