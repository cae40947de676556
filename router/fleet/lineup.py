"""Candidates side by side, in columns: what is asked of each of them at every request, where they are a thousand.

Most of a large fleet loses every choice at a glance: it holds no more of the prompt than a target that waits less. To
see that takes a number or two per target, not a row. So these are kept in lists, which C walks through, and brought up
to date for the few targets that changed since the last look. They say what rows would say.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.blocks.events import TargetId
from router.fleet.target import Target
from scorers.contract import Speed
from scorers.streams import held_up, streamed_ms_per_token
from scorers.ttft import Ahead, ahead


class Lineup:
    """Of `targets`, in their order. The columns are empty until somebody wants to see them."""

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self.targets = targets
        self.slots: dict[TargetId, int] = {}
        self.requests: list[int] = []
        self.queued_ms: list[float] = []
        self.held_up: list[float] = []  # as `scorers.streams` prices it
        self.streamed_ms: list[float] = []  # per token, likewise
        self.speeds: list[Speed] = []
        self.ahead: list[Ahead] = []
        self.crowded: set[Target] = set()  # requests of others wait in their engines
        self.distrusted: set[Target] = set()  # they broke promises

    def begin(self, now: float) -> None:
        if len(self.slots) == len(self.targets):
            return
        self.slots = {target.id: slot for slot, target in enumerate(self.targets)}
        self.requests = [0] * len(self.targets)
        self.queued_ms = [0.0] * len(self.targets)
        self.held_up = [0.0] * len(self.targets)
        self.streamed_ms = [0.0] * len(self.targets)
        self.speeds = [target.speed.speed(now) for target in self.targets]
        self.ahead = [ahead(0.0, speed) for speed in self.speeds]
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
            self.held_up[slot] = held_up(books)
            self.streamed_ms[slot] = streamed_ms_per_token(books, speed)
            self.speeds[slot] = speed
            self.ahead[slot] = ahead(queued_ms, speed)
            _mark(self.crowded, target, there=bool(books.elsewhere and books.gauges.waiting))
            _mark(self.distrusted, target, there=not target.trust.trusted)


def _mark(marked: set[Target], target: Target, *, there: bool) -> None:
    if there:
        marked.add(target)
    else:
        marked.discard(target)
