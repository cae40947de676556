"""The leader: it starts the other workers, decides which policies are in force, and relays what each worker reports.

The workers form a star: a follower's message goes through the leader to all others. The leader answers requests like
any other worker, and it alone has the admin API, the configuration files, the guard and the audit log. Metrics of any
worker, and records from the admin API, cover all workers.

With other replicas (`control/replicas`), the leader reports the bookings of all its workers to them as its own, and
what they report to its followers as if it were its own. So each replica is one router to the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import msgspec

from router.clock import Clock
from router.config.schema import Config
from router.control.record_detail import Others
from router.control.workers import messages, metrics_merge
from router.control.workers.admission import FollowerAdmissions
from router.control.workers.broadcast import Replicas
from router.control.workers.channel import Channel
from router.control.workers.experiment import ReportedRequests
from router.control.workers.follower import LocalState, dump_follower_config
from router.control.workers.history import list_history
from router.control.workers.loads import ReportedLoads
from router.control.workers.member import FollowerMember, describe_follower
from router.control.workers.messages import AnyMessage, Message
from router.control.workers.metrics_merge import MetricFamily
from router.control.workers.scheduler import make_rule
from router.control.workers.supervisor import WorkerSupervisor
from router.control.workers.tenants import LeaderTenants
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.proxy.listener import HttpListener
from router.request.admission.waiting import AdmissionQueues
from router.tasks import Tasks
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.snapshot import ReplicaReport
from router.telemetry.record_query import RecordQuery
from router.telemetry.request_flow import FlowUpdate, TargetRequest
from router.telemetry.shared_prefixes import SharedPrefix

log = logging.getLogger("warmroute.workers")

APPLY_TIMEOUT_S = 2.0
POLL_S = 0.005
PING_PAUSE_S = 2.0
PING_TIMEOUT_S = 3.0
MISSED_PINGS = 2  # in a row, then a follower is replaced; one may be missed because the leader itself was stopped


class LeaderWorker:
    def __init__(self, config: Config, secret: int, clock: Clock, tasks: Tasks) -> None:
        self.secret = secret
        self._config = config
        self._tasks = tasks
        self._local: LocalState
        self._members: dict[int, FollowerMember] = {}  # connected followers, by number
        self._loads = ReportedLoads[int]()  # of followers, by number
        self._replica_loads = ReportedLoads[str]()  # of other replicas, by run id
        self._unspread: set[TargetId] = set()  # with bookings of other replicas that are not applied yet
        self._replicas: Replicas | None = None
        self._accept_for: Callable[[int, bool], None] = lambda number, on: None  # before `start`
        self._requests = ReportedRequests[int](clock, count(-1, -2))  # `SharedExperiments` has the others below 0
        self._admissions: FollowerAdmissions
        self.tenants: LeaderTenants | None = None  # None: before they are built
        self.on_instance_wanted: Callable[[str, int], None] = lambda model, waiting: None  # by a follower's requests
        self._ended: list[MetricFamily] = []  # counters of followers that ended
        self._supervisor = WorkerSupervisor(self._on_start, clock, tasks)

    def attach(self, local: LocalState, queues: AdmissionQueues) -> None:
        """Apply messages of followers to `local`; their requests begin as `queues` decide. Call it before `start`."""
        self._local = local
        self._admissions = FollowerAdmissions(queues, self._tasks)

    async def join_replicas(self) -> None:
        """Start the exchange with other replicas, if there are any (`Replicas.start`). Call it before engines join."""
        if self._replicas is not None:
            await self._replicas.start()

    async def leave_replicas(self) -> None:
        """End it, and free its port."""
        if self._replicas is not None:
            await self._replicas.close()

    def start(self, listener: HttpListener) -> None:
        """Start the followers, which listen where `listener` does."""
        self._accept_for = listener.serve_for
        listen = self._config.listen.model_copy(update={"port": listener.port})
        self._config = self._config.model_copy(update={"listen": listen})
        self._supervisor.start(self._config.workers - 1, listener.sockets_of)
        self._tasks.supervise("pings", self._ping_followers)

    def announce_stop(self, idle_s: float) -> None:
        """Ask all followers to finish their requests and exit; see `StopMessage`."""
        self._supervisor.stop_restarting()
        self._send_to_followers(messages.StopMessage(idle_s))

    async def stop(self, timeout_s: float) -> None:
        await self._supervisor.stop(timeout_s)
        await self.leave_replicas()

    # Broadcast

    def report_load(self, target: TargetId) -> None:
        for member in self._members.values():
            member.channel.report_load(target)
        if self._replicas is not None:
            self._replicas.report_load(target)

    def send(self, message: Message) -> None:
        self._send_to_followers(message)
        if self._replicas is not None:
            self._replicas.send(message)

    def flush(self) -> None:
        for member in self._members.values():
            member.channel.flush()
        if self._replicas is not None:
            self._replicas.flush()

    def _send_to_followers(self, message: Message, but: int | None = None) -> None:
        """Send a message to all followers but that number."""
        for number, member in self._members.items():
            if number != but:
                member.channel.send(message)

    def report_wake_call(self, model: str, failed: bool) -> None:
        """Tell the followers how a call for an instance ended."""
        self._send_to_followers(messages.WakeCallEnded(model, failed))

    # other replicas

    def report_to_replicas(self, replicas: Replicas) -> None:
        """Report to other replicas from now on. Call it before `start`."""
        self._replicas = replicas
        self._local.scheduler.sends_every_session = True

    def describe_replicas(self) -> list[ReplicaReport]:
        return [] if self._replicas is None else self._replicas.describe()

    def share_for_replicas(self, target: TargetId) -> WorkerShare:
        """Return the bookings of `target` by all workers of this router."""
        return self._local.scheduler.own_share(target).plus(self._loads.total(target))

    def loads_for_replicas(self) -> dict[str, WorkerShare]:
        """Return those bookings by target, without targets that have none."""
        here = {target.id for instance in self._local.scheduler.fleet for target in instance.targets.values()}
        shares = {target: self.share_for_replicas(target) for target in here.union(self._loads.targets())}
        return {target: share for target, share in shares.items() if share != NO_SHARE}

    def share_of_replicas(self, target: TargetId) -> WorkerShare:
        """Return the bookings of `target` by all other replicas."""
        return self._replica_loads.total(target)

    def put_replica_loads(self, run: str, loads: Sequence[messages.LoadMessage]) -> None:
        """Replace the bookings of these targets by a replica, as of the next `spread_replica_loads`."""
        for message in loads:
            target = TargetId(message.target)
            self._replica_loads.put(run, target, message.share)
            self._unspread.add(target)

    def replace_replica_loads(self, run: str, loads: Mapping[str, WorkerShare]) -> None:
        """Replace all bookings of a replica, as of the next `spread_replica_loads`; none of it are left when `loads` is
        empty.
        """
        dropped = set(self._replica_loads.drop(run))
        for name, share in loads.items():
            self._replica_loads.put(run, TargetId(name), share)
        self._unspread.update(dropped, map(TargetId, loads))

    def spread_replica_loads(self) -> None:
        """Apply the changed bookings of replicas in all workers: several replicas often report the same targets."""
        for target in self._unspread:
            self._spread_load(target, None)
        self._unspread.clear()

    def apply_from_replica(self, message: messages.SpreadMessage) -> None:
        """Apply what happened at another replica, in all workers of this router."""
        if isinstance(message, messages.DrainMessage):
            self._local.scheduler.apply_drain(message.instance, message.on)
        else:
            self._local.apply(message)
        self._send_to_followers(message)

    def apply_moves(self, moves: Sequence[messages.SessionMoved]) -> None:
        """Apply where sessions went by another replica, in all workers of this router."""
        self._local.scheduler.apply_sessions(moves)
        for message in moves:
            self._send_to_followers(message)

    # queries

    async def wait_until_applied(self) -> None:
        """Return when every follower that accepts connections has the present policies in force, 2 s later at most."""
        version = self._local.scheduler.version
        with suppress(TimeoutError):
            async with asyncio.timeout(APPLY_TIMEOUT_S):
                while any(member.version < version for member in self._up()):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)

    def describe_workers(self) -> list[dict[str, Any]]:
        """Describe all workers as plain JSON types, the leader first."""
        digests = self._local.scheduler.selector.policy_set.digests
        own = {"number": 0, "pid": os.getpid(), "run": self._local.run_id, "up": True}
        numbers = range(1, self._config.workers)
        followers = [describe_follower(n, self._members.get(n), self._supervisor.pid(n)) for n in numbers]
        return [own | {"policies": digests, "trouble": None}, *followers]

    async def scrape(self, form: PageForm = "text") -> bytes:
        """Return the metrics page of all workers."""
        page = self._local.metrics.page()
        await asyncio.gather(*(self._fetch_families(member) for member in self._up()))
        others = [member.families for member in self._up()]
        return await asyncio.to_thread(metrics_merge.render_merged, page, [*others, self._ended], form)

    async def _fetch_families(self, member: FollowerMember) -> None:
        payload = await member.channel.ask("families")
        if payload is not None:
            member.families = await asyncio.to_thread(metrics_merge.decode_families, payload)

    async def fetch_record(self, id: str, others: Others) -> dict[str, Any] | None:
        """Return a record from the follower that made it; None when that follower is gone or no longer keeps it."""
        owner = next((member for member in self._up() if id.startswith(f"{member.run}-")), None)
        asked = msgspec.json.encode((id, others)).decode()
        payload = None if owner is None else await owner.channel.ask("record", asked)
        return msgspec.json.decode(payload, type=dict[str, Any]) if payload else None

    async def fetch_records(self, query: RecordQuery) -> list[bytes]:
        """Return the records of each follower that match, at most `query.limit` of each, as JSON, unsorted."""
        asked = msgspec.json.encode(query).decode()
        payloads = await asyncio.gather(*(member.channel.ask("records", asked) for member in self._up()))
        lists = (msgspec.json.decode(payload, type=list[msgspec.Raw]) for payload in payloads if payload)
        return [bytes(record) for records in lists for record in records]

    async def fetch_flow(self) -> dict[str, FlowUpdate]:
        """Return what changed of each follower's sums of recent requests since the last call, by its run."""
        members = self._up()
        payloads = await asyncio.gather(*(member.channel.ask("flow") for member in members))
        decode = msgspec.msgpack.Decoder(FlowUpdate).decode
        return {str(m.run): decode(payload) for m, payload in zip(members, payloads, strict=True) if payload}

    async def end_flow(self) -> None:
        """Let the followers drop those sums."""
        await asyncio.gather(*(member.channel.ask("flow_end") for member in self._up()))

    async def fetch_target_requests(self, target: str, limit: int) -> list[TargetRequest]:
        """Return the newest `limit` requests of a target from each follower, unsorted."""
        argument = f"{limit} {target}"
        payloads = await asyncio.gather(*(member.channel.ask("target_requests", argument) for member in self._up()))
        decode = msgspec.msgpack.Decoder(list[TargetRequest]).decode
        return [request for payload in payloads if payload for request in decode(payload)]

    async def fetch_prefixes(self, block_tokens: dict[str, int]) -> list[list[SharedPrefix]]:
        """Return the prefixes that recent prompts share at each follower; see `count_prefixes`."""
        argument = msgspec.json.encode(block_tokens).decode()
        payloads = await asyncio.gather(*(member.channel.ask("prefixes", argument) for member in self._up()))
        decode = msgspec.msgpack.Decoder(list[SharedPrefix]).decode
        return [decode(payload) for payload in payloads if payload]

    def channels(self) -> Iterator[tuple[int, Channel]]:
        """Return the channels of all followers, by their numbers."""
        return ((number, member.channel) for number, member in self._members.items())

    def _up(self) -> list[FollowerMember]:
        return [member for member in self._members.values() if member.run is not None]

    # a follower's life

    async def _on_start(self, number: int, sock: socket.socket) -> None:
        """Connect to a new follower process and send it everything that a worker has to know."""
        on_message, on_close = partial(self._on_message, number), partial(self._on_close, number)
        channel = await Channel.open(sock, on_message, on_close, partial(self._share_for, number))
        member = self._members[number] = FollowerMember(number, channel)
        for message in self._start_messages(number):
            channel.send(message)
        self._tasks.spawn("history", self._send_history(member))

    def _start_messages(self, number: int) -> Iterator[Message]:
        scheduler = self._local.scheduler
        policy_set = scheduler.selector.policy_set
        config = dump_follower_config(self._config, scheduler.selector.seed, policy_set)
        yield messages.StartMessage(number, config, self.secret)
        yield make_rule(policy_set, scheduler.version)
        yield from () if self.tenants is None else self.tenants.report_all(number)
        for instance in scheduler.fleet:
            if instance.drained:
                yield messages.DrainMessage(instance.id, True)
            for target in instance.targets.values():
                yield messages.LoadMessage(target.id, self._share_for(number, target.id))

    async def _send_history(self, member: FollowerMember) -> None:
        """Send the last targets and the progress of sessions, and the targets of stored responses, in slices."""
        async for message in list_history(self._local.scheduler):
            if self._members.get(member.number) is not member:
                return
            member.channel.send(message)

    async def _ping_followers(self) -> None:
        """Replace followers that stopped answering, until cancelled: the kernel still assigns connections to them."""
        while True:
            await asyncio.sleep(PING_PAUSE_S)
            await asyncio.gather(*(self._ping(member) for member in self._up()))

    async def _ping(self, member: FollowerMember) -> None:
        answered = await member.channel.ask("ping", timeout_s=PING_TIMEOUT_S) is not None
        member.missed_pings = 0 if answered else member.missed_pings + 1
        if member.missed_pings >= MISSED_PINGS and self._members.get(member.number) is member:
            log.error("worker %d has not answered %d pings: killing it", member.number, member.missed_pings)
            self._supervisor.kill(member.number)

    def _on_close(self, number: int) -> None:
        """Forget a follower: its counters stay in the sums, its open requests and bookings end."""
        self._accept_for(number, True)
        member = self._members.pop(number, None)
        if member is None:
            return
        self._ended = metrics_merge.merge_families([self._ended, metrics_merge.select_counters(member.families)])
        self._requests.drop(number, self._local.scheduler.experiment)
        self._admissions.drop_worker(number)
        if self.tenants is not None:
            self.tenants.drop_worker(number)
        for target in self._loads.drop(number):
            self._spread_load(target, number)

    # messages

    def _share_for(self, follower: int, target: TargetId) -> WorkerShare:
        """Return the bookings of `target` by all workers except this follower, and by all other replicas."""
        here = self._local.scheduler.own_share(target).plus(self._loads.total(target, excluding=follower))
        return here.plus(self._replica_loads.total(target))

    def _spread_load(self, target: TargetId, by: int | None) -> None:
        """Apply a changed load, reported `by` a follower, or by another replica (None)."""
        self._local.scheduler.apply_load(target, self._loads.total(target).plus(self._replica_loads.total(target)))
        for number, member in self._members.items():
            if number != by:
                member.channel.report_load(target)
        if by is not None and self._replicas is not None:
            self._replicas.report_load(target)

    def _on_message(self, number: int, message: AnyMessage) -> None:
        member, scheduler = self._members[number], self._local.scheduler
        match message:
            case messages.LoadMessage(target, share):
                self._loads.put(number, TargetId(target), share)
                self._spread_load(TargetId(target), number)
            case messages.SessionMoved() | messages.SessionAnswered() | messages.ResponseStored():
                self._local.apply(message)
                self.send(message)  # to its sender too: when two moves cross, all workers end with the leader's order
                if isinstance(message, messages.ResponseStored):
                    self.flush()
            case messages.BlocksSent() | messages.PredictionChecked():
                self._local.apply(message)
                self._send_to_followers(message, but=number)
                if self._replicas is not None:
                    self._replicas.send(message)
            case messages.BreakerMoved() | messages.InstanceSuspected() | messages.PreloadSettled():
                self._local.apply(message)
                self.send(message)
            case messages.RequestBegan():  # does not count when an earlier experiment placed it
                if scheduler.experiment is not None and message.version >= scheduler.experiment_since:
                    record = self._requests.begin(number, message.number, message.arrived_s)
                    scheduler.experiment.begin_request(message.arm, message.unit, record)
            case messages.RequestAnswered() | messages.RequestEnded():
                self._requests.apply(number, message, scheduler.experiment)
            case messages.AdmissionAsked():
                self._admissions.begin(number, member.channel, message)
            case messages.AdmissionPlaced() | messages.AdmissionAnswered() | messages.AdmissionEnded():
                self._admissions.apply(number, message)
            case messages.TenantReport() | messages.UsageReport() if self.tenants is not None:
                self.tenants.apply(number, message)
            case messages.InstanceWanted(model, waiting):
                self.on_instance_wanted(model, waiting)
            case messages.WorkerUp(run, pid):
                member.run = run
                self._accept_for(number, False)
                log.info("worker %d accepts connections (pid %d)", number, pid)
            case messages.WorkerStopping():
                self._accept_for(number, True)
            case messages.PolicyApplied(version, digests, trouble):
                member.version, member.digests, member.trouble = version, digests, trouble
            case messages.AskMessage():
                self._tasks.spawn("scrape", self._answer(member, message))
            case _:
                log.error("unexpected message from worker %d, ignored: %s", number, type(message).__name__)

    async def _answer(self, member: FollowerMember, query: messages.AskMessage) -> None:
        page = await self.scrape("openmetrics" if query.argument == "openmetrics" else "text")
        member.channel.send(messages.AnswerMessage(query.number, page))
