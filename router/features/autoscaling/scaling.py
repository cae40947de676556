"""Computes from the fleet how many instances are wanted, and which one a scale-in should take.

The load books contain the load of all workers and replicas, so every process computes the result for all; the
process on duty is queried.

The value of an instance's cache is the number of prompt tokens that it alone had, over the requests that it
answered in the last `VALUE_WINDOW_S`: the tokens that the chosen target held minus those that the best other
candidate held. Another instance would have to compute these tokens again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from router.backends.discovery.discovery import Discovery
from router.clock import Clock
from router.features.autoscaling.model_waits import WakePatterns
from router.features.autoscaling.waiting_models import WaitingModels
from router.fleet.desired_instances import MOST_QUEUES, QUEUE_MS, DesiredCount, DesiredInstances, RoleReading
from router.fleet.fleet import Fleet
from router.fleet.instance import Instance, InstanceState
from router.fleet.working_set import WorkingSets
from router.scheduling.policy.record import Record
from router.tasks import Tasks
from router.telemetry.recent_records import RecentRecords

READ_EVERY_S = 0.5
VALUE_WINDOW_S = 600.0
RECORDS_AT_ONCE = 200
MOST_ASLEEP = 256  # a model without an instance is followed only while fewer models and roles are followed

RoleKey = tuple[str, str]
"""Base model and role."""


class LeastValuable(NamedTuple):
    """The instance of a model and role whose cache is worth least."""

    instance: str
    tokens: int  # that it alone had, over recent requests
    requests: int  # in flight at it


class Scaling:
    """Wanted instances of the whole fleet. `patterns` are those of `wake.models`, whose last instance may go, too;
    such a model is still followed. `on_change` is called when the number of wanted instances may have changed.
    """

    def __init__(
        self,
        fleet: Fleet,
        working_sets: WorkingSets,
        discoveries: Collection[Discovery],
        records: RecentRecords,
        patterns: Iterable[str],
        clock: Clock,
    ) -> None:
        self._patterns = WakePatterns(patterns)
        self._fleet = fleet
        self._discoveries = discoveries
        self._working_sets = working_sets
        self._records = records
        self._clock = clock
        self.waiting = WaitingModels(clock)
        self.waiting.on_begin.append(self._notify)
        self.on_change: list[Callable[[], None]] = []
        self._states: dict[RoleKey, DesiredInstances] = {}
        self.wanted: dict[RoleKey, DesiredCount] = {}  # only for those that were read long enough

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("scaling", self._run)

    async def _run(self) -> None:
        while True:
            self.read()
            await asyncio.sleep(READ_EVERY_S)

    def read(self) -> None:
        """Read the fleet once."""
        now = self._clock.now()
        groups, complete = self._group(), self._knows_all()
        for gone in self._states.keys() - groups.keys():
            del self._states[gone]
            self.wanted.pop(gone, None)
        for key, instances in groups.items():
            if not instances and not complete:
                continue  # there may be unknown ones
            if (state := self._states.get(key)) is None:
                state = self._states[key] = DesiredInstances(sleeps=self._may_sleep(key[0]))
            reading = read_role(instances, self._working_sets.count_tokens(*key, now), now)
            wanted = state.observe(reading, now)
            if wanted is not None:
                self.wanted[key] = wanted
        self._notify()

    def follow(self, key: RoleKey) -> bool:
        """Return whether the model and role are followed. If the model may sleep, this call begins following."""
        if key in self._states:
            return True
        model, groups = key[0], group_instances(self._fleet)
        asleep = self._may_sleep(model) and model not in {of for of, _ in groups} and len(self._states) < MOST_ASLEEP
        if asleep:
            self._states[key] = DesiredInstances(sleeps=True)
        return asleep or key in groups

    def count(self, key: RoleKey) -> int | None:
        """Return how many instances of a model are wanted in a role, at least one while requests wait for the
        model; None while too little was seen.
        """
        wanted = self.wanted.get(key)
        count = None if wanted is None else wanted.instances
        return max(1, count or 0) if self.waiting.waits(key[0]) else count

    def _notify(self) -> None:
        for call in self.on_change:
            call()

    def _may_sleep(self, model: str) -> bool:
        return self._patterns.find(model) is not None

    def _knows_all(self) -> bool:
        """Return whether every instance and its model are known."""
        listed = not any(discovery.trouble for discovery in self._discoveries)
        return listed and all(instance.base is not None for instance in self._fleet)

    def _group(self) -> dict[RoleKey, list[Instance]]:
        """Return the instances by model and role, with an empty list for followed models that sleep."""
        asleep: dict[RoleKey, list[Instance]] = {key: [] for key in self._states if self._may_sleep(key[0])}
        return asleep | group_instances(self._fleet)

    async def describe(self) -> list[dict[str, Any]]:
        """Describe by model and role how many instances are wanted and why, and which a scale-in should take."""
        value = await measure_cache_value(self._records, self._clock.wall())
        described = []
        for (model, role), instances in self._group().items():
            wanted = self.wanted.get((model, role))
            least = find_least_valuable(instances, value)
            described.append(
                {
                    "model": model,
                    "role": role,
                    "instances": len(list_serving(instances)),
                    "desired": None if wanted is None else wanted.instances,
                    "reason": None if wanted is None else wanted.reason,
                    "held_from": None if wanted is None else wanted.held_from,
                    "needs": {} if wanted is None else {name: round(need, 3) for name, need in wanted.needs.items()},
                    "scale_in": None if least is None else least._asdict(),
                }
            )
        return described


def group_instances(fleet: Fleet) -> dict[RoleKey, list[Instance]]:
    """Return the instances by the model that their caches hold and their role, without instances whose model is
    unknown.
    """
    groups: dict[RoleKey, list[Instance]] = {}
    for instance in fleet:
        if instance.base is not None:
            groups.setdefault((instance.base, instance.config.role), []).append(instance)
    return groups


def list_serving(instances: Iterable[Instance]) -> list[Instance]:
    """Return the instances that get requests: the ready ones or, if none is ready, those whose probes time out."""
    serving = [one for one in instances if one.may_serve]
    return [one for one in serving if one.state is InstanceState.READY] or serving


def read_role(instances: Iterable[Instance], reused_tokens: int | None, now: float) -> RoleReading:
    """Return a reading of the instances of one model and role, whose working set has `reused_tokens`."""
    ready, busy, queued_ms, queues, live_tokens, capacity_tokens = 0, 0.0, 0.0, 0.0, 0, 0
    known = True
    for instance in list_serving(instances):
        ready += 1
        speed = instance.latency_model.speed(now)
        targets = instance.targets.values()
        busy += sum(target.load_book.prefilling > 0 for target in targets) / max(1, len(targets))
        queue_ms = sum(target.load_book.queued_ms(speed) for target in targets) / max(1, len(targets))
        queued_ms += queue_ms
        queues += min(queue_ms / QUEUE_MS, MOST_QUEUES)
        for target in targets:
            live_tokens += min(target.load_book.live_tokens, target.capacity_tokens or 0)
            capacity_tokens += target.capacity_tokens or 0
            known &= bool(target.capacity_tokens)
    capacity = capacity_tokens if known and ready else None
    return RoleReading(ready, busy, queued_ms, queues, live_tokens, reused_tokens, capacity)


async def measure_cache_value(records: RecentRecords, now_wall_s: float) -> dict[str, int]:
    """Return, by instance, the tokens that it alone had, over requests of the last `VALUE_WINDOW_S`. Other requests
    continue meanwhile.
    """
    value: dict[str, int] = {}
    for number, record in enumerate(records.latest(len(records))):
        if number % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1:
            await asyncio.sleep(0)
        if record.at_wall_s >= now_wall_s - VALUE_WINDOW_S and (found := find_own_tokens(record)) is not None:
            instance, tokens = found
            value[instance] = value.get(instance, 0) + tokens
    return value


def find_own_tokens(record: Record) -> tuple[str, int] | None:
    """Return the instance of the last attempt, and how many more tokens of the prompt it held than any other
    candidate; None if there was no attempt, or the held tokens are unknown.
    """
    if not record.attempts:
        return None
    decision = record.attempts[-1].decision
    row = decision.row
    if row.overlap is None:
        return None
    others = (other for other in decision.view.rows if other.instance != row.instance and other.overlap is not None)
    best = max((max(other.overlap[:3]) for other in others if other.overlap is not None), default=0)
    return row.instance, max(0, max(row.overlap[:3]) - best)


def find_least_valuable(instances: Iterable[Instance], value: Mapping[str, int]) -> LeastValuable | None:
    """Return the ready instance whose cache is worth least, and among equals the one with the fewest requests; None
    if fewer than two are ready.
    """
    ready = [one for one in instances if one.state is InstanceState.READY]
    if len(ready) < 2:
        return None
    least = min(ready, key=lambda one: (value.get(one.id, 0), one.requests, one.id))
    return LeastValuable(least.id, value.get(least.id, 0), least.requests)
