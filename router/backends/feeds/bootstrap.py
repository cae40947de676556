"""Asks the Mooncake bootstrap servers of prefill instances what their engines are called.

A decode engine finds its peer by an id that is new with every start of the peer (`GET /query`, protocol 7.1). The
registry says whose ids it lacks: after joining, after a restart, after a failed prefill half. Those are asked until
they answer, with growing pauses; nobody is asked while nothing is in doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from router.backends.fetch import Fetch
from router.backends.vllm.disaggregation import read_engine_ids
from router.clock import Clock
from router.tasks import Tasks

LOOK_EVERY_S = 0.05
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
TIMEOUT_S = 2.0


class EngineIdRegistry(Protocol):
    """Who keeps the engines' ids."""

    def without_engine_ids(self) -> list[str]:
        """Instances whose engine ids are wanted."""

    def set_engine_ids(self, instance: str, engine_ids: Mapping[int, str]) -> None:
        """Its engines' ids, by rank."""


class _Asked:
    __slots__ = ("due_at", "pause_s", "waiting")

    def __init__(self, now: float) -> None:
        self.due_at = now
        self.pause_s = FIRST_PAUSE_S
        self.waiting = False


def bootstrap_name(instance: str) -> str:
    """The name under which the instance's bootstrap server is fetched from: it has an address of its own."""
    return f"{instance} bootstrap"


class BootstrapClient:
    def __init__(self, registry: EngineIdRegistry, fetch: Fetch, tasks: Tasks, clock: Clock) -> None:
        self._registry = registry
        self._fetch = fetch
        self._tasks = tasks
        self._clock = clock
        self._asked: dict[str, _Asked] = {}

    def start(self) -> None:
        self._tasks.supervise("bootstrap", self._run)

    async def _run(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(LOOK_EVERY_S)

    def poll(self) -> None:
        """Ask everybody who is nameless and due."""
        now = self._clock.now()
        self._asked = {
            instance: self._asked.get(instance) or _Asked(now) for instance in self._registry.without_engine_ids()
        }
        for instance, asked in self._asked.items():
            if now >= asked.due_at and not asked.waiting:
                asked.waiting = True
                self._tasks.spawn("query", self._ask(instance, asked))

    async def _ask(self, instance: str, asked: _Asked) -> None:
        answer = await self._fetch(bootstrap_name(instance), "GET", "/query", timeout_s=TIMEOUT_S)
        asked.waiting = False
        asked.due_at = self._clock.now() + asked.pause_s
        asked.pause_s = min(asked.pause_s * 2, LONGEST_PAUSE_S)
        engine_ids = read_engine_ids(answer.body) if answer is not None and answer.status == 200 else None
        if engine_ids and self._asked.get(instance) is asked:  # {}: its workers have not registered yet
            del self._asked[instance]  # its next doubt is a new one
            self._registry.set_engine_ids(instance, engine_ids)
