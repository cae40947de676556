"""Chooses the target of a preload: the target that would have the prefix in its cache soonest.

    wait for the prompts booked at the target + prefill of the tokens that the target lacks, at its own speed

Of the targets within a tenth of the least time, the one whose cache holds least is chosen, because the prefix
displaces least in it. Otherwise the fastest would get everything, although learned speeds differ only a little.
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
    """Return the target that would have the prefix soonest; None if all have it, or will have it anyway."""
    estimates = scheduler.view_builder.estimates(prefix, list(candidates))
    tokens = len(prefix.ids)

    def held(target: Target) -> int:
        estimate = estimates.get(target.id)
        return 0 if estimate is None or estimate.overlap is None else estimate.overlap.expected_tokens

    def price_ms(target: Target) -> float:
        speed, has = target.latency_model.speed(now), held(target)
        return target.load_book.load(speed, now).queued_ms + speed.prefill_ms(tokens - has, has)

    last = max(prefix.keys)  # tokens of the last block: engines always compute at least one of its tokens
    prices = {target: price_ms(target) for target in candidates if tokens - held(target) > last}
    enough = NEAR * min(prices.values(), default=0.0)
    near = [target for target, price in prices.items() if price <= enough]
    return min(near, key=lambda target: (scheduler.view_builder.held_tokens(target) or 0, target.id), default=None)
