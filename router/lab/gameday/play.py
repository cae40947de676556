"""Play a game day: the load, the faults at their times, and a look at the routers' metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import httpx

from router.clock import Clock
from router.config.sections.gameday import TRAITS, GamedayEnd, GamedayFault, GamedayFile
from router.lab.gameday.clients import GamedayClients, LoadEndpoint
from router.lab.gameday.ending import (
    CounterSum,
    Violation,
    count_answers,
    count_requests,
    find_errors,
    find_growth,
    find_miscounted,
    find_unclean,
    find_unequal,
    list_leftovers,
    read_counts,
)
from router.lab.gameday.faults import begin_fault, describe, end_fault
from router.lab.gameday.outcome import FaultOutcome, Look, PlayedFault, judge, judge_calm
from router.lab.gameday.reading import read_metrics
from router.lab.gameday.routers import ProcessSize, StageNotReady
from router.lab.gameday.stage import Stage
from router.lab.loadgen.load import SentRequest
from router.lab.rng import Rng
from router.tasks import Tasks

LOOK_S = 0.25  # between two looks at one router; of several, each page is merged from those of its workers
SIZE_S = 5.0  # between two looks at the sizes of the routers' processes
LOOK_TIMEOUT_S = 2.0
CLEAR_S = 0.2  # between two attempts to clear the cache of an engine whose events are wrong
DRAIN_S = 30.0  # after its end the load may take this long until its last answer
REST_S = 30.0  # after the last answer, books and engines may take this long until they are empty
LOST_S = 2.0  # before a router or worker is killed, in which it counted what no look has seen

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
        self.others: list[SentRequest] = []  # of floods, single requests and the load that is counted at the end
        self.abandoned = 0  # requests of clients that hang up
        self.sizes: list[ProcessSize] = []
        self.violations: list[Violation] = []  # of what must hold at the end
        self.skipped: list[GamedayFault] = []
        self.current: GamedayFault | None = None
        self.is_stuck = False  # some requests of the load had not ended long after the load's end
        self.interrupted = False
        self._stage = stage
        self._clock = clock
        self._start_s = clock.now()
        self._clients: GamedayClients  # while it runs
        self._start_wall_s = clock.wall()
        self._rng = Rng(script.seed)
        self._urls: list[str] = []  # of the routers whose metrics are read
        self._counted = CounterSum()  # requests, by the routers

    @property
    def now_s(self) -> float:
        """Seconds since the load began."""
        return self._clock.now() - self._start_s

    async def run(self, progress: ReportProgress) -> None:
        """Play the whole game day. Raises WarmrouteError when a fault cannot be played."""
        self._start_s, self._start_wall_s = self._clock.now() + LOOK_S, self._clock.wall() + LOOK_S
        self._clients = GamedayClients(self.script, self.endpoint, self._clock, self._start_s)
        tasks = Tasks("game day")
        tasks.spawn("watch", self._watch(progress))
        if self._stage is not None and self.script.at_end is not None:
            tasks.spawn("sizes", self._measure_processes(self._stage))
        loading = tasks.spawn("load", self._load())
        try:
            for fault in self.script.faults:
                await self._play(fault)
            await asyncio.sleep(self.script.ends_s - self.now_s)
            await asyncio.wait([loading], timeout=DRAIN_S)
            self.is_stuck = not loading.done()
            if self._stage is not None and self.script.at_end is not None:
                await self._examine_end(self._stage, self.script.at_end)
        finally:
            await tasks.close()

    async def _load(self) -> None:
        """Run all clients but those of faults until `ends_s`."""
        ends_s, clients = self.script.ends_s, self._clients
        async with asyncio.TaskGroup() as kinds:
            kinds.create_task(clients.run_load(ends_s, self.rows.append), name="agents")
            kinds.create_task(clients.run_singles(ends_s, self.others.append), name="singles")
            kinds.create_task(self._hang_up(self.script.load.leavers, ends_s), name="leavers")

    async def _hang_up(self, clients: int, until_s: float) -> None:
        left = await self._clients.run_hang_ups(clients, until_s)
        self.abandoned += left  # after the wait, in which others leave: `+=` with `await` would forget these

    def outcomes(self) -> list[FaultOutcome]:
        """Return the figures of the calm and of every fault that was played."""
        first_s = self.played[0].began_s if self.played else self.script.ends_s
        calm = judge_calm(self.rows, self.script.calm_from_s, first_s, self.script.must)
        begins = [one.began_s for one in self.played[1:]]
        until = [*begins, max(self.script.ends_s, self.now_s if self.interrupted else 0.0)]
        faults = [judge(one, end_s, self.rows, self.looks, calm) for one, end_s in zip(self.played, until, strict=True)]
        return [calm, *faults]

    def holds(self, outcomes: Sequence[FaultOutcome]) -> bool:
        """Return whether every bound holds, and nothing is wrong at the end."""
        return not self.is_stuck and not self.violations and not any(one.broken for one in outcomes)

    async def _play(self, fault: GamedayFault) -> None:
        if self._stage is None and not TRAITS[fault.fault].by_clients:
            self.skipped.append(fault)
            return
        for parameter, number in (("engine", self.script.fleet.engines), ("router", self.script.fleet.routers)):
            if parameter in TRAITS[fault.fault].parameters and getattr(fault, parameter) is None:
                fault = fault.model_copy(update={parameter: self._rng.below(number)})
        await asyncio.sleep(fault.at_s - self.now_s)
        self.current, began_s = fault, self.now_s
        try:
            await self._last(fault, self._stage)
        finally:
            load = self.script.load
            clients = load.agents + load.singles + load.leavers
            self.played.append(PlayedFault(fault.fault, describe(fault), began_s, self.now_s, fault.must, clients))
            self.current = None

    async def _last(self, fault: GamedayFault, stage: Stage | None) -> None:
        """Let the fault happen, and return when it is over and undone."""
        end_s = fault.end_s
        if fault.fault == "flood":
            self.others += await self._clients.run_flood(fault.clients, fault.tokens, end_s)
        elif fault.fault == "hang_ups":
            await self._hang_up(fault.clients, end_s)
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
        """Read the routers' metrics periodically until cancelled."""
        own = [] if self._stage is None else [router.url for router in self._stage.routers]
        self._urls = own or [self.endpoint.url]
        async with httpx.AsyncClient(timeout=LOOK_TIMEOUT_S, trust_env=False) as http:
            while True:
                at_s = self.now_s
                await self._look(http)
                progress(self)
                await asyncio.sleep(max(0.0, at_s + LOOK_S * len(self._urls) - self.now_s))

    async def _look(self, http: httpx.AsyncClient) -> None:
        """Read the metrics of all routers that answer, as one."""
        pages, found = [], await asyncio.gather(*(_fetch(http, url) for url in self._urls))
        for url, page in zip(self._urls, found, strict=True):
            if page is not None:
                pages.append(page)
                self._counted.add(url, count_requests(page))
        self.looks.append(Look(self.now_s, read_metrics("".join(pages)) if pages else None))

    async def _measure_processes(self, stage: Stage) -> None:
        """Measure the routers' processes periodically until cancelled."""
        while True:
            for router in stage.routers:
                self.sizes += router.measure(self.now_s)
            await asyncio.sleep(SIZE_S)

    async def _examine_end(self, stage: Stage, end: GamedayEnd) -> None:
        """Find what must not be at the end. The processes' sizes are those before the load that is counted."""
        self.violations += find_growth(self.sizes, end)
        try:
            await stage.wait_until_ready()
            is_at_rest = await self._rest(stage)
            await self._look(stage.http)
            sent, counted = [*self.rows, *self.others], self._counted.total
            self.violations += find_miscounted(sent, self.abandoned, counted, self.played, LOST_S)
            if is_at_rest:
                await self._count_load(stage, end.count_s)
        except (StageNotReady, httpx.HTTPError) as failure:
            self.violations.append(Violation(f"{type(failure).__name__}: {failure}", self.now_s))
        self.violations += find_unclean([*self.rows, *self.others], self.played)
        for router in stage.routers:
            self.violations += find_errors(router.name, router.read_log(), self._start_wall_s)

    async def _rest(self, stage: Stage) -> bool:
        """Wait until no router has anything booked and no engine has a request. Return False if some remain."""
        until_s = self.now_s + REST_S
        while left := await list_leftovers(stage):
            if self.now_s > until_s:
                self.violations += [Violation(one, self.now_s) for one in left]
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def _count_load(self, stage: Stage, count_s: float) -> None:
        """Run one more load, and compare the counts of all sides."""
        routers, engines = await read_counts(stage)
        rows: list[SentRequest] = []
        await self._clients.run_load(self.now_s + count_s, rows.append)
        await self._rest(stage)
        then_routers, then_engines = await read_counts(stage)
        counted = count_answers(rows), then_routers.since(routers), then_engines.since(engines)
        self.violations += find_unequal(*counted)
        self.others += rows


async def _fetch(http: httpx.AsyncClient, url: str) -> str | None:
    """Return a router's metrics page; None if there was no answer."""
    with suppress(httpx.HTTPError):
        answer = await http.get(f"{url}/metrics")
        return answer.text if answer.status_code == 200 else None
    return None
