"""The plant: engines, what they load from, and what of them reaches the routers, in virtual time.

    submit -> engine: steps and strides (`strides.py`) -> first(job), done(job) for whoever sent it
                 |
                 +-- events of its cache, gauges when it is polled, as late as the lags say -> every router

Also what goes wrong there: engines that die, come back or are slow, events that are lost, a pool that is away. Who asks
what, and where it goes, is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from router.kvcache.events import EventBatch
from router.testbed.rng import Rng
from router.testbed.simulator.event_queue import EventQueue
from router.testbed.simulator.fast_engine import EngineJob, EngineSurroundings, FastEngine
from router.testbed.simulator.kv_tier import KvTier, TransferLink
from router.testbed.simulator.outcome import SimulationOutcome
from router.testbed.simulator.router import SimulatedRouter
from router.testbed.simulator.scenario import InstanceFailure, Scenario

PROBE_S = 2.0  # between two probes of an instance's health
IDLE_POLL_S = 10.0
REPLAYABLE = 10_000  # batches that an engine keeps for replays (vLLM's default)


class ClusterFront(Protocol):
    """Whose jobs these are."""

    routers: list[SimulatedRouter]  # that hear of the plant

    def first(self, job: EngineJob) -> None:
        """Its first token."""

    def done(self, job: EngineJob, number: int) -> None:
        """Its last one, at that instance."""

    def died(self, job: EngineJob, number: int) -> None:
        """Its engine is gone."""


class Cluster:
    """`chance` says which events are lost; `outcome` gets what dead engines had done."""

    def __init__(
        self, scenario: Scenario, moments: EventQueue, chance: Rng, outcome: SimulationOutcome, front: ClusterFront
    ) -> None:
        self._scenario = scenario
        self._moments = moments
        self._chance = chance
        self._outcome = outcome
        self._front = front
        size, instances, every_s = scenario.block_tokens, scenario.instances, scenario.lags.metrics_s
        self._pool = None if scenario.store is None else KvTier(scenario.store.tokens, size)
        self._engines = [self._engine(number) for number in range(instances)]
        self._wakes: list[float | None] = [None] * instances
        self._sequence = [0] * instances  # numbers of event batches
        keeps = bool(scenario.trouble.events_lost or scenario.trouble.router_starts_s or scenario.trouble.failures)
        self._sent: list[deque[EventBatch]] = [deque(maxlen=REPLAYABLE if keeps else 0) for _ in range(instances)]
        self._alive = [True] * instances
        self._ticks_s = [every_s * (number + 1) / instances for number in range(instances)]  # when each may be polled
        self._polls_s: list[float | None] = [None] * instances  # and when it will be
        self._polled_s = [-IDLE_POLL_S] * instances

    def _engine(self, number: int) -> FastEngine:
        """A new process, with nothing in its GPUs or its host memory."""
        scenario, profile, peer_wire = self._scenario, self._scenario.profile, None
        if scenario.role(number) == "decode":
            profile, peer_wire = scenario.decode_profile or profile, TransferLink(scenario.handover)
        pool_wire = None if scenario.store is None else TransferLink(scenario.store.link)
        host = host_wire = None
        if scenario.host is not None:
            host, host_wire = KvTier(scenario.host.tokens, scenario.block_tokens), TransferLink(scenario.host.link)
        around = EngineSurroundings(self._pool, pool_wire, host, host_wire, peer_wire)
        return FastEngine(profile, scenario.block_tokens, around, scenario.max_queued)

    def start(self) -> None:
        """The routers are there, and time begins."""
        for number in range(self._scenario.instances):
            self.connect(number)
            self._poll_at(number, self._ticks_s[number])

    def fail(self) -> None:
        """What will go wrong is put into the course of time."""
        trouble = self._scenario.trouble
        for failure in trouble.failures:
            self._moments.at(failure.at_s, self._fail, failure)
        for from_s, until_s in trouble.pool_away:
            self._moments.at(from_s, self._pool_goes, True)
            self._moments.at(until_s, self._pool_goes, False)

    def end(self) -> None:
        """What was done is told."""
        for number, engine in enumerate(self._engines):
            self._count(number, engine)

    def _count(self, number: int, engine: FastEngine) -> None:
        self._outcome.busy_s[number] += engine.busy_s
        self._outcome.prefill_s[number] += engine.prefill_s
        self._outcome.preemptions += engine.preemptions

    # what is asked of it

    def pooled_tokens(self, names: Sequence[int]) -> int | None:
        """What the pool answers when it is asked for these blocks; None: it does not answer, or there is none."""
        pool = self._pool
        return None if pool is None or pool.away else pool.held(names) * self._scenario.block_tokens

    def is_alive(self, number: int) -> bool:
        return self._alive[number]

    def submit(self, job: EngineJob, number: int) -> bool:
        """False: the engine has no room for it."""
        if not self._engines[number].submit(job, self._moments.now_s):
            return False
        self._wake(number)
        return True

    # engines

    def _wake(self, number: int) -> None:
        """When this engine must be looked at next."""
        engine = self._engines[number]
        loads_s, until_s = engine.loads_until_s, engine.until_s
        at_s = until_s if loads_s is None else loads_s if until_s is None else min(loads_s, until_s)
        if at_s is not None and at_s != self._wakes[number]:
            self._wakes[number] = at_s
            self._moments.at(at_s, self._look, number, at_s)

    def _look(self, number: int, at_s: float) -> None:
        if self._wakes[number] != at_s:
            return  # it was put off, or is another process now
        self._wakes[number] = None
        engine, now = self._engines[number], self._moments.now_s
        ended = engine.end(now)
        if engine.loads_until_s is not None:
            engine.loaded(now)
        if engine.cache.events:
            self._publish(number)
        for job in ended.firsts:
            self._front.first(job)
        for job in ended.dones:
            self._front.done(job, number)
        self._wake(number)

    def _publish(self, number: int) -> None:
        """What its cache did, to every router, as late as events are; some of it lost."""
        events = self._engines[number].cache.drain()
        now = self._moments.now_s
        batch = EventBatch(self._sequence[number], now, 0, events, {})
        self._sequence[number] += 1
        self._sent[number].append(batch)
        for router in self._front.routers:
            if not self._chance.happens(self._scenario.trouble.events_lost):
                self._moments.at(now + self._scenario.lags.events_s, self._hear, router, number, batch)

    def _hear(self, router: SimulatedRouter, number: int, batch: EventBatch) -> None:
        self._replay(router, number, router.heard(number, batch))

    def _replay(self, router: SimulatedRouter, number: int, start: int | None) -> None:
        if start is not None:
            self._moments.at(self._moments.now_s + self._scenario.lags.events_s, self._replayed, router, number, start)

    def _replayed(self, router: SimulatedRouter, number: int, start: int) -> None:
        batches = [batch for batch in self._sent[number] if batch.seq >= start] if self._alive[number] else []
        self._replay(router, number, router.replayed(number, batches))

    def connect(self, number: int) -> None:
        """Every router follows its events from now on."""
        for router in self._front.routers:
            self._replay(router, number, router.connected(number))

    def poll_soon(self, number: int) -> None:
        """A request goes there. Ticks that were slept through are added up as if they had not been."""
        now, every_s = self._moments.now_s, self._scenario.lags.metrics_s
        while self._ticks_s[number] < now:
            self._ticks_s[number] += every_s
        self._poll_at(number, self._ticks_s[number])

    def _poll_at(self, number: int, at_s: float) -> None:
        if self._polls_s[number] != at_s:
            self._polls_s[number] = at_s
            self._moments.at(at_s, self._poll_is_due, number, at_s)

    def _poll_is_due(self, number: int, at_s: float) -> None:
        """At every tick where requests are, elsewhere seldom: most of a large fleet may be idle."""
        if self._polls_s[number] != at_s:
            return  # it was put forward
        every_s, alive = self._scenario.lags.metrics_s, self._alive[number]
        idle = not any(router.in_flight(number) for router in self._front.routers)
        if alive and (not idle or at_s - self._polled_s[number] >= IDLE_POLL_S):
            self._polled_s[number] = at_s
            self._poll(number)
        self._ticks_s[number] = next_s = at_s + every_s
        while alive and idle and next_s - self._polled_s[number] < IDLE_POLL_S:
            next_s += every_s
        self._poll_at(number, next_s)

    def _poll(self, number: int) -> None:
        gauges = self._engines[number].gauges()
        for router in self._front.routers:
            router.polled(number, gauges)

    # trouble

    def _pool_goes(self, away: bool) -> None:
        if self._pool is not None:
            self._pool.away = away

    def _fail(self, failure: InstanceFailure) -> None:
        number = failure.instance
        if failure.until_s < float("inf"):
            self._moments.at(failure.until_s, self._recover, failure)
        if failure.kind == "slow":
            self._engines[number].slowdown = failure.factor
            return
        dead, self._engines[number] = self._engines[number], self._engine(number)
        self._count(number, dead)
        self._wakes[number] = None
        self._alive[number] = False
        self._sequence[number] = 0
        self._sent[number].clear()
        for job in dead.unfinished:
            self._front.died(job, number)

    def _recover(self, failure: InstanceFailure) -> None:
        number = failure.instance
        if failure.kind == "slow":
            self._engines[number].slowdown = 1.0
            return
        self._alive[number] = True
        self._moments.at(self._moments.now_s + PROBE_S, self._meet_again, number)

    def _meet_again(self, number: int) -> None:
        if not self._alive[number]:
            return  # it has died again before anybody looked
        for router in self._front.routers:
            router.misses(number)
            router.meets(number)
        self.connect(number)
