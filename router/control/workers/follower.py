"""A follower: it answers requests like the leader, reports to it, and applies what the leader decides.

A follower stops when its channel closes, because without the leader nothing decides which policy is in force. A new
leader starts followers of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from router.clock import Clock
from router.config.schema import Config
from router.config.sections.preload import PreloadConfig
from router.control.record_detail import Others, describe_in_full
from router.control.workers import messages, metrics_merge
from router.control.workers.admission import SyncedAdmission
from router.control.workers.channel import Channel
from router.control.workers.messages import AnyMessage, PolicyApplied
from router.control.workers.scheduler import SyncedScheduler, build_from_rule
from router.control.workers.tenants import FollowerTenants
from router.errors import ConfigError
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.scheduling.experiments.policy_set import PolicySet
from router.tasks import Tasks
from router.telemetry.metrics.exposition import PageForm
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.recent_records import RecentRecords
from router.telemetry.record_query import RecordQuery
from router.telemetry.request_flow import RequestFlow, list_target_requests
from router.telemetry.shared_prefixes import count_prefixes
from scorers.registry import load_registry

log = logging.getLogger("warmroute.workers")

SCRAPE_TIMEOUT_S = 5.0


class LocalState(NamedTuple):
    """The parts of one worker's state that other workers change or query."""

    run_id: str
    scheduler: SyncedScheduler
    recent_records: RecentRecords
    metrics: Metrics
    clock: Clock

    def apply(
        self,
        message: messages.SessionMessage | messages.EngineMessage | messages.BlocksSent | messages.PreloadSettled,
    ) -> None:
        match message:
            case messages.SessionMoved():
                self.scheduler.apply_sessions([message])
            case messages.SessionAnswered():
                self.scheduler.apply_progress(message)
            case messages.ResponseStored():
                self.scheduler.apply_response(message)
            case messages.BlocksSent():
                self.scheduler.apply_sent(message)
            case messages.PredictionChecked():
                self.scheduler.apply_finding(message)
            case messages.BreakerMoved():
                self.scheduler.apply_breaker(message)
            case messages.InstanceSuspected(instance):
                self.scheduler.suspect(instance)
            case messages.CacheForgotten(instance):
                self.scheduler.apply_forgotten(instance)
            case messages.PreloadSettled():
                self.scheduler.apply_preload(message)

    async def encode_families(self) -> bytes:
        """Encode the counters as of now; the encoding runs in a thread."""
        return await asyncio.to_thread(metrics_merge.encode_families, self.metrics.page())

    async def encode_record(self, id: str, others: Others) -> bytes:
        """Encode a record in full as JSON; empty when it is not kept."""
        record = self.recent_records.get(id)
        if record is None:
            return b""
        policies = self.scheduler.selector.policy_set.policies
        return msgspec.json.encode(await describe_in_full(record, policies, others))

    async def encode_target_requests(self, argument: str) -> bytes:
        """Encode the last requests of a target; `argument` is how many, a space and the target."""
        limit, _, target = argument.partition(" ")
        return msgspec.msgpack.encode(await list_target_requests(self.recent_records, target, int(limit)))

    async def encode_records(self, query: RecordQuery) -> bytes:
        """Encode the records that match as a JSON list, the newest first."""
        return b"[%b]" % b",".join(await self.recent_records.encode(query))


