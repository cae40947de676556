"""Candidates side by side, in columns: what is asked of each of them at every request, where they are a thousand.

Most of a large fleet loses every choice at a glance: it holds no more of the prompt than a target that waits less. To
see that takes a number or two per target, not a row. So these are kept in lists and arrays, which C walks through,
and brought up to date for the few targets that changed since the last look. They say what rows would say.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from router.fleet.instance import Target
from router.kvcache.events import TargetId
from scorers.contract import Speed
from scorers.streams import stall_cost, step_ms

NO_LINK = (inf, 0.0)


class PriceColumns(NamedTuple):
    """As `scorers.ttft.Ahead`. Arrays, since floats that lie about in memory are fetched one by one: half the time."""

    fixed_ms: array[float]
    ms_per_token: array[float]
    ms_per_pair: array[float]
    ms_per_step: array[float]
    pool: list[tuple[float, float]]


class CandidateColumns:
    """Of `targets`, in their order. The columns are empty until somebody wants to see them."""

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self.targets = targets
        self.slots: dict[TargetId, int] = {}
        self.requests: list[int] = []
        self.queued_ms: list[float] = []
        self.stall_cost: list[float] = []  # as `scorers.streams` has it
        self.free_tokens: list[float] = []  # infinite where the capacity is unknown
        self._least_room = inf  # nobody has less; rooms may have grown since
        self.speeds: list[Speed] = []
        self.prices = _priced(0)
        self.weighted_prices = _priced(0)  # with what the work costs those whom it holds up
        self.others_waiting: set[Target] = set()  # requests of others wait in their engines
        self.distrusted: set[Target] = set()  # they broke promises

    def fill(self, now: float) -> None:
        if len(self.slots) == len(self.targets):
            return
        self.slots = {target.id: slot for slot, target in enumerate(self.targets)}
        self.requests = [0] * len(self.targets)
        self.queued_ms = [0.0] * len(self.targets)
        self.stall_cost = [0.0] * len(self.targets)
        self.free_tokens = [inf] * len(self.targets)
        self.speeds = [target.latency_model.speed(now) for target in self.targets]
        self.prices, self.weighted_prices = _priced(len(self.targets)), _priced(len(self.targets))
        self.update(self.targets, now)

    def update(self, changed: Iterable[Target], now: float) -> None:
        """Strangers among them are ignored."""
        slots = self.slots
        if not slots:
            return
        for target in changed:
            if (slot := slots.get(target.id)) is None:
                continue
            books, speed = target.load_book, target.latency_model.speed(now)
            self.requests[slot] = books.requests
            self.queued_ms[slot] = queued_ms = books.rounded_queued_ms(speed)
            self.stall_cost[slot] = weight = stall_cost(books)
            self.free_tokens[slot] = room = (target.capacity_tokens or inf) - books.context_tokens
            if room < self._least_room:
                self._least_room = room
            self.speeds[slot] = speed
            ms_per_step = step_ms(books, speed)
            _put(self.prices, slot, queued_ms, speed, ms_per_step, 1.0)
            _put(self.weighted_prices, slot, queued_ms, speed, ms_per_step, 1 + weight)
            (self.others_waiting.add if books.others_waiting else self.others_waiting.discard)(target)
            (self.distrusted.discard if target.overlap_accuracy.trusted else self.distrusted.add)(target)

    def all_have_free(self, tokens: int) -> bool:
        """Everybody has, for so many."""
        if tokens > self._least_room:
            self._least_room = min(self.free_tokens)
        return tokens <= self._least_room


def _priced(count: int) -> PriceColumns:
    zeros = array("d", bytes(8 * count))
    return PriceColumns(zeros[:], zeros[:], zeros[:], zeros[:], [NO_LINK] * count)


def _put(prices: PriceColumns, slot: int, queued_ms: float, speed: Speed, ms_per_step: float, weight: float) -> None:
    """The queue counts once and the work `weight` times. All ways to do it grow alike: the least stays the least."""
    prices.fixed_ms[slot] = queued_ms + speed.base_ms * weight
    prices.ms_per_token[slot] = speed.us_per_token / 1e3 * weight
    prices.ms_per_pair[slot] = speed.ns_per_token_context / 1e6 * weight
    prices.ms_per_step[slot] = ms_per_step
    link = speed.pool
    prices.pool[slot] = NO_LINK if link is None else (link.base_ms * weight, link.us_per_token / 1e3 * weight)
