"""Asks every engine whether it is well, and a newcomer who it is.

    joining   GET /health, then /v1/models and /kv_event_sources   -> sink.joined
    ready     GET /health; every half minute the two others again: adapters come and go, and an engine that restarted
              between two probes may publish its events elsewhere   -> sink.serves, or sink.joined anew
    failed    asked again after 0.25, 0.5, 1, ... s up to the ordinary pause, down or not: two failures in a row
              are seen within half a second, and a restarted engine is found soon

The state itself is the sink's (`fleet/fleet.py`); here are only times. `suspect` brings a probe forward when a
request could not connect.

Cost. A probe is a small request, 0.2 ms or less. All probes together stay under `PROBES_PER_S`, by stretching the
pause when there are many instances: 200 are asked every 4 s, for 1 % of a core. They can afford it, because an
instance in use is also watched by its own requests (`suspect`, breaker). A metrics page answered is *not* taken for
a sign of life: the HTTP front end goes on serving it when the engine behind it is dead, which /health tells (503).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from router.backends.feeds.jitter import Jitter
from router.backends.fetch import Fetch, HttpAnswer
from router.backends.vllm.info import read_event_sources, read_models
from router.clock import Clock
from router.config import schema
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.tasks import Tasks

LOOK_EVERY_S = 0.05
PROBES_PER_S = 50
FIRST_RETRY_S = 0.25
INTRODUCTION_VALID_S = 30.0


class HealthRegistry(Protocol):
    """Who keeps the instances' states."""

    def joined(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> None:
        """A joining instance told what it serves and where each rank publishes its events ([]: nowhere)."""

    def serves(self, instance: str, cards: Sequence[ModelCard]) -> None:
        """A ready instance serves other models or adapters than before."""

    def probe_ok(self, instance: str, now: float) -> bool:
        """It is well. True: it is joining, ask who it is."""

    def probe_failed(self, instance: str, now: float) -> None:
        """It gave no answer, or said that it is not well."""


class _Ward:
    """What is remembered of one instance between probes."""

    __slots__ = ("cards", "config", "due_at", "failures", "introduced_at", "probing", "sources", "trouble")

    def __init__(self, config: schema.InstanceConfig, due_at: float) -> None:
        self.config = config
        self.due_at = due_at
        self.probing = False
        self.failures = 0
        self.introduced_at = 0.0
        self.cards: list[ModelCard] = []
        self.sources: list[EventEndpoint] = []
        self.trouble: str | None = None


class HealthProbe:
    def __init__(
        self, registry: HealthRegistry, fetch: Fetch, tasks: Tasks, clock: Clock, config: schema.HealthConfig
    ) -> None:
        self._registry = registry
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._config = config
        self._wards: dict[str, _Ward] = {}
        self._stagger = Jitter()
        self.probes = 0

    def start(self) -> None:
        self._tasks.supervise("health", self._run)

    def watch(self, config: schema.InstanceConfig) -> None:
        """Probe it from now on, at once. The registry and the fetcher know it already."""
        self._wards[config.id] = _Ward(config, self._clock.now())

    def unwatch(self, instance: str) -> None:
        self._wards.pop(instance, None)

    def suspect(self, instance: str) -> None:
        """A request could not connect: look now rather than at the next turn."""
        if (ward := self._wards.get(instance)) is not None:
            ward.due_at = self._clock.now()

    def trouble(self, instance: str) -> str | None:
        """For people: why it is not ready; None when nothing is wrong."""
        ward = self._wards.get(instance)
        return None if ward is None else ward.trouble

    async def _run(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(LOOK_EVERY_S)

    def poll(self) -> None:
        """Start every probe that is due."""
        now = self._clock.now()
        for instance, ward in self._wards.items():
            if now >= ward.due_at and not ward.probing:
                ward.probing = True
                ward.due_at = now + self._pause_s()
                self._tasks.spawn("probe", self._probe(instance, ward))

    async def _probe(self, instance: str, ward: _Ward) -> None:
        self.probes += 1
        try:
            trouble = await self._well(instance, ward)
        finally:
            ward.probing = False
        if not self._here(instance, ward):
            return
        ward.trouble = trouble
        if trouble is None:
            ward.failures = 0
            return
        self._registry.probe_failed(instance, self._clock.now())
        retry_s = FIRST_RETRY_S * 2.0 ** min(ward.failures, 20)
        ward.failures += 1
        ward.due_at = self._clock.now() + min(retry_s, self._pause_s())

    async def _well(self, instance: str, ward: _Ward) -> str | None:
        """One visit. Its answer is the trouble, if there is one."""
        answer = await self._get(instance, "/health")
        if answer is None:
            return "GET /health: no answer"
        if answer.status != 200:
            return f"GET /health: {answer.status}"
        if not self._here(instance, ward):
            return None
        now = self._clock.now()
        joining = self._registry.probe_ok(instance, now)
        if joining or now - ward.introduced_at >= INTRODUCTION_VALID_S:
            return await self._introduce(instance, ward, joining)
        return None

    async def _introduce(self, instance: str, ward: _Ward, joining: bool) -> str | None:
        """Ask who it is and tell the registry what is new. The answer is the trouble, as above."""
        answer = await self._get(instance, "/v1/models")
        if answer is None:
            return "GET /v1/models: no answer"
        cards = read_models(answer.body) if answer.status == 200 else None
        if not cards:
            hint = ": is api_key_env right?" if answer.status in (401, 403) else ""
            return f"GET /v1/models: {answer.status} and no list of models{hint}"
        sources = await self._sources(instance, ward)
        if not self._here(instance, ward):
            return None
        if joining or sources != ward.sources:
            self._registry.joined(instance, cards, sources)
        elif cards != ward.cards:
            self._registry.serves(instance, cards)
        ward.cards, ward.sources = cards, sources
        ward.introduced_at = self._clock.now()
        return None

    async def _sources(self, instance: str, ward: _Ward) -> list[EventEndpoint]:
        """Where it publishes events. Versions before 0.31 do not know the question; theirs stand in the config."""
        given = ward.config.kv_events
        if given == "off":
            return []
        if given != "auto":
            return [EventEndpoint(s.rank, s.endpoint, s.replay_endpoint, s.topic) for s in given]
        answer = await self._get(instance, "/kv_event_sources")
        if answer is not None and answer.status == 404:
            return []
        host = urlsplit(ward.config.url).hostname or ""
        sources = read_event_sources(answer.body, host) if answer is not None and answer.status == 200 else None
        return ward.sources if sources is None else sources  # None: it said nothing new

    async def _get(self, instance: str, path: str) -> HttpAnswer | None:
        return await self._fetch(instance, "GET", path, timeout_s=self._config.timeout_s)

    def _here(self, instance: str, ward: _Ward) -> bool:
        """Still the one we watch: it may have left while we waited, and another come under its name."""
        return self._wards.get(instance) is ward

    def _pause_s(self) -> float:
        """The configured pause, or what the budget of all probes together allows."""
        return self._stagger.around(max(self._config.interval_s, len(self._wards) / PROBES_PER_S))
