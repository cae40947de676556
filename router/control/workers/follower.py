"""A worker that follows: it answers requests like the leader, tells it what it does, and does what it is told.

It ends with its line: whoever leads is gone then, and with it what decides. The one that takes its place has followers
of its own.
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
from router.control.workers.messages import (
    AnswerMessage,
    AskMessage,
    DrainMessage,
    LoadMessage,
    Message,
    PolicyApplied,
    PolicyRule,
    ResponseStored,
    SessionMoved,
    StartMessage,
    StopMessage,
    WorkerUp,
)
from router.control.workers.policy_sync import build_from_rule
from router.errors import ConfigError
from router.fleet.load import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.tasks import Tasks
from scorers.registry import load_registry

log = logging.getLogger("warmroute.workers")

SCRAPED_WITHIN_S = 5.0


class FollowerWorker:
    """What it hears before its rooms are there (`take`) waits for them. `over` is set when it is to end; `alone`: not
    with all the others.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.over = asyncio.Event()
        self.alone = True
        self._tasks = tasks
        self._line: Channel
        self._house: LocalState | None = None
        self._started: asyncio.Future[StartMessage] = asyncio.get_running_loop().create_future()
        self._waiting: list[messages.Any] = []
        self._registry = load_registry()

    async def connect(self, sock: socket.socket) -> StartMessage:
        """The leader's first word. Raises ConnectionError when it is gone."""
        self._line = await Channel.on(sock, self._heard, self._lost, self._share)
        return await self._started

    def take(self, house: LocalState) -> None:
        """The rooms are there."""
        self._house = house
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._heard(message)

    def up(self) -> None:
        """Connections are taken."""
        assert self._house is not None
        self._line.tell(WorkerUp(self._house.run_id, os.getpid()))

    async def scrape(self) -> bytes:
        """The metrics page of all workers; of this one, where the leader does not answer."""
        assert self._house is not None
        page = await self._line.ask("scrape", within_s=SCRAPED_WITHIN_S)
        return await asyncio.to_thread(self._house.metrics.page().render) if page is None else page

    def close(self) -> None:
        self._line.close()

    # Telling

    def booked(self, target: TargetId) -> None:
        self._line.booked(target)

    def tell(self, message: Message) -> None:
        self._line.tell(message)

    def hurry(self) -> None:
        self._line.hurry()

    # the line

    def _share(self, target: TargetId) -> WorkerShare:
        return NO_SHARE if self._house is None else self._house.core.own_share(target)

    def _lost(self) -> None:
        if not self._started.done():
            self._started.set_exception(ConnectionError("the leader is gone"))
        if not self.over.is_set():
            log.warning("nobody leads any more: stopping")
        self.over.set()

    def _heard(self, message: messages.Any) -> None:
        if isinstance(message, StartMessage):
            self._started.set_result(message)
        elif isinstance(message, StopMessage):
            self.alone = False
            self.over.set()
        elif self._house is None:
            self._waiting.append(message)
        else:
            self._do(message, self._house)

    def _do(self, message: messages.Any, house: LocalState) -> None:
        match message:
            case LoadMessage(target, share):
                house.core.apply_load(TargetId(target), share)
            case SessionMoved() | ResponseStored():
                house.heard(message)
            case DrainMessage(instance, on):
                house.core.apply_drain(instance, on)
            case PolicyRule():
                self._rule(message, house)
            case AskMessage():
                self._tasks.spawn("answer", self._answer(message, house))
            case _:
                log.error("the leader told what only followers tell: %s", type(message).__name__)

    def _rule(self, rule: PolicyRule, house: LocalState) -> None:
        core = house.core
        try:
            regime = build_from_rule(rule, core.selector.policy_set, self._registry)
        except ConfigError as wrong:  # what decides stays, and the leader knows that it is not what it said
            log.error("what the leader switched to cannot be built here: %s", wrong)
            self.tell(PolicyApplied(rule.version, core.selector.policy_set.digests, str(wrong)))
            return
        core.version = rule.version
        core.swap(regime)
        self.tell(PolicyApplied(rule.version, regime.digests))

    async def _answer(self, asked: AskMessage, house: LocalState) -> None:
        match asked.question:
            case "families":
                payload = await house.families()
            case "record":
                payload = house.record(asked.about)
            case "records":
                payload = house.records(int(asked.about))
            case "scrape":
                payload = b""  # the leader's to say
        self.tell(AnswerMessage(asked.number, payload))


def parse_config(start: StartMessage) -> Config:
    return Config.model_validate_json(start.config)