class FollowerWorker:
    """A follower's channel to its leader, and what it does with the messages.

    Messages that arrive before `attach` wait for it. `stopping` is set when the worker has to stop.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.stopping = asyncio.Event()
        self.idle_s: float | None = None  # that the leader gives connections to end; None: it did not ask to stop
        self._tasks = tasks
        self._channel: Channel
        self._local: LocalState | None = None
        self._admission: SyncedAdmission
        self.tenants: FollowerTenants | None = None  # None: before they are built
        self.on_wake_call: Callable[[str, bool], None] = lambda model, failed: None  # the leader's, and how it ended
        self._flow: RequestFlow | None = None  # None: nobody looks at the live page
        self._start: asyncio.Future[messages.StartMessage] = asyncio.get_running_loop().create_future()
        self._waiting: list[AnyMessage] = []
        self._registry = load_registry()

    async def connect(self, sock: socket.socket) -> messages.StartMessage:
        """Return the leader's first message. Raises ConnectionError when the leader is gone."""
        self._channel = await Channel.open(sock, self._on_message, self._on_close, self._own_share)
        return await self._start

    def attach(self, local: LocalState, admission: SyncedAdmission) -> None:
        """Apply messages to `local` and `admission` from now on, those that waited first."""
        self._local, self._admission = local, admission
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._on_message(message)

    def announce_up(self) -> None:
        """Report to the leader that this worker accepts connections."""
        assert self._local is not None
        self.send(messages.WorkerUp(self._local.run_id, os.getpid()))

    def announce_stop(self) -> None:
        """Report to the leader that this worker accepts no more connections."""
        self.send(messages.WorkerStopping())
        self.flush()

    async def scrape(self, form: PageForm = "text") -> bytes:
        """Return the metrics page of all workers, or of this one alone when the leader does not answer."""
        assert self._local is not None
        page = await self._channel.ask("scrape", form, timeout_s=SCRAPE_TIMEOUT_S)
        return await asyncio.to_thread(self._local.metrics.page().render, form) if page is None else page

    def close(self) -> None:
        self._channel.close()

    # Broadcast

    def report_load(self, target: TargetId) -> None:
        self._channel.report_load(target)

    def send(self, message: messages.Message) -> None:
        self._channel.send(message)

    def flush(self) -> None:
        self._channel.flush()

    # the channel

    def _own_share(self, target: TargetId) -> WorkerShare:
        return NO_SHARE if self._local is None else self._local.scheduler.own_share(target)

    def _on_close(self) -> None:
        if not self._start.done():
            self._start.set_exception(ConnectionError("the leader is gone"))
        if not self.stopping.is_set():
            log.warning("the channel to the leader closed: stopping")
        if self._local is not None:
            self._admission.close()
        self.stopping.set()

    def _on_message(self, message: AnyMessage) -> None:
        if isinstance(message, messages.StartMessage):
            self._start.set_result(message)
        elif isinstance(message, messages.StopMessage):
            self.idle_s = message.idle_s
            self.stopping.set()
        elif self._local is None:
            self._waiting.append(message)
        else:
            self._apply(message, self._local)

    def _apply(self, message: AnyMessage, local: LocalState) -> None:
        match message:
            case messages.LoadMessage(target, share):
                local.scheduler.apply_load(TargetId(target), share)
            case messages.SessionMoved() | messages.SessionAnswered() | messages.ResponseStored():
                local.apply(message)
            case (
                messages.BlocksSent()
                | messages.PredictionChecked()
                | messages.BreakerMoved()
                | messages.InstanceSuspected()
                | messages.CacheForgotten()
            ):
                local.apply(message)
            case messages.DrainMessage(instance, on):
                local.scheduler.apply_drain(instance, on)
            case messages.PrefixPreloaded() | messages.PreloadSettled():
                local.scheduler.apply_preload(message)
            case messages.AdmissionVerdict():
                self._admission.on_verdict(message)
            case messages.TenantReport() if self.tenants is not None:
                self.tenants.apply(message)
            case messages.WakeCallEnded(model, failed):
                self.on_wake_call(model, failed)
            case messages.PolicyRule():
                self._apply_rule(message, local)
            case messages.AskMessage():
                self._tasks.spawn("answer", self._answer(message, local))
            case _:
                log.error("unexpected message from the leader, ignored: %s", type(message).__name__)

    def _apply_rule(self, rule: messages.PolicyRule, local: LocalState) -> None:
        scheduler = local.scheduler
        try:
            policy_set = build_from_rule(rule, scheduler.selector.policy_set, self._registry)
        except ConfigError as error:  # the policies in force stay, and the leader learns that they differ from its own
            log.error("the leader's policies cannot be built here, the ones in force stay: %s", error)
            self.send(PolicyApplied(rule.version, scheduler.selector.policy_set.digests, str(error)))
            return
        scheduler.version = rule.version
        scheduler.swap(policy_set)
        self.send(PolicyApplied(rule.version, policy_set.digests))

    async def _answer(self, message: messages.AskMessage, local: LocalState) -> None:
        match message.query:
            case "ping":
                payload = b""
            case "families":
                payload = await local.encode_families()
            case "record":
                asked = msgspec.json.decode(message.argument, type=tuple[str, Others])
                payload = await local.encode_record(*asked)
            case "records":
                query = msgspec.json.decode(message.argument, type=RecordQuery)
                payload = await local.encode_records(query)
            case "local_tokens":
                payload = self._admission.encode_local_tokens(int(message.argument))
            case "flow":
                self._flow = self._flow or RequestFlow(local.recent_records, local.clock)
                payload = msgspec.msgpack.encode(await self._flow.update())
            case "flow_end":
                self._flow, payload = None, b""
            case "target_requests":
                payload = await local.encode_target_requests(message.argument)
            case "prefixes":
                sizes = msgspec.json.decode(message.argument, type=dict[str, int])
                prefixes = await count_prefixes(local.recent_records, local.clock.wall(), sizes)
                payload = msgspec.msgpack.encode(prefixes)
            case "scrape":
                payload = b""  # only the leader has the page of all workers
        self.send(messages.AnswerMessage(message.number, payload))
        self.flush()


def parse_config(start: messages.StartMessage) -> Config:
    return Config.model_validate_json(start.config)


def dump_follower_config(config: Config, seed: int, policy_set: PolicySet) -> str:
    """Return the configuration of a follower as JSON: without what only the leader does (file watch, audit log).

    Policies are inline instead of read again, since the files may have changed meanwhile. All workers share one memory
    budget. Only the leader loads prefixes ahead. The index snapshot is read by every worker but saved only by the
    leader.
    """
    tokens = config.tokens.model_copy(update={"memory_bytes": config.tokens.memory_bytes // config.workers})
    admin = config.admin.model_copy(update={"audit_file": None})
    changes = {"tokens": tokens, "admin": admin, "seed": seed, "watch": False, "replicas": None}
    policies = {name: policy.spec for name, policy in policy_set.policies.items() if policy.spec is not None}
    changes |= {"policies_dir": None, "policies": policies, "active": policy_set.active, "experiment": None}
    changes |= {"admission": policy_set.admission, "preload": PreloadConfig()}
    return config.model_copy(update=changes).model_dump_json()
