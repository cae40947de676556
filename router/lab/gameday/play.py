"""Play a game day: the load, the faults at their times, and a look at the router's metrics four times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import httpx

from router.clock import Clock
from router.config.sections.gameday import TRAITS, GamedayFault, GamedayFile
from router.lab.gameday.clients import GamedayClients, LoadEndpoint
from router.lab.gameday.outcome import FaultOutcome, Look, PlayedFault, judge, judge_calm
from router.lab.gameday.reading import read_metrics
from router.lab.gameday.stage import Stage
from router.lab.loadgen.load import SentRequest
from router.lab.rng import Rng
from router.tasks import Tasks

LOOK_S = 0.25
LOOK_TIMEOUT_S = 2.0
CLEAR_S = 0.2  # between two attempts to clear the cache of an engine whose events are wrong
DRAIN_S = 30.0  # after its end the load may take this long until its last answer

ReportProgress = Callable[["GamedayRun"], None]


class GamedayRun:
    """One game day, from its start to its end or its interruption."""

    def __init__(self, script: GamedayFile, endpoint: LoadEndpoint, clock: Clock, stage: Stage | None = None) -> None:
        """`stage`: the processes on which faults are played; None: the router is somebody else's, so only clients
        can be the fault.
        """
        self.script = script
        self.endpoint = endpoint
        self.rows: list[SentRequest] = []
        self.looks: list[Look] = []
        self.played: list[PlayedFault] = []
        self.skipped: list[GamedayFault] = []
        self.current: GamedayFault | None = None
        self.is_stuck = False  # some requests of the load had not ended long after the load's end
        self.interrupted = False
        self._stage = stage
        self._clock = clock
        self._start_s = clock.now()
        self._clients: GamedayClients  # while it runs
        self._rng = Rng(script.seed)

    @property
    def now_s(self) -> float:
        """Seconds since the load began."""
        return self._clock.now() - self._start_s

    async def run(self, progress: ReportProgress) -> None:
        """Play the whole game day. Raises WarmrouteError when a fault cannot be played."""
        self._start_s = self._clock.now() + LOOK_S
        self._clients = GamedayClients(self.script, self.endpoint, self._clock, self._start_s)
        tasks = Tasks("game day")
        tasks.spawn("watch", self._watch(progress))
        loading = tasks.spawn("load", self._clients.run_load(self.rows.append))
        try:
            for fault in self.script.faults:
                await self._play(fault)
            await asyncio.sleep(self.script.ends_s - self.now_s)
            await asyncio.wait([loading], timeout=DRAIN_S)
            self.is_stuck = not loading.done()
        finally:
            await tasks.close()

    def outcomes(self) -> list[FaultOutcome]:
        """Return the figures of the calm and of every fault that was played."""
        first_s = self.played[0].began_s if self.played else self.script.ends_s
        calm = judge_calm(self.rows, self.script.calm_from_s, first_s, self.script.must)
        begins = [one.began_s for one in self.played[1:]]
        until = [*begins, max(self.script.ends_s, self.now_s if self.interrupted else 0.0)]
        faults = [judge(one, end_s, self.rows, self.looks, calm) for one, end_s in zip(self.played, until, strict=True)]
        return [calm, *faults]

    async def _play(self, fault: GamedayFault) -> None:
        if self._stage is None and not TRAITS[fault.fault].by_clients:
            self.skipped.append(fault)
            return
        engine = fault.engine if fault.engine is not None else self._rng.below(self.script.fleet.engines)
        fault = fault.model_copy(update={"engine": engine}) if "engine" in TRAITS[fault.fault].parameters else fault
        await asyncio.sleep(fault.at_s - self.now_s)
        self.current, began_s = fault, self.now_s
        try:
            await self._last(fault, self._stage)
        finally:
            bounds, agents = fault.must, self.script.load.agents
            self.played.append(PlayedFault(fault.fault, describe(fault), began_s, self.now_s, bounds, agents))
            self.current = None

    async def _last(self, fault: GamedayFault, stage: Stage | None) -> None:
        """Let the fault happen, and return when it is over and undone."""
        end_s = fault.end_s
        if fault.fault == "flood":
            await self._clients.run_flood(fault.clients, fault.tokens, end_s)
        elif fault.fault == "hang_ups":
            await self._clients.run_hang_ups(fault.clients, end_s)
        elif stage is not None:
            await begin_fault(stage, fault)
            try:
                while (left_s := end_s - self.now_s) > 0:
                    if fault.fault == "wrong_events":
                        await stage.clear_cache(fault.engine or 0)
                        left_s = min(left_s, CLEAR_S)
                    await asyncio.sleep(left_s)
            finally:
                await end_fault(stage, fault)

    async def _watch(self, progress: ReportProgress) -> None:
        """Read the router's metrics periodically until cancelled."""
        async with httpx.AsyncClient(timeout=LOOK_TIMEOUT_S, trust_env=False) as http:
            while True:
                at_s, reading = self.now_s, None
                with suppress(httpx.HTTPError):
                    answer = await http.get(f"{self.endpoint.url}/metrics")
                    reading = read_metrics(answer.text) if answer.status_code == 200 else None
                self.looks.append(Look(self.now_s, reading))
                progress(self)
                await asyncio.sleep(max(0.0, at_s + LOOK_S - self.now_s))


