"""Polls the engines' metrics pages: often where our requests are, seldom where not.

One task looks at the whole list a few times per interval and starts what is due, instead of one sleeping task per
instance: an idle instance that gets a request is then polled soon, without anybody having to wake its task. Looking
costs 0.2 us per instance, a poll of a 66 KB page about 0.4 ms (fetch, then 80 us of scanning): 200 idle instances at
one poll in 10 s are under 1 % of a core.

Pauses vary a little, so that instances that joined together drift apart (`stagger.py`). An answered page counts from
when it was *sent for*. Whoever does not answer is asked again after the idle pause; whether it is down is
`health.py`'s business, because an engine whose core is dead may well go on serving this page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from router.backends.feeds.jitter import Jitter
from router.backends.fetch import Fetch
from router.backends.vllm.metrics import read_gauges
from router.clock import Clock
from router.config import schema
from router.fleet.engine_facts import Gauges
from router.tasks import Tasks

LOOKS_PER_INTERVAL = 4
FIRST_WITHIN_S = 1.0  # polls of instances that join together are spread over this


class LoadRegistry(Protocol):
    """Who knows what is in flight and wants to know the rest."""

    def in_flight(self, instance: str) -> int:
        """Our requests there now."""

    def polling(self, instance: str) -> None:
        """A poll is about to be sent: own books are watched until it is answered."""

    def gauges(self, instance: str, page: Mapping[int, Gauges], sent_at: float, now: float) -> None:
        """What it says of itself, by rank. {}: it answered, with nothing we can read."""


class _Watched:
    """One instance's place in the timetable."""

    __slots__ = ("busy_at", "idle_at", "polling")

    def __init__(self, first_at: float) -> None:
        self.busy_at = self.idle_at = first_at
        self.polling = False


class MetricsPoller:
    def __init__(
        self, load: LoadRegistry, fetch: Fetch, tasks: Tasks, clock: Clock, config: schema.MetricsPollConfig
    ) -> None:
        self._load = load
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._config = config
        self._watched: dict[str, _Watched] = {}
        self._stagger = Jitter()
        self.polls = 0
        self.unanswered = 0

    def start(self) -> None:
        self._tasks.supervise("metrics", self._run)

    def watch(self, instance: str) -> None:
        first_at = self._clock.now() + self._stagger.share() * min(FIRST_WITHIN_S, self._config.idle_interval_s)
        self._watched[instance] = _Watched(first_at)

    def unwatch(self, instance: str) -> None:
        self._watched.pop(instance, None)

    async def _run(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(self._config.busy_interval_s / LOOKS_PER_INTERVAL)

    def poll(self) -> None:
        """Start every poll that is due. Never two at once of one instance."""
        now = self._clock.now()
        for instance, watched in self._watched.items():
            if watched.polling or now < watched.busy_at:
                continue
            if now >= watched.idle_at or self._load.in_flight(instance):
                watched.polling = True
                self._tasks.spawn("poll", self._poll(instance, watched))

    async def _poll(self, instance: str, watched: _Watched) -> None:
        sent_at = self._clock.now()
        self._load.polling(instance)
        answer = await self._fetch(instance, "GET", "/metrics", timeout_s=self._config.timeout_s)
        now = self._clock.now()
        watched.polling = False
        watched.idle_at = sent_at + self._stagger.around(self._config.idle_interval_s)
        watched.busy_at = sent_at + self._stagger.around(self._config.busy_interval_s)
        if self._watched.get(instance) is not watched:
            return  # it left, or left and came back as another, while we waited
        self.polls += 1
        if answer is None or answer.status != 200:
            self.unanswered += 1
            watched.busy_at = watched.idle_at
        else:
            self._load.gauges(instance, read_gauges(answer.body), sent_at, now)
