"""A simulated fleet in virtual time: engines, the memory that they load from, and their events and metrics.

    submit -> engine: steps and strides (`fast_engine.py`) -> on_first_token(job), on_done(job) of the front
                 |
                 +-- events of its cache, gauges when it is polled, each after its lag -> every router

The cluster also makes the changes of the fleet: engines that join and leave, die, come back or are slow, events
that are lost, a pool that is away. It has no part in requests and routing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from router.kvcache.events import EventBatch
from router.lab.rng import Rng
from router.lab.simulator.block_cache import KvTier, TransferLink
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.fast_engine import EngineJob, EngineSurroundings, FastEngine
from router.lab.simulator.outcome import SimulationOutcome
from router.lab.simulator.router import SimulatedRouter
from router.lab.simulator.scenario import InstanceFailure, Scenario

PROBE_S = 2.0  # between two probes of an instance's health
IDLE_POLL_S = 10.0
REPLAYABLE = 10_000  # batches that an engine can replay (vLLM's default)


class ClusterFront(Protocol):
    """The sender of jobs, and its routers."""

    routers: list[SimulatedRouter]  # that get events and metrics

    def on_first_token(self, job: EngineJob) -> None:
        """Called when an engine has made the first token of `job`."""

    def on_done(self, job: EngineJob, number: int) -> None:
        """Called when instance `number` has made the last token of `job`."""

    def on_death(self, job: EngineJob, number: int) -> None:
        """Called when instance `number` has died with `job`."""


class Cluster:
    """All engines of a scenario. `rng` decides which events are lost; `outcome` gets the work that engines did."""

    def __init__(
        self, scenario: Scenario, event_queue: EventQueue, rng: Rng, outcome: SimulationOutcome, front: ClusterFront
    ) -> None:
        self._scenario = scenario
        self._event_queue = event_queue
        self._rng = rng
        self._outcome = outcome
        self._front = front
        size, instances, every_s = scenario.block_tokens, scenario.instances, scenario.lags.metrics_s
        self._pool = None if scenario.store is None else KvTier(scenario.store.tokens, size)
        self._engines = [self._engine(number) for number in range(instances)]
        self._wakes: list[float | None] = [None] * instances
        self._sequence = [0] * instances  # next number of an event batch, per instance
        trouble = scenario.trouble
        begins = trouble.router_starts_s or trouble.router_restarts_s
        replays = bool(trouble.events_lost or begins or trouble.failures)
        self._sent: list[deque[EventBatch]] = [deque(maxlen=REPLAYABLE if replays else 0) for _ in range(instances)]
        self._alive = [True] * instances
        self._ticks_s = [
            every_s * (number + 1) / instances for number in range(instances)
        ]  # when each may be polled next
        self._polls_s: list[float | None] = [None] * instances  # when each will be polled
        self._polled_s = [-IDLE_POLL_S] * instances

    def _engine(self, number: int) -> FastEngine:
        """Return a new engine process with empty caches."""
        scenario = self._scenario
        peer_link = TransferLink(scenario.handover) if scenario.role(number) == "decode" else None
        pool_link = None if scenario.store is None else TransferLink(scenario.store.link)
        host = host_link = None
        if scenario.host is not None:
            host, host_link = KvTier(scenario.host.tokens, scenario.block_tokens), TransferLink(scenario.host.link)
        around = EngineSurroundings(self._pool, pool_link, host, host_link, peer_link)
        return FastEngine(scenario.profile_of(number), scenario.block_tokens, around, scenario.max_queued)

    def start(self) -> None:
        """Connect the routers and begin to poll."""
        for number in range(self._scenario.instances):
            if self._scenario.is_present(number, 0.0):
                self.connect(number)
                self._poll_at(number, self._ticks_s[number])

    def schedule_changes(self) -> None:
        """Schedule every fault of the scenario, and every instance that joins or leaves."""
        for presence in self._scenario.presences:
            if 0 < presence.joins_s < float("inf"):
                self._event_queue.at(presence.joins_s, self._join, presence.instance)
            if presence.leaves_s < float("inf"):
                self._event_queue.at(presence.leaves_s, self.remove, presence.instance)
        trouble = self._scenario.trouble
        for failure in trouble.failures:
            self._event_queue.at(failure.at_s, self._fail, failure)
        for from_s, until_s in trouble.pool_away:
            self._event_queue.at(from_s, self._set_pool_away, True)
            self._event_queue.at(until_s, self._set_pool_away, False)

    def end(self) -> None:
        """Add the work of all engines to the outcome."""
        for number, engine in enumerate(self._engines):
            self._count(number, engine)

    def _count(self, number: int, engine: FastEngine) -> None:
        self._outcome.busy_s[number] += engine.busy_s
        self._outcome.prefill_s[number] += engine.prefill_s
        self._outcome.preemptions += engine.preemptions

    # requests

    def pooled_tokens(self, names: Sequence[int]) -> int | None:
        """Return the leading tokens that the pool holds. None if there is no pool, or it does not answer."""
        pool = self._pool
        return None if pool is None or pool.away else pool.count_held(names) * self._scenario.block_tokens

    def is_alive(self, number: int) -> bool:
        return self._alive[number]

    def submit(self, job: EngineJob, number: int) -> bool:
        """Submit `job` to instance `number`. Return False when the engine refuses it."""
        if not self._engines[number].submit(job, self._event_queue.now_s):
            return False
        self._wake(number)
        return True

    # engines

    def _wake(self, number: int) -> None:
        """Schedule the next call of this engine."""
        engine = self._engines[number]
        loads_s, until_s = engine.loads_until_s, engine.until_s
        at_s = until_s if loads_s is None else loads_s if until_s is None else min(loads_s, until_s)
        if at_s is not None and at_s != self._wakes[number]:
            self._wakes[number] = at_s
            self._event_queue.at(at_s, self._advance, number, at_s)

    def _advance(self, number: int, at_s: float) -> None:
        if self._wakes[number] != at_s:
            return  # rescheduled since, or another process now
        self._wakes[number] = None
        engine, now = self._engines[number], self._event_queue.now_s
        ended = engine.end(now)
        if engine.loads_until_s is not None:
            engine.end_loads(now)
        if engine.cache.events:
            self._publish(number)
        for job in ended.firsts:
            self._front.on_first_token(job)
        for job in ended.dones:
            self._front.on_done(job, number)
        self._wake(number)

    def _publish(self, number: int) -> None:
        """Send the events of its cache to every router after the event lag; some are lost."""
        events = self._engines[number].cache.drain()
        now = self._event_queue.now_s
        batch = EventBatch(self._sequence[number], now, 0, events, {})
        self._sequence[number] += 1
        self._sent[number].append(batch)
        for router in self._front.routers:
            if not self._rng.happens(self._scenario.trouble.events_lost):
                self._event_queue.at(now + self._scenario.lags.events_s, self._deliver, router, number, batch)

    def _deliver(self, router: SimulatedRouter, number: int, batch: EventBatch) -> None:
        self._replay(router, number, router.on_events(number, batch))

    def _replay(self, router: SimulatedRouter, number: int, start: int | None) -> None:
        if start is not None:
            self._event_queue.at(
                self._event_queue.now_s + self._scenario.lags.events_s, self._on_replay, router, number, start
            )

    def _on_replay(self, router: SimulatedRouter, number: int, start: int) -> None:
        batches = [batch for batch in self._sent[number] if batch.seq >= start] if self._alive[number] else []
        self._replay(router, number, router.on_replay(number, batches))

    def connect(self, number: int) -> None:
        """Let every router follow this instance's events from now on."""
        for router in self._front.routers:
            self._replay(router, number, router.on_stream(number))

    def poll_soon(self, number: int) -> None:
        """Poll instance `number` at its next tick, because a request goes to it. Skipped ticks are added up as if
        they had occurred.
        """
        now, every_s = self._event_queue.now_s, self._scenario.lags.metrics_s
        while self._ticks_s[number] < now:
            self._ticks_s[number] += every_s
        self._poll_at(number, self._ticks_s[number])

    def _poll_at(self, number: int, at_s: float) -> None:
        if self._polls_s[number] != at_s:
            self._polls_s[number] = at_s
            self._event_queue.at(at_s, self._on_poll_due, number, at_s)

    def _on_poll_due(self, number: int, at_s: float) -> None:
        """Poll an instance with requests at every tick, an idle one seldom: most of a large fleet may be idle."""
        if self._polls_s[number] != at_s:
            return  # rescheduled since
        every_s, alive = self._scenario.lags.metrics_s, self._alive[number]
        idle = not self.in_flight(number)
        if alive and (not idle or at_s - self._polled_s[number] >= IDLE_POLL_S):
            self._polled_s[number] = at_s
            routers = self._front.routers
            self._poll(routers[0], number)
            for n, router in enumerate(routers[1:], 1):  # each at its own time
                self._event_queue.at(at_s + every_s * n / len(routers), self._poll, router, number)
        self._ticks_s[number] = next_s = at_s + every_s
        while alive and idle and next_s - self._polled_s[number] < IDLE_POLL_S:
            next_s += every_s
        self._poll_at(number, next_s)

    def _poll(self, router: SimulatedRouter, number: int) -> None:
        if self._alive[number]:
            router.on_metrics(number, self._engines[number].gauges())

    def _replace(self, number: int) -> FastEngine:
        """Begin another process of this engine, with empty caches. Return the previous process."""
        old, self._engines[number] = self._engines[number], self._engine(number)
        self._count(number, old)
        self._wakes[number] = None
        self._sequence[number] = 0
        self._sent[number].clear()
        return old

    # instances that join and leave

    def add(self, number: int) -> None:
        """Add an instance that is not in the fleet, as a new process."""
        self._replace(number)
        self._join(number)

    def drain(self, number: int) -> None:
        """Let an instance finish its requests, and send it no new ones."""
        for router in self._front.routers:
            router.on_drain(number)

    def in_flight(self, number: int) -> int:
        """Return the number of requests that the routers have at an instance."""
        return sum(router.in_flight(number) for router in self._front.routers)

    def _join(self, number: int) -> None:
        for router in self._front.routers:
            router.on_join(number)
        self.connect(number)
        self.poll_soon(number)

    def remove(self, number: int) -> None:
        """Remove an instance from the routers; its engine finishes its requests."""
        for router in self._front.routers:
            router.on_leave(number)

    # faults

    def _set_pool_away(self, away: bool) -> None:
        if self._pool is not None:
            self._pool.away = away

    def _fail(self, failure: InstanceFailure) -> None:
        number = failure.instance
        if failure.until_s < float("inf"):
            self._event_queue.at(failure.until_s, self._recover, failure)
        if failure.kind == "slow":
            self._engines[number].slowdown = failure.factor
            return
        dead = self._replace(number)
        self._alive[number] = False
        for job in dead.unfinished_jobs:
            self._front.on_death(job, number)

    def _recover(self, failure: InstanceFailure) -> None:
        number = failure.instance
        if failure.kind == "slow":
            self._engines[number].slowdown = 1.0
            return
        self._alive[number] = True
        self._event_queue.at(self._event_queue.now_s + PROBE_S, self._on_probe_after_death, number)

    def _on_probe_after_death(self, number: int) -> None:
        if not self._alive[number]:
            return  # it has died again before the probe
        for router in self._front.routers:
            router.on_probe_failure(number)
            router.on_probe_success(number)
        self.connect(number)
