"""Feeds an answer back to the target that gave it: the accuracy of the predicted overlap, and the prefill speed.

An engine reports how many tokens it found cached, but not in which cache. So cached tokens beyond the target's
predicted overlap are attributed to the pool, up to the length of the pool's hit; only the rest counts for or
against the target's event stream.
"""

from __future__ import annotations

import logging

from router.fleet.instance import FetchedKv
from router.fleet.overlap_accuracy import Finding
from router.fleet.step_change import STEP_RATIO
from router.kvcache.indexer import KvIndexer
from router.kvcache.overlap_estimate import OverlapEstimate
from router.prompt.usage import Usage
from router.scheduling.ticket import TargetBooking
from scorers.contract import Overlap, PoolHit

log = logging.getLogger("warmroute.index")


def learn_from_answer(
    part: TargetBooking,
    pool_hit: PoolHit | None,
    usage: Usage,
    ttft_ms: float | None,
    sent_at: float,
    now: float,
    indexer: KvIndexer,
    *,
    shared_pool: bool,
) -> None:
    """Learn the target's speed and the accuracy of its index from a complete answer to a request sent at `sent_at`,
    and find out whether its events are wrong or have stopped. `ttft_ms` is None if the time does not show the prefill.
    `shared_pool` is whether engines may have found tokens in a shared pool that no engine holds.
    """
    finding = _learn(part, pool_hit, usage, ttft_ms, now, shared_pool=shared_pool)
    _check_stream(part, finding, usage, sent_at, indexer)


def predicted_tokens(estimate: OverlapEstimate | None) -> tuple[int | None, int | None]:
    """Return the overlap that the index predicts for a target, and the overlap with prompts just sent to it."""
    if estimate is None:
        return None, None
    return estimate.indexed_tokens, None if estimate.overlap is None else estimate.overlap.expected_tokens


def _learn(
    part: TargetBooking, pool_hit: PoolHit | None, usage: Usage, ttft_ms: float | None, now: float, *, shared_pool: bool
) -> Finding | None:
    """Return the evidence that the answer gives of the accuracy of the target's index; None if nothing."""
    prompt_tokens, cached_tokens, _ = usage
    if cached_tokens is None:
        return None
    finding = None
    estimate, target = part.estimate, part.target
    emptied = part.sent_prompt is not None and part.sent_prompt.speculative.forgotten  # after the choice
    if estimate is not None and estimate.indexed_tokens is not None and estimate.block_tokens and not emptied:
        own = _own_tokens(estimate.indexed_tokens, cached_tokens, pool_hit, shared_pool)
        accuracy, drafted = target.overlap_accuracy, target.overlap_accuracy.drafts
        finding = accuracy.observe(estimate.indexed_tokens, own, estimate.block_tokens)
        if accuracy.drafts and not drafted:
            log.info("%s: computes the last block of every hit again, as with EAGLE or MTP", target.id)
    if ttft_ms is None or prompt_tokens is None:
        return finding
    overlap = estimate.overlap if estimate is not None else None
    fetched = _find_fetched(overlap, pool_hit, cached_tokens, shared_pool) if overlap is not None else None
    before = target.latency_model.slowdown
    target.observe_prefill(part.booking, prompt_tokens, cached_tokens, ttft_ms, now, fetched)
    slowdown = target.latency_model.slowdown
    if slowdown >= STEP_RATIO > before:
        log.warning("instance %s: prefills take %.1f times as long as before", target.instance.id, slowdown)
    elif slowdown < STEP_RATIO <= before:
        log.info("instance %s: is no longer slow", target.instance.id)
    return finding


def _check_stream(
    part: TargetBooking, finding: Finding | None, usage: Usage, sent_at: float, indexer: KvIndexer
) -> None:
    target, estimate, sent = part.target, part.estimate, part.sent_prompt
    if sent is None or estimate is None or not estimate.block_tokens or usage.cached_tokens is None:
        return
    size, cached_tokens = estimate.block_tokens, usage.cached_tokens
    if finding == "overestimated" and estimate.indexed_tokens is not None:
        missing_blocks = (estimate.indexed_tokens - cached_tokens) // size
        if indexer.count_repeated(sent) >= missing_blocks and target.overlap_accuracy.add_proof():
            log.warning("%s: answers contradict its events: index of this target cleared", target.id)
            indexer.begin_late(target.id)
    known_tokens = max(cached_tokens, estimate.held_blocks * size)  # an engine that drafts computes some again
    computed_tokens = 0 if usage.prompt_tokens is None else usage.prompt_tokens - known_tokens
    if computed_tokens >= 2 * size and indexer.on_computed(sent, sent_at):
        log.warning("%s: its events stopped: it computes blocks and announces none", target.id)


def _own_tokens(predicted: int, delivered: int, pool_hit: PoolHit | None, shared_pool: bool) -> int:
    """Return how many of the delivered tokens must have come from the target itself. Tokens beyond the target's
    prediction may have come from the pool, up to the length of the pool's hit.
    """
    reach = pool_hit.tokens if pool_hit is not None else delivered if shared_pool else 0
    return min(delivered, predicted) if delivered <= reach else delivered


def _find_fetched(overlap: Overlap, pool_hit: PoolHit | None, delivered: int, shared_pool: bool) -> FetchedKv | None:
    """Return the delivered tokens that came from a slower tier than the GPU, and the link; None if there are none.
    The engine's own host memory and disk come before the pool; if several tiers could have delivered the tokens,
    the slowest of them is taken.
    """
    tokens = delivered - max(overlap.gpu_tokens, overlap.expected_tokens)
    if tokens <= 0:
        return None
    if delivered <= overlap.cpu_tokens:
        return FetchedKv("cpu", tokens)
    if delivered <= overlap.disk_tokens:
        return FetchedKv("disk", tokens)
    if pool_hit is None and not shared_pool:
        return None  # the GPU held more than the index recorded
    on_disk = pool_hit is not None and pool_hit.memory_tokens is not None and delivered > pool_hit.memory_tokens
    return FetchedKv("pool_disk" if on_disk else "pool", tokens)
