"""Candidates side by side, in columns: what is asked of each of them at every request, where they are a thousand.

Most of a large fleet loses every choice at a glance: it holds no more of the prompt than a target that waits less. To
see that takes a number or two per target, not a row. So these are kept in lists, which C walks through, and brought up
to date for the few targets that changed since the last look. They say what rows would say.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from router.blocks.events import TargetId
from router.fleet.target import Target
from scorers.contract import Speed
from scorers.streams import held_up, step_ms
from scorers.ttft import Ahead, ahead


class Answering(NamedTuple):
    """What a step of an answer costs at a target: of this, `scorers.streams.per_step`."""

    step_ms: float
    room_tokens: float  # infinite where the capacity is unknown
    capacity_tokens: float


class Lineup:
    """Of `targets`, in their order. The columns are empty until somebody wants to see them."""

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self.targets = targets
        self.slots: dict[TargetId, int] = {}
        self.requests: list[int] = []
        self.queued_ms: list[float] = []
        self.held_up: list[float] = []  # as `scorers.streams` has it
        self.answering: list[Answering] = []
        self.speeds: list[Speed] = []
        self.ahead: list[Ahead] = []
        self.weighted: list[Ahead] = []  # with what the work costs those whom it holds up
        self.crowded: set[Target] = set()  # requests of others wait in their engines
        self.distrusted: set[Target] = set()  # they broke promises

    def begin(self, now: float) -> None:
        if len(self.slots) == len(self.targets):
            return
        self.slots = {target.id: slot for slot, target in enumerate(self.targets)}
        self.requests = [0] * len(self.targets)
        self.queued_ms = [0.0] * len(self.targets)
        self.held_up = [0.0] * len(self.targets)
        self.answering = [Answering(0.0, inf, inf)] * len(self.targets)
        self.speeds = [target.speed.speed(now) for target in self.targets]
        self.ahead = [ahead(0.0, speed) for speed in self.speeds]
        self.weighted = self.ahead[:]
        self.catch_up(self.targets, now)

    def catch_up(self, changed: Iterable[Target], now: float) -> None:
        """Strangers among them are ignored."""
        slots = self.slots
        if not slots:
            return
        for target in changed:
            if (slot := slots.get(target.id)) is None:
                continue
            books, speed = target.books, target.speed.speed(now)
            self.requests[slot] = books.requests
            self.queued_ms[slot] = queued_ms = books.rounded_queued_ms(speed)
            self.held_up[slot] = weight = held_up(books)
            self.answering[slot] = _answering(target, step_ms(books, speed))
            self.speeds[slot] = speed
            self.ahead[slot] = bare = ahead(queued_ms, speed)
            self.weighted[slot] = _weighted(bare, queued_ms, 1 + weight)
            _mark(self.crowded, target, there=bool(books.elsewhere and books.gauges.waiting))
            _mark(self.distrusted, target, there=not target.trust.trusted)


def _answering(target: Target, step_ms: float) -> Answering:
    capacity_tokens = target.capacity_tokens or inf
    return Answering(step_ms, capacity_tokens - target.books.context_tokens, capacity_tokens)


def _weighted(bare: Ahead, queued_ms: float, weight: float) -> Ahead:
    """The queue counts once and the work `weight` times. All ways to do it grow alike: the least stays the least."""
    fixed_ms, ms_per_token, ms_per_pair, pool_ms, pool_ms_per_token = bare
    return Ahead(
        queued_ms + (fixed_ms - queued_ms) * weight,
        ms_per_token * weight,
        ms_per_pair * weight,
        pool_ms * weight,
        pool_ms_per_token * weight,
    )


def _mark(marked: set[Target], target: Target, *, there: bool) -> None:
    if there:
        marked.add(target)
    else:
        marked.discard(target)
