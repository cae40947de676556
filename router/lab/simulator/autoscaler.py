"""A fleet whose size follows a rule: new instances start with empty caches, and others are drained.

    absent -> starting (`start_s`) -> ready -> draining (until its last request has ended) -> absent

A rule reads the router's fleet every `READ_EVERY_S`, and its count is queried every `SYNC_S`, as by Kubernetes'
HPA. The count includes starting instances. The fleet grows by no more at once than under HPA's defaults; when it
shrinks, starting instances go first, then those that the rule chooses. An instance is paid for from its start until
it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from router.features.autoscaling.scaling import READ_EVERY_S
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance
from router.lab.simulator.cluster import Cluster
from router.lab.simulator.event_queue import EventQueue
from router.lab.simulator.outcome import FleetSize, SimulationOutcome
from router.lab.simulator.router import SimulatedRouter, instance_name, instance_number
from router.lab.simulator.scenario import Presence, Scenario
from router.scheduling.policy.record import Record
from router.scheduling.scheduler import Scheduler

SYNC_S = 15.0  # HPA: --horizontal-pod-autoscaler-sync-period
MOST_MORE = 4  # HPA's default for scaling up: this many within a sync, or the current count if larger
NEVER_S = float("inf")


class ScalingRule(Protocol):
    """Decides how many instances there should be, and which ones leave."""

    def observe(self, scheduler: Scheduler, now: float) -> None:
        """Read the router's state."""

    def on_record(self, record: Record) -> None:
        """Called with the record of each complete answer."""

    def find_desired(self, fleet: Fleet, current: int, now: float) -> int:
        """Return the desired count; `current` is the number of instances that are ready or starting."""

    def choose_leaving(self, ready: Sequence[Instance], now: float) -> Instance:
        """Return the instance to drain; `ready` has two instances or more, the newest last."""


class Autoscaling(NamedTuple):
    """Settings for a fleet whose size follows a rule. The scenario has the largest size."""

    rule: ScalingRule
    at_first: int = 1
    least: int = 1
    start_s: float = 90.0  # from the decision to the first request that an instance may get

    def shrink(self, scenario: Scenario) -> Scenario:
        """Return the scenario with only its first instances present."""
        absent = tuple(Presence(number, joins_s=NEVER_S) for number in range(self.at_first, scenario.instances))
        return replace(scenario, presences=absent)


class Autoscaler:
    """Starts and drains the instances of `cluster`. Sizes go to `outcome`."""

    def __init__(
        self,
        autoscaling: Autoscaling,
        scenario: Scenario,
        cluster: Cluster,
        event_queue: EventQueue,
        outcome: SimulationOutcome,
    ) -> None:
        self._rule = autoscaling.rule
        self._least = autoscaling.least
        self._start_s = autoscaling.start_s
        self._most = scenario.instances
        self._cluster = cluster
        self._event_queue = event_queue
        self._outcome = outcome
        self._scheduler: Scheduler
        self._starting: dict[int, float] = {}  # starting instances, and when they began to start
        self._ready = list(range(autoscaling.at_first))
        self._draining: list[int] = []
        self._sync_at_s = SYNC_S

    def begin(self, router: SimulatedRouter) -> None:
        """Follow the rule from now on, reading the state of `router`."""
        self._scheduler = router.scheduler
        router.on_record = self._rule.on_record
        self._note()
        self._tick()

    def _tick(self) -> None:
        now = self._event_queue.now_s
        for number in [one for one in self._draining if not self._cluster.in_flight(one)]:
            self._cluster.remove(number)
            self._draining.remove(number)
            self._note()
        self._rule.observe(self._scheduler, now)
        if now >= self._sync_at_s:
            self._sync_at_s += SYNC_S
            self._sync(now)
        self._event_queue.at(now + READ_EVERY_S, self._tick)

    def _sync(self, now: float) -> None:
        current = len(self._starting) + len(self._ready)
        wanted = self._rule.find_desired(self._scheduler.fleet, current, now)
        wanted = min(max(wanted, self._least), current + max(MOST_MORE, current))
        for _ in range(wanted - current):
            if (number := self._find_absent()) is None:
                break
            self._starting[number] = now
            self._event_queue.at(now + self._start_s, self._on_started, number, now)
        for _ in range(current - wanted):
            self._shrink(now)
        if wanted != current:
            self._note()

    def _find_absent(self) -> int | None:
        present = {*self._starting, *self._ready, *self._draining}
        return next((number for number in range(self._most) if number not in present), None)

    def _shrink(self, now: float) -> None:
        if self._starting:
            self._starting.popitem()
            return
        fleet = self._scheduler.fleet
        ready = [instance for number in self._ready if (instance := fleet.get(instance_name(number))) is not None]
        number = instance_number(self._rule.choose_leaving(ready, now).id)
        self._ready.remove(number)
        self._draining.append(number)
        self._cluster.drain(number)

    def _on_started(self, number: int, began_s: float) -> None:
        if self._starting.get(number) != began_s:
            return  # given up since
        del self._starting[number]
        self._ready.append(number)
        self._cluster.add(number)
        self._note()

    def _note(self) -> None:
        """Add the current size to the outcome."""
        ready = len(self._ready)
        paid = ready + len(self._starting) + len(self._draining)
        self._outcome.sizes.append(FleetSize(self._event_queue.now_s, paid, ready))
