"""Processes of a router without listeners, for tests and measurements of the exchange."""

from __future__ import annotations

import asyncio
import secrets
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
from router.control.core import build_scheduler
from router.control.duty import Duty
from router.control.peers.connect import LocalState, connect_peers
from router.control.peers.exchange import FleetNetwork, HostNetwork, PeerExchange
from router.control.peers.frames import Sender
from router.control.peers.parts import SharedPart
from router.control.peers.scheduler import PeerScheduler
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.load import Booking
from router.kvcache.events import TargetId
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from router.telemetry.metrics.snapshot import ReplicaReport
from router.telemetry.recent_records import RecentRecords
from tests.fakes.caches import RING

A = TargetId("a/0")
SECRET = b"0123456789abcdef"
WARM, OTHER = (build_policy(name, read_policy_file(list_shipped_policies()["warm"])) for name in ("warm", "other"))


class Replica:
    """A process with a scheduler, an engine per letter of `engines`, and the exchange. With `port` it is a router with
    others at `peers`; with `near` it is a worker, of which that with the run `duty` is on duty.
    """

    def __init__(
        self,
        run: str,
        port: int | None = None,
        peers: Sequence[str] = (),
        secret: bytes = SECRET,
        engines: str = "a",
        key_secret: int = 5,
        discovery: Discovery | None = None,
        *,
        near: HostNetwork | None = None,
        host: str | None = None,
        duty: str | None = None,
        parts: Sequence[SharedPart] = (),
    ) -> None:
        self.run = run
        self.clock, config = SystemClock(), schema.Config(seed=7)
        fleet = None
        if port is not None:
            settings = ReplicasConfig(peers=[*peers], secret_env="NOT_READ", host="127.0.0.1", port=port)
            fleet = FleetNetwork(settings, secret, discovery)
        self.exchange = PeerExchange(Sender(host or run, run), near, fleet, self.clock)
        policies, number = PolicySet({"warm": WARM, "other": OTHER}, "warm"), 0 if near is None else near.number
        core = build_scheduler(config, policies, RING, self.clock, secret=5, peers=self.exchange, number=number)
        self.core = cast(PeerScheduler, core)
        self.duty = Duty(run, held=duty in (None, run))
        self.duty.follow(duty or run)
        self.tasks = Tasks(run)
        records = RecentRecords(10)
        self.control = Control(core, records, AuditLog(), self.clock)
        for name in engines:
            self.join(name)
        local = LocalState(self.core, self.control, records, key_secret, parts)
        connect_peers(self.exchange, local, self.tasks, self.clock)

    async def start(self, *, learn: bool = False) -> None:
        await self.exchange.start(learn=learn)
        await self.exchange.join(listen=self.duty.held)

    async def close(self) -> None:
        await self.exchange.close()
        await self.tasks.close()

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
        self.core.report_load(A)
        return booking

    def release(self, booking: Booking) -> None:
        booking.release()
        self.core.report_load(A)

    def report(self, run: str) -> ReplicaReport | None:
        return next((report for report in self.exchange.describe() if report.run == run), None)

    def hears(self, *runs: str) -> bool:
        """Return whether these are received from and acknowledge what they get."""
        return {*runs} <= {*self.exchange.runs()}


class Host:
    """The workers of a host, which listen at addresses of their own. `port` and `peers`: those of its `Replica`s."""

    def __init__(self, name: str, workers: int, port: int | None = None, peers: Sequence[str] = ()) -> None:
        self.name = name
        self.workers: list[Replica] = []
        self._network = HostNetwork(f"@warmroute-test-{secrets.token_hex(8)}", SECRET, 0, workers)
        self._fleet = port, peers
        self.duty: str | None = None

    def add(self, run: str, number: int, parts: Sequence[SharedPart] = ()) -> Replica:
        """Build a worker; the first one is on duty."""
        self.duty = self.duty or run
        near, (port, peers) = self._network._replace(number=number), self._fleet
        worker = Replica(run, port, peers, near=near, host=self.name, duty=self.duty, parts=parts)
        self.workers.append(worker)
        self.follow()
        return worker

    def end(self, worker: Replica) -> None:
        """Notice that a worker has ended."""
        self.workers.remove(worker)
        self.follow()

    def take_duties(self, worker: Replica) -> None:
        self.duty = worker.run
        for one in self.workers:
            one.duty.follow(worker.run)

    def follow(self) -> None:
        """Let all know which workers live."""
        runs = {worker.run for worker in self.workers}
        for worker in self.workers:
            worker.exchange.follow_members(runs - {worker.run})


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[None]:
    """All started at once: one that starts alone waits a second for the others."""
    async with AsyncExitStack() as stack:
        for replica in replicas:
            stack.push_async_callback(replica.close)
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield


def address(port: int) -> str:
    return f"127.0.0.1:{port}"
