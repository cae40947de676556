"""A follower: it answers requests like the leader, reports to it, and applies what the leader decides.

A follower stops when its channel closes, because without the leader nothing decides which policy is in force. A new
leader starts followers of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from router.config.schema import Config
from router.control.workers import messages
from router.control.workers.channel import Channel
from router.control.workers.local_state import LocalState
from router.control.workers.messages import AnyMessage, PolicyApplied
from router.control.workers.policy_sync import build_from_rule
from router.errors import ConfigError
from router.fleet.load import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.tasks import Tasks
from scorers.registry import load_registry

log = logging.getLogger("warmroute.workers")

SCRAPE_TIMEOUT_S = 5.0


class FollowerWorker:
    """A follower's channel to its leader, and what it does with the messages.

    Messages that arrive before `attach` wait for it. `stopping` is set when the worker has to stop; `stops_alone` is
    False when the leader stops all workers.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.stopping = asyncio.Event()
        self.stops_alone = True
        self._tasks = tasks
        self._channel: Channel
        self._local: LocalState | None = None
        self._start: asyncio.Future[messages.StartMessage] = asyncio.get_running_loop().create_future()
        self._waiting: list[AnyMessage] = []
        self._registry = load_registry()

    async def connect(self, sock: socket.socket) -> messages.StartMessage:
        """Return the leader's first message. Raises ConnectionError when the leader is gone."""
        self._channel = await Channel.open(sock, self._on_message, self._on_close, self._own_share)
        return await self._start

    def attach(self, local: LocalState) -> None:
        """Apply messages to `local` from now on, those that waited first."""
        self._local = local
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._on_message(message)

    def announce_up(self) -> None:
        """Report to the leader that this worker accepts connections."""
        assert self._local is not None
        self.send(messages.WorkerUp(self._local.run_id, os.getpid()))

    async def scrape(self) -> bytes:
        """Return the metrics page of all workers, or of this one alone when the leader does not answer."""
        assert self._local is not None
        page = await self._channel.ask("scrape", timeout_s=SCRAPE_TIMEOUT_S)
        return await asyncio.to_thread(self._local.metrics.page().render) if page is None else page

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
        self.stopping.set()

    def _on_message(self, message: AnyMessage) -> None:
        if isinstance(message, messages.StartMessage):
            self._start.set_result(message)
        elif isinstance(message, messages.StopMessage):
            self.stops_alone = False
            self.stopping.set()
        elif self._local is None:
            self._waiting.append(message)
        else:
            self._apply(message, self._local)

    def _apply(self, message: AnyMessage, local: LocalState) -> None:
        match message:
            case messages.LoadMessage(target, share):
                local.scheduler.apply_load(TargetId(target), share)
            case messages.SessionMoved() | messages.ResponseStored():
                local.apply(message)
            case messages.DrainMessage(instance, on):
                local.scheduler.apply_drain(instance, on)
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
            case "families":
                payload = await local.encode_families()
            case "record":
                payload = local.encode_record(message.argument)
            case "records":
                payload = local.encode_records(int(message.argument))
            case "scrape":
                payload = b""  # only the leader has the page of all workers
        self.send(messages.AnswerMessage(message.number, payload))


def parse_config(start: messages.StartMessage) -> Config:
    return Config.model_validate_json(start.config)
