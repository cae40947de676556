"""The booking of a prefix that the router itself sends to a target, ahead of the requests that begin with it.

The prefix is booked like a client's request, so that decisions count the work and expect the blocks. Its answer,
like any other, updates the target's learned speed and the trust in its events. It is no attempt: no policy chose
the target, and the breaker is not notified.
"""

from __future__ import annotations

from router.features.preload.book import PreloadedPrefix, Reason
from router.fleet.instance import Target
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.usage import Usage
from router.scheduling.scheduler import Scheduler
from router.scheduling.ticket import TargetBooking, uncached_tokens
from scorers.contract import PoolHit, Speed


class PreloadBooking(TargetBooking):
    """One prefix on its way to a target."""

    reason: Reason
    tokens: int
    compute_tokens: int  # of `tokens`, expected to be held neither by the target nor by the pool
    fetch_tokens: int  # of `tokens`, expected to be held by the pool but not by the target
    sent_at: float
    pool_hit: PoolHit | None

    def price_ms(self) -> float:
        """Return the prefill time that the prefix is expected to take, at the target's own speed."""
        speed = self.target.latency_model.speed(self.sent_at)
        computing = speed.prefill_ms(self.compute_tokens, self.tokens - self.compute_tokens)
        return computing + _fetch_ms(speed, self.fetch_tokens)


def book_preload(
    scheduler: Scheduler, target: Target, prompt: TokenizedPrompt, reason: Reason, pool_hit: PoolHit | None, now: float
) -> PreloadBooking:
    """Book `prompt` at `target`, and expect the target to hold it soon. The caller calls `settle_preload` once."""
    tokens = len(prompt.ids)
    estimate = scheduler.view_builder.estimates(prompt, [target]).get(target.id)
    sent = None if estimate is None else scheduler.indexer.add_sent(target.id, prompt, estimate)
    compute_tokens = uncached_tokens(tokens, estimate, pool_hit)
    fetch_tokens = uncached_tokens(tokens, estimate, None) - compute_tokens
    booking = target.book(compute_tokens, tokens, prompt.keys)
    scheduler.report_load(target.id)
    return PreloadBooking(
        target=target,
        booking=booking,
        estimate=estimate,
        sent_prompt=sent,
        reason=reason,
        tokens=tokens,
        compute_tokens=compute_tokens,
        fetch_tokens=fetch_tokens,
        sent_at=now,
        pool_hit=pool_hit,
    )


def settle_preload(
    scheduler: Scheduler, preload: PreloadBooking, usage: Usage | None, now: float, wall_s: float
) -> PreloadedPrefix | None:
    """Release the booking and learn from the answer; `usage` is None if no answer came. Return the loaded prefix;
    None if nothing was loaded.
    """
    preload.booking.release()
    scheduler.report_load(preload.target.id)
    if preload.sent_prompt is not None:
        (scheduler.indexer.on_failure if usage is None else scheduler.indexer.on_first_byte)(preload.sent_prompt)
    if usage is None:
        return None
    duration_ms = (now - preload.sent_at) * 1e3  # the answer is one token long
    scheduler.learn(preload, preload.pool_hit, usage, duration_ms, preload.sent_at, now)
    missing = preload.compute_tokens + preload.fetch_tokens
    computed, fetched = preload.compute_tokens, preload.fetch_tokens
    if usage.cached_tokens is not None:  # the engine's count replaces the expected one
        computed = min(missing, preload.tokens - usage.cached_tokens)
        fetched = missing - computed if fetched or scheduler.shared_pool else 0
    return PreloadedPrefix(preload.target.id, preload.reason, wall_s, preload.tokens, computed, fetched, duration_ms)


def _fetch_ms(speed: Speed, tokens: int) -> float:
    """Return the time to fetch `tokens` from the pool; 0 if the link's speed is unknown."""
    if not tokens or speed.pool is None:
        return 0.0
    return speed.pool.base_ms + speed.pool.us_per_token * tokens / 1000