async def begin_fault(stage: Stage, fault: GamedayFault) -> None:
    """Let a fault of the fleet, the pool or the router begin. Raises WarmrouteError when the router refuses."""
    engine = fault.engine or 0
    match fault.fault:
        case "kill":
            stage.kill_engine(engine)
        case "freeze":
            stage.freeze_engine(engine)
        case "wedge":
            await stage.set_engine_faults(engine, wedge=True)
        case "slow":
            await stage.set_engine_faults(engine, slow=fault.factor)
        case "lossy_events":
            await _set_all(stage, drop_events=fault.share)
        case "wrong_events":
            await stage.set_engine_faults(engine, hide_removals=True)
        case "full_disk":
            stage.fill_disk()
        case "dead_pool":
            await stage.stop_pool()
        case "partition":
            for relay in stage.relays[engine]:
                relay.stall() if fault.how == "stall" else relay.refuse()
        case "bad_policy":
            await stage.activate(fault.policy or "")
        case "clock_jump" if fault.of == "router":
            stage.set_router_clock(fault.jump_s)
        case "clock_jump":
            await _set_all(stage, clock_offset_s=fault.jump_s)


async def end_fault(stage: Stage, fault: GamedayFault) -> None:
    """Undo what `begin_fault` did; a killed engine comes back by itself."""
    engine = fault.engine or 0
    match fault.fault:
        case "freeze":
            stage.continue_engines()
        case "wedge":
            await stage.set_engine_faults(engine, wedge=False)
        case "slow":
            await stage.set_engine_faults(engine, slow=1.0)
        case "lossy_events":
            await _set_all(stage, drop_events=0.0)
        case "wrong_events":
            await stage.set_engine_faults(engine, hide_removals=False)
        case "full_disk":
            stage.free_disk()
        case "dead_pool":
            await stage.start_pool()
        case "partition":
            for relay in stage.relays[engine]:
                await relay.heal()
        case "bad_policy":
            await stage.undo()
        case "clock_jump" if fault.of == "router":
            stage.set_router_clock(0.0)
        case "clock_jump":
            await _set_all(stage, clock_offset_s=0.0)


async def _set_all(stage: Stage, **faults: object) -> None:
    for number in range(stage.script.fleet.engines):
        await stage.set_engine_faults(number, **faults)


def describe(fault: GamedayFault) -> str:
    """Return what is done to whom, such as `engine-1, factor 4`."""
    values = {name: getattr(fault, name) for name in TRAITS[fault.fault].parameters}
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return ", ".join(f"engine-{text}" if name == "engine" else f"{name} {text}" for name, text in texts.items())
