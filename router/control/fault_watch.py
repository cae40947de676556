"""Reports faults that fail no request (`fleet/silent_fault.py`) some seconds after an engine became ready.

    ready, `SETTLE_S` ago   -> judged every `CHECK_S`, by facts that the router has anyway; nothing is queried
    a new fault             -> one WARNING, while a policy in use reads caches
    it is no longer there   -> one INFO line

The warning has the doctor's words and the name of its check. The admin API and the live page show the same faults.
What is unknown is no fault, and mends none: an engine that got no request yet, whose metrics page was not read yet, or
that did not report yet where it publishes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from router.backends.feeds.health import HealthProbe
from router.clock import Clock
from router.config import schema
from router.control.duty import Duty
from router.fleet.instance import Instance, InstanceState
from router.fleet.silent_fault import (
    EVENTS_ARRIVING,
    EVENTS_ON,
    EVENTS_REACHABLE,
    PREFIX_CACHING,
    SilentFault,
    judge_arrival,
    judge_prefix_caching,
    judge_publishers,
    judge_sources,
    judge_tokenizer,
)
from router.scheduling.scheduler import Scheduler
from router.tasks import in_turns

log = logging.getLogger("warmroute.members")

SETTLE_S = 10.0  # a publisher is tried again after 2 s at most, and a metrics page that failed after 10 s
UNSERVED_S = 600.0  # where engines are discovered: those of another model may still be loading
CHECK_S = 5.0  # 10 ms for 1,000 engines
PER_TURN = 50  # of the event loop

Verdicts = Mapping[str, SilentFault | None]
"""By check (for tokenizers by model): the fault, or None if there is none. What is unknown is not in it."""


class _Watched:
    """The faults of one instance, or (`instance` is None) of the fleet."""

    __slots__ = ("faults", "instance", "joins", "logged", "ready_at", "subject")

    def __init__(self, subject: str, instance: Instance | None = None) -> None:
        self.subject = subject  # of log lines
        self.instance = instance
        self.joins = 0  # when it was last looked at, see `Instance.joins`
        self.ready_at = 0.0
        self.faults: list[SilentFault] = []
        self.logged: dict[str, SilentFault] = {}

    def update(self, verdicts: Verdicts, *, needed: bool, logs: bool) -> None:
        """Apply the latest verdicts. A process that `logs` writes a line for each change."""
        self.faults = [fault for fault in verdicts.values() if fault is not None]
        for key, fault in verdicts.items():
            if fault is None:
                if (mended := self.logged.pop(key, None)) is not None and logs:
                    log.info("%s: mended: %s [%s]", self.subject, mended.what, mended.check)
            elif needed and key not in self.logged:
                self.logged[key] = fault
                if logs:
                    log.warning(
                        "%s: %s: %s; change: %s [%s]", self.subject, fault.what, fault.why, fault.change, fault.check
                    )


class FaultWatch:
    """The silent faults of all instances. Every worker knows those that it sees; the one on duty writes the lines."""

    def __init__(
        self, scheduler: Scheduler, health: HealthProbe, config: schema.Config, clock: Clock, duty: Duty
    ) -> None:
        self._scheduler = scheduler
        self._health = health
        self._clock = clock
        self._duty = duty
        fleet, sleeps = config.fleet, config.wake is not None or config.keda is not None
        self._tokenizers = () if sleeps else tuple(config.tokenizers)  # models may be without engines on purpose
        discovers = fleet.dns is not None or fleet.kubernetes is not None or fleet.file is not None
        self._unserved_s = UNSERVED_S if discovers else 0.0
        self._unserved_at: dict[str, float] = {}  # models of tokenizers: since when no engine serves them
        self._instances: dict[str, _Watched] = {}
        self._fleet = _Watched("the fleet")

    async def run(self) -> None:
        """Judge all instances, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()

    async def check(self) -> None:
        """Judge all instances once, and report what has changed."""
        now, fleet = self._clock.now(), self._scheduler.fleet
        self._instances = {instance.id: self._find(instance) for instance in fleet}
        async for watched in in_turns(list(self._instances.values()), PER_TURN):
            self._check(watched, now)
        self._fleet.update(self._judge_tokenizers(now), needed=self._needed, logs=self._duty.held)

    def describe(self, instance: str) -> list[dict[str, Any]]:
        """Return the faults of one instance, as plain JSON types."""
        watched = self._instances.get(instance)
        return [] if watched is None else self._describe(watched)

    def describe_fleet(self) -> list[dict[str, Any]]:
        """Return the faults that belong to no single instance, as plain JSON types."""
        return self._describe(self._fleet)

    def _describe(self, watched: _Watched) -> list[dict[str, Any]]:
        return [fault._asdict() | {"needed": self._needed} for fault in watched.faults]

    @property
    def _needed(self) -> bool:
        """Whether a policy in use reads caches, without which no fault matters."""
        return self._scheduler.selector.policy_set.needs_cache

    def _find(self, instance: Instance) -> _Watched:
        watched = self._instances.get(instance.id)
        if watched is None or watched.instance is not instance:  # another engine of that name
            watched = _Watched(f"instance {instance.id}", instance)
        return watched

    def _check(self, watched: _Watched, now: float) -> None:
        instance = watched.instance
        if instance is None or instance.lifecycle is not InstanceState.READY:
            return
        if watched.joins != instance.joins:  # another process may answer
            watched.joins, watched.ready_at, watched.faults = instance.joins, now, []
        if now - watched.ready_at >= SETTLE_S:
            watched.update(self._judge(instance), needed=self._needed, logs=self._duty.held)

    def _judge(self, instance: Instance) -> Verdicts:
        found: dict[str, SilentFault | None] = {}
        config, targets = instance.config, list(instance.targets.values())
        caching = {target.load_book.gauges.prefix_caching for target in targets}
        if False in caching or None not in caching:
            found[PREFIX_CACHING] = judge_prefix_caching(False not in caching)
        if False in caching or config.kv_events == "off" or instance.limits.distrust is not None:
            return found
        streams = [(target.events, self._scheduler.indexer.sequencer(target.id)) for target in targets]
        followed = [(source, stream) for source, stream in streams if source is not None and stream is not None]
        if followed:
            found[EVENTS_ON] = None
            unanswered = [source.endpoint for source, stream in followed if stream.last_heard_s is None]
            found[EVENTS_REACHABLE] = judge_publishers(unanswered)
            mute = [source for source, stream in followed if stream.mute]
            if mute or all(stream.events for _, stream in followed):
                found[EVENTS_ARRIVING] = judge_arrival(mute)
        elif (reports := self._health.reports_sources(instance.id)) is not None:
            found[EVENTS_ON] = judge_sources(config.url, [] if reports else None)
        return found

    def _judge_tokenizers(self, now: float) -> Verdicts:
        """Judge each model that has a tokenizer. While an engine has not joined, a model may be its own."""
        fleet = self._scheduler.fleet
        settled = bool(self._instances) and all(
            one.joins and now - one.ready_at >= SETTLE_S for one in self._instances.values()
        )
        adapters = {card.id for card in fleet.models() if card.parent is not None}
        served = fleet.base_models()
        found: dict[str, SilentFault | None] = {}
        for model in self._tokenizers:
            if model in served:
                self._unserved_at.pop(model, None)
                found[model] = None
            elif settled and now - self._unserved_at.setdefault(model, now) >= self._unserved_s:
                found[model] = judge_tokenizer(model, served, adapters, self._tokenizers)
        return found
