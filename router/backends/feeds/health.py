"""Probes the health of every instance, and reads what joining instances serve.

    joining   GET /health, then /v1/models and /kv_event_sources   -> registry.joined
    ready     GET /health; every half minute the two others again: adapters come and go, and an engine that restarted
              between two probes may publish its events elsewhere   -> registry.serves, or registry.joined again
    failed    probed again after 0.25, 0.5, 1, ... s up to the ordinary interval, down or not: two failures in a row
              are seen within half a second, and a restarted engine is found soon

The registry (`fleet/fleet.py`) holds the state; this module decides only when to probe. `suspect` brings a probe
forward when a request could not connect. A probe without an answer in time is reported as late: an engine that is
busy is not gone, and an engine that delivers answers meanwhile is healthy.

Cost. A probe is a small request, 0.2 ms or less. Probes of healthy instances stay under `PROBES_PER_S`, by a longer
interval when there are many instances: 200 are probed every 4 s, for 1 % of a core. This is enough, because an
instance in use is also watched by its own requests (`suspect`, breaker). An answered metrics page does *not* count
as healthy: the HTTP front end still serves it when the engine behind it is dead, which /health reports (503).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from router.backends.failure import NOT_TLS, REFUSED, UNTRUSTED
from router.backends.feeds.jitter import Jitter
from router.backends.fetch import ANSWER_BYTES, HttpAnswer, NoAnswer, ProbeFetch
from router.backends.vllm.info import ModelList, read_event_sources, read_models
from router.clock import Clock
from router.config import schema
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.engine_limits import OverLimit
from router.tasks import Alarm, Tasks, in_turns

LEAST_PAUSE_S = 0.05  # between two looks at the list
PROBES_PER_S = 50
PROBES_PER_TURN = 25  # of the event loop: 2,000 engines that join together would stop it for 0.2 s
FIRST_RETRY_S = 0.25
INTRODUCTION_VALID_S = 30.0
HINTS = {
    REFUSED: "nothing listens at its url",
    NOT_TLS: "write its url with http://",
    UNTRUSTED: "name its CA in ca_file",
}
"""What to change, by the beginning of the reason why an engine does not answer."""
CLOSED = "the engine closed the connection"  # as one with TLS does, when a request comes without


class HealthRegistry(Protocol):
    """The state of all instances."""

    def joined(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> None:
        """Record what a joining instance serves and where each rank publishes its events ([]: nowhere)."""

    def serves(self, instance: str, cards: Sequence[ModelCard]) -> None:
        """Record that a ready instance serves other models or adapters than before."""

    def over_limit(self, instance: str, over: OverLimit) -> None:
        """Record that the instance's answer exceeds a limit."""

    def probe_ok(self, instance: str, now: float) -> bool:
        """Record a successful probe. Return True for a joining instance: the caller then reads what it serves."""

    def probing(self, instance: str) -> None:
        """Record that a probe begins."""

    def probe_failed(self, instance: str, now: float, *, late: bool) -> None:
        """Record a failed probe. `late`: the instance was reached and did not answer in time."""


class _Problem(NamedTuple):
    """A problem that a probe found. `late`: the answer did not arrive in time, and nothing else is wrong."""

    detail: str
    late: bool = False


class _ProbeState:
    """Probe state of one instance."""

    __slots__ = (
        "config",
        "due_at",
        "failures",
        "introduced_at",
        "models",
        "probing",
        "reports_sources",
        "sources",
        "trouble",
    )

    def __init__(self, config: schema.InstanceConfig, due_at: float) -> None:
        self.config = config
        self.due_at = due_at
        self.probing = False
        self.failures = 0
        self.introduced_at = 0.0
        self.models = ModelList([])
        self.sources: list[EventEndpoint] | OverLimit = []
        self.reports_sources: bool | None = None
        self.trouble: str | None = None


