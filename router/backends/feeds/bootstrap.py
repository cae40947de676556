"""Fetches the engine ids of prefill instances from their Mooncake bootstrap servers.

A decode engine finds its peer by an id that is new with every start of the peer (`GET /query`, protocol 7.1). The
registry lists the instances whose ids are missing: after joining, after a restart, after a failed prefill half.
Only these are queried, with growing pauses, until they answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

from router.backends.fetch import Fetch
from router.backends.vllm.disaggregation import read_engine_ids
from router.clock import Clock
from router.tasks import Alarm, Tasks

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
TIMEOUT_S = 2.0


class EngineIdRegistry(Protocol):
    """The engine ids of all prefill instances."""

    on_unknown: list[Callable[[], None]]  # called when engine ids have become unknown

    def without_engine_ids(self) -> list[str]:
        """Return the instances whose engine ids are missing."""

    def set_engine_ids(self, instance: str, engine_ids: Mapping[int, str]) -> None:
        """Store the engine ids of `instance`, by rank."""


class _PendingQuery:
    __slots__ = ("due_at", "pause_s", "waiting")

    def __init__(self, now: float) -> None:
        self.due_at = now
        self.pause_s = FIRST_PAUSE_S
        self.waiting = False


def bootstrap_name(instance: str) -> str:
    """Return the name under which `fetch` finds the instance's bootstrap server, which has its own address."""
    return f"{instance} bootstrap"


class BootstrapClient:
    """Queries the bootstrap servers."""

    def __init__(self, registry: EngineIdRegistry, fetch: Fetch, tasks: Tasks, clock: Clock) -> None:
        self._registry = registry
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._pending: dict[str, _PendingQuery] = {}
        self._alarm = Alarm()
        registry.on_unknown.append(self._alarm.ring)

    def start(self) -> None:
        """Start polling."""
        self._tasks.supervise("bootstrap", self._run)

    async def _run(self) -> None:
        while True:
            self.poll()
            await self._alarm.sleep(FIRST_PAUSE_S if self._pending else inf)

    def poll(self) -> None:
        """Query every instance without ids whose pause is over."""
        now = self._clock.now()
        self._pending = {
            instance: self._pending.get(instance) or _PendingQuery(now)
            for instance in self._registry.without_engine_ids()
        }
        for instance, query in self._pending.items():
            if now >= query.due_at and not query.waiting:
                query.waiting = True
                self._tasks.spawn("query", self._query(instance, query))

    async def _query(self, instance: str, query: _PendingQuery) -> None:
        answer = await self._fetch(bootstrap_name(instance), "/query", timeout_s=TIMEOUT_S)
        query.waiting = False
        query.due_at = self._clock.now() + query.pause_s
        query.pause_s = min(query.pause_s * 2, MAX_PAUSE_S)
        engine_ids = read_engine_ids(answer.body) if answer is not None and answer.status == 200 else None
        if engine_ids and self._pending.get(instance) is query:  # {}: the workers have not registered yet
            del self._pending[instance]  # the next query starts with the first pause
            self._registry.set_engine_ids(instance, engine_ids)
