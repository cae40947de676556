"""Columns of facts over all candidates of a large fleet, for comparing a thousand targets at every request.

Most targets of a large fleet clearly lose every choice: they hold no more of the prompt than a target with a
shorter wait. Detecting this takes one or two numbers per target, not a row. So these numbers are kept in lists, and
updated for the few targets that changed since the last use. They equal the values in rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from router.fleet.instance import Target
from router.kvcache.events import TargetId
from scorers.contract import Speed
from scorers.streams import growth_tokens, stall_cost, step_ms
from scorers.ttft import WorkAhead


class CandidateColumns:
    """Columns over `targets`, in the order of `targets`. The columns are empty until `fill`."""

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self.targets = targets
        self.slots: dict[TargetId, int] = {}
        self.requests: list[int] = []
        self.queued_ms: list[float] = []
        self.stall_cost: list[float] = []  # as in `scorers.streams`
        self.free_tokens: list[float] = []  # infinite if the capacity is unknown
        self._least_free = inf  # a lower bound: memory may have been freed since
        self._most_requests = 0  # an upper bound: requests may have ended since
        self.speeds: list[Speed] = []
        self.prices = _empty_prices(0)
        self.weighted_prices = _empty_prices(0)  # including the stalls that the work causes
        self.others_waiting: set[Target] = set()  # targets with requests of other clients in their queues
        self.distrusted: set[Target] = set()  # targets whose overlap predictions failed

    def fill(self, now: float) -> None:
        """Fill the columns on first use."""
        if len(self.slots) == len(self.targets):
            return
        self.slots = {target.id: slot for slot, target in enumerate(self.targets)}
        self.requests = [0] * len(self.targets)
        self.queued_ms = [0.0] * len(self.targets)
        self.stall_cost = [0.0] * len(self.targets)
        self.free_tokens = [inf] * len(self.targets)
        self.speeds = [target.latency_model.speed(now) for target in self.targets]
        self.prices, self.weighted_prices = _empty_prices(len(self.targets)), _empty_prices(len(self.targets))
        self.update(self.targets, now)

    def update(self, changed: Iterable[Target], now: float) -> None:
        """Update the columns for the targets in `changed`; targets that are not in the columns are ignored."""
        slots = self.slots
        if not slots:
            return
        for target in changed:
            if (slot := slots.get(target.id)) is None:
                continue
            load_book, speed = target.load_book, target.latency_model.speed(now)
            self.requests[slot] = requests = load_book.requests
            if requests > self._most_requests:
                self._most_requests = requests
            self.queued_ms[slot] = queued_ms = load_book.rounded_queued_ms(speed)
            self.stall_cost[slot] = weight = stall_cost(load_book.requests, load_book.prefilling)
            self.free_tokens[slot] = free = (target.capacity_tokens or inf) - load_book.live_tokens
            if free < self._least_free:
                self._least_free = free
            self.speeds[slot] = speed
            ms_per_step = step_ms(speed, load_book.requests, load_book.context_tokens)
            _put(self.prices, slot, queued_ms, speed, ms_per_step, 1.0)
            _put(self.weighted_prices, slot, queued_ms, speed, ms_per_step, 1 + weight)
            (self.others_waiting.add if load_book.others_waiting else self.others_waiting.discard)(target)
            (self.distrusted.discard if target.overlap_accuracy.trusted else self.distrusted.add)(target)

    def all_have_free(self, tokens: int, answer: float) -> bool:
        """Return whether every target has memory for `tokens` more tokens and for the growth of all its answers
        with one more answer of `answer` tokens.
        """
        if tokens + growth_tokens(self._most_requests, answer) > self._least_free:
            self._least_free, self._most_requests = min(self.free_tokens), max(self.requests)
        return tokens + growth_tokens(self._most_requests, answer) <= self._least_free


def _empty_prices(count: int) -> WorkAhead:
    return WorkAhead([0.0] * count, [0.0] * count, [0.0] * count, [0.0] * count, [inf] * count, [0.0] * count)


def _put(prices: WorkAhead, slot: int, queued_ms: float, speed: Speed, ms_per_step: float, weight: float) -> None:
    """Set one slot. The queue counts once and the work `weight` times: all ways to do the work are scaled alike, so
    the cheapest way stays the cheapest.
    """
    prices.fixed_ms[slot] = queued_ms + speed.base_ms * weight
    prices.ms_per_token[slot] = speed.us_per_token / 1e3 * weight
    prices.ms_per_pair[slot] = speed.ns_per_token_context / 1e6 * weight
    prices.ms_per_step[slot] = ms_per_step
    link = speed.pool
    prices.pool_ms[slot] = inf if link is None else link.base_ms * weight
    prices.pool_ms_per_token[slot] = 0.0 if link is None else link.us_per_token / 1e3 * weight
