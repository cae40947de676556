"""What an answer teaches of the target that gave it: was the promise kept, and how fast was the prefill?

An engine says how much it found in a cache, not in which. So what it delivered beyond its own promise is put down to
the pool as far as the pool was seen to reach, and only the rest is held for or against its event stream.
"""

from __future__ import annotations

from router.fleet.instance import FetchedKv
from router.prompt.usage import Usage
from router.scheduling.ticket import TargetBooking
from scorers.contract import Overlap, PoolHit


def learn_from_answer(
    share: TargetBooking, pooled: PoolHit | None, usage: Usage, ttft_ms: float | None, now: float, *, shared_pool: bool
) -> None:
    """From an answer that came whole. `ttft_ms` None: it does not show its prefill. `shared_pool`: engines may have
    found there what none of them holds.
    """
    prompt_tokens, cached_tokens, _ = usage
    if cached_tokens is None:
        return
    belief, target = share.estimate, share.target
    if belief is not None and belief.indexed_tokens is not None and belief.block_tokens is not None:
        own = _own(belief.indexed_tokens, cached_tokens, pooled, shared_pool)
        target.overlap_accuracy.observe(belief.indexed_tokens, own, belief.block_tokens)
    if ttft_ms is None or prompt_tokens is None:
        return
    overlap = belief.overlap if belief is not None else None
    loaded = _loaded(overlap, pooled, cached_tokens, shared_pool) if overlap is not None else None
    target.observe_prefill(share.booking, prompt_tokens, cached_tokens, ttft_ms, now, loaded)


def _own(promised: int, delivered: int, pooled: PoolHit | None, shared_pool: bool) -> int:
    """How much of what was delivered must have come from the target itself: what is beyond its promise may be the
    pool's, as far as the pool was seen to reach.
    """
    reach = pooled.tokens if pooled is not None else delivered if shared_pool else 0
    return min(delivered, promised) if delivered <= reach else delivered


def _loaded(overlap: Overlap, pooled: PoolHit | None, delivered: int, shared_pool: bool) -> FetchedKv | None:
    """What of the delivered tokens was brought from a slower place, and from where; None: nothing.

    Fetched is what lies beyond the GPU's part. Host memory and disk are the engine's own and come first; where
    several places could have given it, nobody knows which did, and it is told as the slowest of them.
    """
    tokens = delivered - max(overlap.gpu_tokens, overlap.expected_tokens)
    if tokens <= 0:
        return None
    if delivered <= overlap.cpu_tokens:
        return FetchedKv("cpu", tokens)
    if delivered <= overlap.disk_tokens:
        return FetchedKv("disk", tokens)
    if pooled is None and not shared_pool:
        return None  # its GPU held more than we knew
    on_disk = pooled is not None and pooled.memory_tokens is not None and delivered > pooled.memory_tokens
    return FetchedKv("pool_disk" if on_disk else "pool", tokens)