class HealthProbe:
    """Probes all watched instances."""

    def __init__(
        self, registry: HealthRegistry, fetch: ProbeFetch, tasks: Tasks, clock: Clock, config: schema.HealthConfig
    ) -> None:
        self._registry = registry
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._config = config
        self._states: dict[str, _ProbeState] = {}
        self._jitter = Jitter()
        self._alarm = Alarm()
        self.probes = 0

    def start(self) -> None:
        """Start probing."""
        self._tasks.supervise("health", self._run)

    def watch(self, config: schema.InstanceConfig) -> None:
        """Probe the instance from now on, beginning at once. The registry and `fetch` must know it already."""
        self._states[config.id] = _ProbeState(config, self._clock.now())
        self._alarm.ring()

    def unwatch(self, instance: str) -> None:
        """Stop probing the instance."""
        self._states.pop(instance, None)

    def suspect(self, instance: str) -> None:
        """Probe now rather than at the next interval, because a request could not connect."""
        if (state := self._states.get(instance)) is not None:
            state.due_at = self._clock.now()
            self._alarm.ring()

    def trouble(self, instance: str) -> str | None:
        """Return the problem that the last probe of the instance found, for operators; None if there is none."""
        state = self._states.get(instance)
        return None if state is None else state.trouble

    def reports_sources(self, instance: str) -> bool | None:
        """Return whether the instance reports where it publishes events; False for a version before 0.31. None: it did
        not answer yet, or is not queried, because its sources are configured.
        """
        state = self._states.get(instance)
        return None if state is None else state.reports_sources

    async def _run(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(LEAST_PAUSE_S)  # many may ring, and each look costs time per instance
            next_at = min((state.due_at for state in self._states.values()), default=inf)
            await self._alarm.sleep(next_at - self._clock.now())

    async def poll(self) -> None:
        """Start every probe that is due."""
        now = self._clock.now()
        due = [(id, state) for id, state in self._states.items() if now >= state.due_at and not state.probing]
        async for instance, state in in_turns(due, PROBES_PER_TURN):
            if self._is_current(instance, state):
                state.probing = True
                state.due_at = now + self._pause_s()
                self._tasks.spawn("probe", self._probe(instance, state))

    async def _probe(self, instance: str, state: _ProbeState) -> None:
        self.probes += 1
        self._registry.probing(instance)
        try:
            problem = await self._check(instance, state)
        finally:
            state.probing = False
        if not self._is_current(instance, state):
            return
        state.trouble = None if problem is None else problem.detail
        if problem is None:
            state.failures = 0
            return
        self._registry.probe_failed(instance, self._clock.now(), late=problem.late)
        retry_s = FIRST_RETRY_S * 2.0 ** min(state.failures, 20)
        state.failures += 1
        state.due_at = self._clock.now() + min(retry_s, self._pause_s())
        self._alarm.ring()

    async def _check(self, instance: str, state: _ProbeState) -> _Problem | None:
        """Probe the instance once. Return the problem, if there is one."""
        answer = await self._get(instance, "/health")
        if not isinstance(answer, HttpAnswer):
            return _describe_silence(state, "/health", answer)
        if answer.status != 200:
            return _Problem(f"GET /health: {answer.status}")
        if not self._is_current(instance, state):
            return None
        now = self._clock.now()
        joining = self._registry.probe_ok(instance, now)
        if joining or now - state.introduced_at >= INTRODUCTION_VALID_S:
            return await self._introduce(instance, state, joining)
        return None

    async def _introduce(self, instance: str, state: _ProbeState, joining: bool) -> _Problem | None:
        """Read what the instance serves and report changes to the registry. Return the problem, if there is one."""
        answer = await self._get(instance, "/v1/models")
        if not isinstance(answer, HttpAnswer):
            return _describe_silence(state, "/v1/models", answer)
        models = read_models(answer.body) if answer.status == 200 else None
        if models is None or not models.cards:
            hint = ": is api_key_env right?" if answer.status in (401, 403) else ""
            return _Problem(f"GET /v1/models: {answer.status} and no list of models{hint}")
        sources = await self._sources(instance, state)
        if not self._is_current(instance, state):
            return None
        if joining or sources != state.sources:
            self._registry.joined(instance, models.cards, [] if isinstance(sources, OverLimit) else sources)
        elif models != state.models:
            self._registry.serves(instance, models.cards)
        for over in (models.over, sources):
            if isinstance(over, OverLimit):
                self._registry.over_limit(instance, over)
        state.models, state.sources = models, sources
        state.introduced_at = self._clock.now()
        return None

    async def _sources(self, instance: str, state: _ProbeState) -> list[EventEndpoint] | OverLimit:
        """Return where the instance publishes events. Versions before 0.31 lack the endpoint and are configured."""
        setting = state.config.kv_events
        if setting == "off":
            return []
        if setting != "auto":
            return [EventEndpoint(s.rank, s.endpoint, s.replay_endpoint, s.topic) for s in setting]
        answer = await self._get(instance, "/kv_event_sources")
        if not isinstance(answer, HttpAnswer):
            return state.sources
        if answer.status == 404:
            state.reports_sources = False
            return []
        host = urlsplit(state.config.url).hostname or ""
        sources = read_event_sources(answer.body, host) if answer.status == 200 else None
        if isinstance(sources, list):
            state.reports_sources = True
        return state.sources if sources is None else sources  # None: the answer could not be read

    async def _get(self, instance: str, path: str) -> HttpAnswer | NoAnswer:
        answer = await self._fetch(instance, path, timeout_s=self._config.timeout_s)
        if isinstance(answer, HttpAnswer) and answer.oversized:
            self._registry.over_limit(instance, OverLimit("answer", f"GET {path}: more than {ANSWER_BYTES:,} bytes"))
        return answer

    def _is_current(self, instance: str, state: _ProbeState) -> bool:
        """Return whether this very instance is still watched, and not another that joined under its name."""
        return self._states.get(instance) is state

    def _pause_s(self) -> float:
        """Return the configured interval, or a longer one to keep all probes together under `PROBES_PER_S`."""
        return self._jitter.around(max(self._config.interval_s, len(self._states) / PROBES_PER_S))


def _describe_silence(state: _ProbeState, path: str, answer: NoAnswer) -> _Problem:
    hints = HINTS if state.config.url.startswith("https:") else HINTS | {CLOSED: "if it has TLS, write https://"}
    hint = next((text for reason, text in hints.items() if answer.reason.startswith(reason)), None)
    return _Problem(f"GET {path}: {answer.reason}{'' if hint is None else f': {hint}'}", answer.late)
