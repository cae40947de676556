"""The worker that leads: it starts the others, says what decides, and passes on what each of them tells.

A star: what one tells goes through here to the others. It answers requests like any other, and it alone has the admin
door, the files, the guard and the audit log. Who asks any worker for metrics, or the admin door for records, is told of
all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from router.clock import Clock
from router.config.schema import Config
from router.control.workers import messages, metrics_merge
from router.control.workers.channel import Channel
from router.control.workers.experiment import FollowerRequests
from router.control.workers.load_table import WorkerLoads
from router.control.workers.local_state import LocalState
from router.control.workers.messages import (
    AnswerMessage,
    AskMessage,
    DrainMessage,
    LoadMessage,
    Message,
    PolicyApplied,
    RequestAnswered,
    RequestBegan,
    RequestEnded,
    ResponseStored,
    SessionMoved,
    StartMessage,
    StopMessage,
    WorkerUp,
)
from router.control.workers.metrics_merge import MetricFamily
from router.control.workers.policy_sync import make_rule
from router.control.workers.supervisor import WorkerSupervisor
from router.fleet.load import WorkerShare
from router.kvcache.events import TargetId
from router.scheduling.experiments.policy_set import PolicySet
from router.tasks import Tasks

log = logging.getLogger("warmroute.workers")

RULED_WITHIN_S = 2.0
LOOK_S = 0.005
TOLD_AT_ONCE = 2_000  # sessions and responses, to one that is new: about a millisecond


@dataclass
class FollowerMember:
    """One follower, from its start to its end."""

    number: int
    line: Channel
    run: str | None = None  # None: it does not take connections yet
    version: int = 0  # of the rule that it has in force
    digests: dict[str, str] = field(default_factory=dict)
    trouble: str | None = None  # why it has not the newest
    families: list[MetricFamily] = field(default_factory=list)  # as it told them last


class LeaderWorker:
    def __init__(self, config: Config, secret: int, clock: Clock, tasks: Tasks) -> None:
        self.secret = secret
        self._config = config
        self._tasks = tasks
        self._house: LocalState
        self._members: dict[int, FollowerMember] = {}  # those with a line, by number
        self._loads = WorkerLoads()
        self._elsewhere = FollowerRequests(clock)
        self._gone: list[MetricFamily] = []  # what those counted that are gone
        self._crew = WorkerSupervisor(self._born, clock, tasks)

    def take(self, house: LocalState) -> None:
        """The rooms are there."""
        self._house = house

    def start(self, port: int) -> None:
        """`port`: where all listen."""
        self._config = self._config.model_copy(update={"listen": self._config.listen.model_copy(update={"port": port})})
        self._crew.start(self._config.workers - 1)

    def stopping(self) -> None:
        """Everybody finishes what is under way."""
        self._crew.ending()
        self.tell(StopMessage())

    async def stop(self, within_s: float) -> None:
        await self._crew.end(within_s)

    # Telling

    def booked(self, target: TargetId) -> None:
        for member in self._members.values():
            member.line.booked(target)

    def tell(self, message: Message) -> None:
        for member in self._members.values():
            member.line.tell(message)

    def hurry(self) -> None:
        for member in self._members.values():
            member.line.hurry()

    # what somebody wants to know

    async def everywhere(self) -> None:
        """Returns when what is in force here is in force in every worker, or will not be soon."""
        version = self._house.core.version
        with suppress(TimeoutError):
            async with asyncio.timeout(RULED_WITHIN_S):
                while any(m.run is not None and m.version < version for m in self._members.values()):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)

    def workers(self) -> list[dict[str, Any]]:
        """As plain JSON types, the leader first."""
        core = self._house.core
        own = {
            "number": 0,
            "pid": os.getpid(),
            "run": self._house.run_id,
            "up": True,
            "policies": core.selector.policy_set.digests,
            "trouble": None,
        }
        return [own, *(self._shown(number) for number in range(1, self._config.workers))]

    def _shown(self, number: int) -> dict[str, Any]:
        member = self._members.get(number)
        return {
            "number": number,
            "pid": self._crew.pid(number),
            "run": member.run if member is not None else None,
            "up": member is not None and member.run is not None,
            "policies": member.digests if member is not None else {},
            "trouble": member.trouble if member is not None else None,
        }

    async def scrape(self) -> bytes:
        """The metrics page of all workers."""
        page = self._house.metrics.page()
        await asyncio.gather(*(self._ask_families(member) for member in self._up()))
        others = [member.families for member in self._up()]
        return await asyncio.to_thread(metrics_merge.render_merged, page, [*others, self._gone])

    async def _ask_families(self, member: FollowerMember) -> None:
        told = await member.line.ask("families")
        if told is not None:
            member.families = await asyncio.to_thread(metrics_merge.decode_families, told)

    async def record(self, id: str) -> dict[str, Any] | None:
        """Of the worker whose run it names; None: it does not keep it, or is gone."""
        of = [member for member in self._up() if id.startswith(f"{member.run}-")]
        told = await of[0].line.ask("record", id) if of else None
        return msgspec.json.decode(told, type=dict[str, Any]) if told else None

    async def records(self, limit: int) -> list[dict[str, Any]]:
        """The newest of each follower, in no order."""
        told = await asyncio.gather(*(member.line.ask("records", str(limit)) for member in self._up()))
        return [record for one in told if one for record in msgspec.json.decode(one, type=list[dict[str, Any]])]

    def _up(self) -> list[FollowerMember]:
        return [member for member in self._members.values() if member.run is not None]

    # a follower's life

    async def _born(self, number: int, sock: socket.socket) -> None:
        heard = partial(self._heard, number)
        line = await Channel.on(sock, heard, partial(self._lost, number), partial(self._share, number))
        member = self._members[number] = FollowerMember(number, line)
        for message in self._first_words(number):
            line.tell(message)
        self._tasks.spawn("tell", self._tell_history(member))

    def _first_words(self, number: int) -> Iterator[Message]:
        core = self._house.core
        regime = core.selector.policy_set
        yield StartMessage(number, dump_follower_config(self._config, core.selector.seed, regime), self.secret)
        yield make_rule(regime, core.version)
        for instance in core.fleet:
            if instance.drained:
                yield DrainMessage(instance.id, True)
            for target in instance.targets.values():
                yield LoadMessage(target.id, self._share(number, target.id))

    async def _tell_history(self, member: FollowerMember) -> None:
        """Where sessions and responses are, in slices."""
        async for message in self._history():
            if self._members.get(member.number) is not member:
                return
            member.line.tell(message)

    async def _history(self) -> AsyncIterator[Message]:
        """As it is when it is told: what moves meanwhile is told as news, and must not be taken back."""
        sessions, responses = self._house.core.selector.sessions, self._house.core.responses()
        for n, (key, _) in enumerate(sessions.items()):
            if n % TOLD_AT_ONCE == TOLD_AT_ONCE - 1:
                await asyncio.sleep(LOOK_S)
            if (target := sessions.get(key)) is not None:
                yield SessionMoved(*key, target)
        for n, (response, made_by) in enumerate(responses):
            if n % TOLD_AT_ONCE == TOLD_AT_ONCE - 1:
                await asyncio.sleep(LOOK_S)
            yield ResponseStored(response, made_by)

    def _lost(self, number: int) -> None:
        """Its line has ended: what it had under way is over."""
        member = self._members.pop(number, None)
        if member is None:
            return
        self._gone = metrics_merge.merge_families([self._gone, metrics_merge.select_counters(member.families)])
        self._elsewhere.lost(number, self._house.core.experiment)
        for target in self._loads.drop(number):
            self._spread(target, number)

    # the lines

    def _share(self, follower: int, target: TargetId) -> WorkerShare:
        """What is booked there by everybody but this one."""
        return self._house.core.own_share(target).plus(self._loads.of_followers(target, but=follower))

    def _spread(self, target: TargetId, by: int) -> None:
        self._house.core.apply_load(target, self._loads.of_followers(target))
        for number, member in self._members.items():
            if number != by:
                member.line.booked(target)

    def _heard(self, number: int, message: messages.Any) -> None:
        member = self._members[number]
        match message:
            case LoadMessage(target, share):
                self._loads.put(number, TargetId(target), share)
                self._spread(TargetId(target), number)
            case SessionMoved() | ResponseStored():
                self._house.heard(message)
                self.tell(message)  # to who told it, too: where words cross, all end with the leader's order
                if isinstance(message, ResponseStored):
                    self.hurry()
            case RequestBegan() | RequestAnswered() | RequestEnded():
                self._count(number, message)
            case WorkerUp(run, pid):
                member.run = run
                log.info("worker %d takes connections (pid %d)", number, pid)
            case PolicyApplied(version, digests, trouble):
                member.version, member.digests, member.trouble = version, digests, trouble
            case AskMessage():
                self._tasks.spawn("scrape", self._answer(member, message))
            case _:
                log.error("worker %d told what only a leader tells: %s", number, type(message).__name__)

    def _count(self, number: int, told: RequestBegan | RequestAnswered | RequestEnded) -> None:
        """A request of an experiment."""
        core = self._house.core
        match told:
            case RequestBegan(version=version):
                if core.experiment is not None and version >= core.trial_since:
                    self._elsewhere.began(number, told, core.experiment)
            case RequestAnswered():
                self._elsewhere.answered(told)
            case RequestEnded():
                self._elsewhere.ended(told, core.experiment)

    async def _answer(self, member: FollowerMember, asked: AskMessage) -> None:
        member.line.tell(AnswerMessage(asked.number, await self.scrape()))


def dump_follower_config(config: Config, seed: int, regime: PolicySet) -> str:
    """JSON. What a follower must not do is not in it: follow files, keep an audit log. Policies are told, not read: the
    files may have changed since. Memory is the machine's, so all share one budget. The index's snapshot is there to be
    read; saving it is the leader's.
    """
    tokens = config.tokens.model_copy(update={"memory_bytes": config.tokens.memory_bytes // config.workers})
    admin = config.admin.model_copy(update={"audit_file": None})
    changes = {"tokens": tokens, "admin": admin, "seed": seed, "watch": False}
    policies = {name: policy.spec for name, policy in regime.policies.items() if policy.spec is not None}
    changes |= {"policies_dir": None, "policies": policies, "active": regime.active, "experiment": None}
    return config.model_copy(update=changes).model_dump_json()
