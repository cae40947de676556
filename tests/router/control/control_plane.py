"""A core with three small policies, a ring of hand-made records, and the operator's line over them: all real."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml

from router.clock import Clock, ManualClock
from router.config import schema
from router.config.sections.experiment import ExperimentConfig
from router.control.control import Control
from router.control.duty import Duty
from router.fleet.fleet import Fleet
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.telemetry.audit_log import AuditLog
from router.telemetry.recent_records import RecentRecords
from scorers.contract import View
from tests.fakes.caches import RING
from tests.suites.views import a_load, a_row, a_view, an_overlap

TEXTS = {
    "near": "scorers: [{name: prefix_overlap}]",
    "far": "scorers: [{name: least_requests}]",
    "other": "scorers: [{name: queue_depth}]",
}
BROKEN = "scorers: [{name: nobody}]"
EXPERIMENT = "{unit: request, seed: 1, arms: {near: 50, far: 50}, limits: {error_rate_max: 5%}}"


def spec(text: str) -> schema.PolicyConfig:
    return schema.PolicyConfig.model_validate(yaml.safe_load(text))


def experiment(**changed: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"unit": "request", "seed": 1, "arms": {"near": 50, "far": 50}, **changed})


def crowded_holder() -> View:
    """`a` holds all 64 tokens and has 3 requests, `b` is idle and empty: `near` takes a, `far` and `other` take b."""
    return a_view(
        a_row("a", an_overlap(64), a_load(requests=3, waiting=3, running=1)),
        a_row("b", an_overlap(0), a_load(requests=0, waiting=0, running=0)),
        prompt_tokens=64,
    )


def idle_holder() -> View:
    """`a` holds all and is idle, `b` has 3 requests: everybody takes a."""
    return a_view(
        a_row("a", an_overlap(64), a_load(requests=0, waiting=0, running=0)),
        a_row("b", an_overlap(0), a_load(requests=3, waiting=3, running=1)),
        prompt_tokens=64,
    )


class WatchedRing(RecentRecords):
    """Tells when somebody looks through it: a plan has begun."""

    def __init__(self) -> None:
        super().__init__(10_000)
        self.looked_through = asyncio.Event()

    def latest(self, limit: int) -> list[Record]:
        self.looked_through.set()
        return super().latest(limit)


class ControlPlane:
    """`near` is active, unless files or an experiment say otherwise."""

    def __init__(
        self,
        *,
        running: ExperimentConfig | None = None,
        audit: AuditLog | None = None,
        clock: Clock | None = None,
        active: str = "near",
        duty: Duty | None = None,
    ) -> None:
        self.clock = clock or ManualClock(1000.0, wall=5000.0)
        self.ring = WatchedRing()
        self.audit = audit or AuditLog()
        policies = {name: build_policy(name, spec(text)) for name, text in TEXTS.items()}
        knowledge = KvIndexer(BlockIndex(RING, 100), SpeculativeBlocks(5.0), ApproximateBlocks(100, 60.0), self.clock)
        desk = Selector(PolicySet(policies, active, running), seed=1)
        self.core = Scheduler(Fleet(schema.FleetConfig()), knowledge, desk, self.clock, 10)
        self.control = Control(self.core, self.ring, self.audit, self.clock, duty)
        if duty is None or duty.held:
            self.control.log_start()

    @classmethod
    async def following(cls, file: Path, clock: Clock | None = None) -> ControlPlane:
        """One that applies changes of the files."""
        made = cls(clock=clock)
        await made.control.follow_file(file)
        return made

    @property
    def active(self) -> str:
        return self.core.selector.policy_set.active

    @property
    def words(self) -> list[str]:
        """What the audit log has, oldest first."""
        return [entry.what for entry in reversed(self.audit.latest())]

    def record(self) -> Record:
        now = self.clock.now()
        number = self.core.selector.next_number()
        return Record(f"r-{number}", number, now, now, "/v1/completions", "m", True, "local", 64, Stages())

    def decided(self, *views: View) -> None:
        """One record each, as the active policy decides, into the ring."""
        for view in views:
            record = self.record()
            self.core.assign_policy(record, None)
            assert record.policy is not None
            decision = self.core.selector.decide(view, record.policy)
            self.core.selector.picked(decision)
            record.attempts = [Attempt(decision, None, None)]
            self.ring.add(record)
