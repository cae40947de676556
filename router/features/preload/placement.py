"""Chooses the target of a preload: the one that caches it soonest.

    wait for the prompts that are booked there + prefill of what the target lacks, at its own speed

Of those within a tenth of the least, the target whose cache holds least, where it displaces least: learned speeds
differ a little, and the fastest would else get everything.
"""

from __future__ import annotations

from collections.abc import Collection

from router.fleet.instance import Target
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.scheduling.scheduler import Scheduler

NEAR = 1.1


def find_place(
    scheduler: Scheduler, candidates: Collection[Target], prefix: TokenizedPrompt, now: float
) -> Target | None:
    """Return the target that would have the prefix soonest; None where all have it, or will have it anyway."""
    estimates = scheduler.view_builder.estimates(prefix, list(candidates))
    tokens = len(prefix.ids)

    def held(target: Target) -> int:
        estimate = estimates.get(target.id)
        return 0 if estimate is None or estimate.overlap is None else estimate.overlap.expected_tokens

    def price_ms(target: Target) -> float:
        speed, has = target.latency_model.speed(now), held(target)
        return target.load_book.load(speed, now).queued_ms + speed.prefill_ms(tokens - has, has)

    last = max(prefix.keys)  # tokens of the last block, of which engines compute one
    prices = {target: price_ms(target) for target in candidates if tokens - held(target) > last}
    enough = NEAR * min(prices.values(), default=0.0)
    near = [target for target, price in prices.items() if price <= enough]
    return min(near, key=lambda target: (scheduler.view_builder.held_tokens(target) or 0, target.id), default=None)
