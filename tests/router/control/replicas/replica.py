"""A replica without listeners, for tests and measurements of the exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

from router.backends.discovery.discovery import Discovery
from router.clock import SystemClock
from router.config import schema
from router.config.lookup import list_shipped_policies
from router.config.reader import read_policy_file
from router.config.sections.replicas import ReplicasConfig
from router.control.control import Control
from router.control.replicas.admission import SharedAdmission
from router.control.replicas.engines import SharedEngines
from router.control.replicas.exchange import ReplicaExchange
from router.control.replicas.experiments import SharedExperiments
from router.control.replicas.facts import SharedFacts
from router.control.replicas.learned_state import LearnedState
from router.control.replicas.policies import SharedPolicies
from router.control.workers.follower import LocalState
from router.control.workers.leader import LeaderWorker
from router.control.workers.scheduler import SyncedScheduler
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.load import Booking
from router.kvcache.events import TargetId
from router.request.admission.waiting import AdmissionQueues
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import ReplicaReport, RouterSnapshot
from router.telemetry.recent_records import RecentRecords
from router.wiring import WorkerRole, build_scheduler
from tests.fakes.caches import RING

A = TargetId("a/0")
SECRET = b"0123456789abcdef"
WARM, OTHER = (build_policy(name, read_policy_file(list_shipped_policies()["warm"])) for name in ("warm", "other"))


class Replica:
    """A router without listeners: leader, scheduler with an engine per letter of `engines`, exchange."""

    def __init__(
        self,
        run: str,
        port: int,
        peers: Sequence[str],
        secret: bytes = SECRET,
        engines: str = "a",
        key_secret: int = 5,
        discovery: Discovery | None = None,
    ) -> None:
        self.run = run
        clock, config = SystemClock(), schema.Config(seed=7)
        self.leader = LeaderWorker(config, 5, clock, Tasks(run))
        role = WorkerRole(0, 5, self.leader)
        core = build_scheduler(
            config, PolicySet({"warm": WARM, "other": OTHER}, "warm"), RING, clock, secret=5, role=role
        )
        self.core = cast(SyncedScheduler, core)
        metrics = Metrics(lambda: RouterSnapshot(), lambda model: True)
        queues = AdmissionQueues(config.admission, core, clock, lambda model, queue, end, s: None)
        records = RecentRecords(10)
        self.leader.attach(LocalState(run, self.core, records, metrics, clock), queues)
        self.control = Control(self.core, records, AuditLog(), clock)
        for name in engines:
            self.join(name)
        settings = ReplicasConfig(peers=[*peers], secret_env="NOT_READ", host="127.0.0.1", port=port)
        learned = LearnedState(self.core, key_secret, clock)
        self.exchange = ReplicaExchange(settings, secret, run, self.leader, learned, clock, discovery)
        policies = SharedPolicies(run, self.control, self.exchange.share)
        self.exchange.add(policies)
        self.experiments = SharedExperiments(run, self.core, policies, self.exchange, clock)
        self.exchange.add(self.experiments)
        self.exchange.add(SharedEngines(run, self.leader, self.core, self.exchange.share))
        facts = SharedFacts(self.core, self.exchange.share)
        self.exchange.add(facts)
        self.exchange.compare = facts.compare
        self.exchange.add(SharedAdmission(queues, self.exchange.share, self.exchange.heard_runs))
        self.leader.report_to_replicas(self.exchange)

    def join(self, name: str, *, streamed: bool = False) -> None:
        """Let an engine join; its events can be replayed if it is `streamed`."""
        self.core.fleet.join(schema.InstanceConfig(name=name, url=f"http://{name}:8000"))
        events = [EventEndpoint(0, "tcp://engine:5557", "tcp://engine:5558", "")] if streamed else []
        self.core.add_instance(name, [ModelCard("m", None, None, None)], events)

    @property
    def requests(self) -> int:
        target = self.core.fleet.target(A)
        assert target is not None
        return target.load_book.requests

    @property
    def active(self) -> str:
        return self.control.policy_set.active

    @property
    def drained(self) -> bool:
        instance = self.core.fleet.get("a")
        assert instance is not None
        return instance.drained

    def book(self) -> Booking:
        target = self.core.fleet.target(A)
        assert target is not None
        booking = target.load_book.book(100, 100)
        self.leader.report_load(A)
        return booking

    def release(self, booking: Booking) -> None:
        booking.release()
        self.leader.report_load(A)

    def report(self, run: str) -> ReplicaReport | None:
        return next((report for report in self.exchange.describe() if report.run == run), None)

    def hears(self, run: str) -> bool:
        report = self.report(run)
        return report is not None and report.up


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[None]:
    """All started at once: one that starts alone waits a second for the others."""
    async with AsyncExitStack() as stack:
        for replica in replicas:
            stack.push_async_callback(replica.exchange.close)
        await asyncio.gather(*(replica.exchange.start() for replica in replicas))
        yield


def address(port: int) -> str:
    return f"127.0.0.1:{port}"
