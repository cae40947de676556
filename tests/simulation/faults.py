"""Faults by seed: engines and routers that crash, freeze and lie, links that fail, clocks that jump; and what
operators do meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from router.lab.rng import Rng
from router.tasks import Tasks
from tests.simulation.engines import EngineHost
from tests.simulation.network import LinkState, Network
from tests.simulation.routers import RouterHost

PAUSE_S = 30.0  # the longest between two faults
DURATION_S = 60.0  # the longest of a fault

OF_ENGINES: Sequence[dict[str, Any]] = (
    {"freeze": True},
    {"wedge": True},
    {"slow": 10.0},
    {"drop_events": 0.3},
    {"drop_events": 0.1, "silent_replays": True},
    {"reorder_events": 0.3, "duplicate_events": 0.3},
    {"delay_events_ms": 3000.0},
    {"error_rate": 0.3},
    {"refuse": True},
    {"unhealthy": True},
    {"hang": ("/health", "/metrics")},
    {"hang": ("/v1/",)},
    {"die_before_first_byte": 0.3},
    {"die_mid_stream": 0.3},
    {"refuse_ids": True},
    {"no_ids": True},
)
LINK_STATES: Sequence[LinkState] = ("stalled", "refused")


class Faults:
    """Plays faults between `start` and `heal`. `history`: when each began or ended, and what it was."""

    def __init__(
        self, network: Network, engines: Sequence[EngineHost], routers: Sequence[RouterHost], rng: Rng
    ) -> None:
        self.history: list[tuple[float, str]] = []
        self._network = network
        self._engines = engines
        self._routers = routers
        self._rng = rng
        self._tasks = Tasks("faults")
        self._stopping = False
        self._begun: set[str] = set()  # places where a fault is played: one at a time each

    def start(self) -> None:
        self._tasks.spawn("faults", self._play_on())

    async def heal(self) -> None:
        """Begin no fault any more, and wait until those that are played have ended."""
        self._stopping = True
        await self._tasks.finish(2 * DURATION_S)
        self._note("everything is healed")

    async def _play_on(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_S * self._share())
            if self._stopping:
                return
            kinds = [self._engine_fault, self._engine_fault, self._engine_crash, self._engine_restart, self._link_fault]
            kinds += [self._clock_fault, self._router_restart, self._drain, self._switch]
            place, fault = kinds[self._rng.below(len(kinds))]()
            if place not in self._begun:
                self._begun.add(place)
                self._tasks.spawn(place, self._play(place, fault, DURATION_S * self._share()))

    async def _play(self, place: str, fault: Callable[[float], Awaitable[None]], duration_s: float) -> None:
        await fault(duration_s)
        self._begun.discard(place)

    # kinds: each returns its place and what to play there

    def _engine_fault(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        engine, changes = self._pick(self._engines), self._pick(OF_ENGINES)

        async def play(duration_s: float) -> None:
            self._note(f"{engine.name}: {changes} for {duration_s:.3f} s")
            engine.set_faults(**changes)
            await asyncio.sleep(duration_s)
            engine.set_faults()
            self._note(f"{engine.name}: no {changes}")

        return engine.name, play

    def _engine_crash(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        engine, silently = self._pick(self._engines), self._rng.happens(0.5)

        async def play(duration_s: float) -> None:
            self._note(f"{engine.name}: crashes{' silently' if silently else ''} for {duration_s:.3f} s")
            await engine.crash(silently=silently)
            await asyncio.sleep(duration_s)
            await engine.start()
            self._note(f"{engine.name}: started")

        return engine.name, play

    def _engine_restart(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        engine = self._pick(self._engines)

        async def play(duration_s: float) -> None:
            self._note(f"{engine.name}: its core restarts")
            engine.restart_core()

        return engine.name, play

    def _link_fault(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        one = self._pick(self._routers).name
        others = [engine.name for engine in self._engines] + [router.name for router in self._routers]
        other = self._pick([name for name in others if name != one])
        one, other = min(one, other), max(one, other)
        state: LinkState = "up" if self._rng.happens(0.3) else self._pick(LINK_STATES)
        slow = 200.0 if state == "up" else 1.0

        async def play(duration_s: float) -> None:
            self._note(f"{one} - {other}: {state}, latency x{slow:g}, for {duration_s:.3f} s")
            self._set_link(one, other, state, slow)
            await asyncio.sleep(duration_s)
            self._set_link(one, other, "up", 1.0)
            self._note(f"{one} - {other}: up")

        return f"{one} - {other}", play

    def _clock_fault(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        router, offset_s = self._pick(self._routers), 7200.0 * (self._share() - 0.5)

        async def play(duration_s: float) -> None:
            self._note(f"{router.name}: the wall clock jumps by {offset_s:.3f} s")
            router.clock.wall_offset_s = offset_s
            await asyncio.sleep(duration_s)

        return f"clock of {router.name}", play

    def _router_restart(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        router, kindly, silently = self._pick(self._routers), self._rng.happens(0.5), self._rng.happens(0.5)

        async def play(duration_s: float) -> None:
            how = "stops" if kindly else "crashes silently" if silently else "crashes"
            self._note(f"{router.name}: {how} for {duration_s:.3f} s")
            if kindly:
                await router.stop()
            else:
                await router.crash(silently=silently)
            await asyncio.sleep(duration_s)
            await router.start()
            self._note(f"{router.name}: started")

        return router.name, play

    def _drain(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        engine = self._pick(self._engines)

        async def play(duration_s: float) -> None:
            await self._set_drained(engine, True)
            await asyncio.sleep(duration_s)
            await self._set_drained(engine, False)

        return f"drain of {engine.name}", play

    async def _set_drained(self, engine: EngineHost, on: bool) -> None:
        """Drain an engine, or end that, at one of the routers; at another one if it is down."""
        while (router := self._pick(self._routers)).app is None:  # noqa: ASYNC110 - as an operator tries again
            await asyncio.sleep(1.0)
        self._note(f"{router.name}: {'drains' if on else 'undrains'} {engine.name}")
        await router.drain(engine.url, on)

    def _switch(self) -> tuple[str, Callable[[float], Awaitable[None]]]:
        router = self._pick(self._routers)

        async def play(duration_s: float) -> None:
            if router.app is not None:
                name = self._pick(list(router.app.core.control.policy_set.policies))
                self._note(f"{router.name}: switches to {name}")
                await router.activate(name)
            await asyncio.sleep(duration_s)

        return "policies", play

    def _set_link(self, one: str, other: str, state: LinkState, slow: float) -> None:
        self._network.link(one, other).slow = slow
        self._network.set_link(one, other, state)

    def _note(self, what: str) -> None:
        self.history.append((self._network.loop.time(), what))

    def _pick(self, among: Sequence[Any]) -> Any:
        return among[self._rng.below(len(among))]

    def _share(self) -> float:
        return self._rng.below(1000) / 1000
