"""One admission for all workers: the leader's queues decide, also about requests that followers answer.

    follower    SyncedAdmission       asks the leader, waits, and reports where the request went and how it ended
    leader      FollowerAdmissions    holds the place of each follower's request in the leader's queues

So a session is one session whichever workers its requests reach, and what one worker does not need another one has. A
request costs one message each way before it begins. The follower has the prompt, so it is asked what instances hold of
it where the rule needs that. The places of a worker that died are given back; when the leader is gone, what waits is
refused, because the port is for the next router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import count
from typing import NamedTuple

from router.clock import Clock
from router.config.sections.listeners import AdmissionConfig
from router.control.workers.broadcast import Broadcast
from router.control.workers.channel import Channel
from router.control.workers.messages import (
    AdmissionAnswered,
    AdmissionAsked,
    AdmissionEnded,
    AdmissionPlaced,
    AdmissionRefusal,
    AdmissionVerdict,
)
from router.errors import NoTarget, TooBusy
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt, UnknownIds
from router.request.admission.claim import derive_claim
from router.request.admission.computed_prompt import ComputedPrompt
from router.request.admission.lease import AdmissionLease
from router.request.admission.model_admission import HeldPrefix, ModelAdmission, find_held
from router.request.admission.shared_prefixes import sample_prefix
from router.request.admission.waiting import NO_LEASE, AdmissionQueues, QueueLease, derive_session, leaves_context
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks
from router.tenants.tenant import Tenant
from scorers.admission.contract import Claim


class _Asking(NamedTuple):
    """A request of this follower that waits for the leader's verdict."""

    model: str
    tokens: TokenizedPrompt | None
    verdict: asyncio.Future[AdmissionVerdict]


class SyncedAdmission:
    """A follower's admission control."""

    def __init__(self, config: AdmissionConfig, scheduler: Scheduler, clock: Clock, broadcast: Broadcast) -> None:
        self.config = config
        self._scheduler = scheduler
        self._clock = clock
        self._broadcast = broadcast
        self._numbers = count()
        self._asking: dict[int, _Asking] = {}
        self._closed = False

    def __iter__(self) -> Iterator[ModelAdmission]:
        return iter(())  # the leader has all queues

    def follow(self, policy_set: PolicySet) -> None:
        self.config = policy_set.admission  # the leader knows which arm's rule is in force

    async def acquire(
        self,
        prompt: Prompt,
        served: ServedModel | None,
        tokens: TokenizedPrompt | UnknownIds,
        tenant: Tenant | None = None,
        arrived_s: float | None = None,
    ) -> AbstractContextManager[AdmissionLease | None]:
        """Wait for the leader's verdict. `arrived_s` None: now. Raises `TooBusy` after `admission.max_wait_s` and for a
        deadline that cannot be met any more, `NoTarget` without a leader.
        """
        if not self.config.enabled or served is None or not leaves_context(prompt):
            return NO_LEASE
        if self._closed:
            raise _stopping()
        known = tokens if isinstance(tokens, TokenizedPrompt) else None
        prompt_tokens = None if known is None else len(known.ids)
        number, verdict = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asking[number] = _Asking(served.base, known, verdict)
        self._send(self._ask(prompt, served, known, number, tenant, arrived_s))
        try:
            said: AdmissionVerdict = await verdict
        except asyncio.CancelledError:
            self._send(AdmissionEnded(number, None))
            raise
        finally:
            del self._asking[number]
        if said.refusal is not None:
            raise TooBusy(said.refusal.message, code=said.refusal.code, retry_after_s=said.refusal.retry_after_s)
        if said.rule is None:
            return NO_LEASE
        return SyncedLease(self._broadcast, number, prompt_tokens or 0, said)

    def _ask(
        self,
        prompt: Prompt,
        served: ServedModel,
        known: TokenizedPrompt | None,
        number: int,
        tenant: Tenant | None,
        arrived_s: float | None,
    ) -> AdmissionAsked:
        """Return the question for the leader; `known`: the prompt's ids, `None` where they are unknown."""
        now = self._clock.now()
        claim = derive_claim(prompt, tenant, now if arrived_s is None else arrived_s)
        return AdmissionAsked(
            number,
            served.base,
            derive_session(prompt, self._scheduler.conversations),
            None if known is None else len(known.ids),
            known is not None,
            None if known is None else sample_prefix(known),
            claim.tenant,
            claim.weight,
            claim.priority,
            None if claim.deadline_s is None else claim.deadline_s - now,
        )

    def on_verdict(self, message: AdmissionVerdict) -> None:
        asking = self._asking.get(message.number)
        if asking is not None and not asking.verdict.done():  # else its client has left, and the leader is told so
            asking.verdict.set_result(message)

    def encode_local_tokens(self, number: int) -> bytes:
        """Encode how many leading tokens of a waiting request's prompt some target holds, and which ones hold them;
        empty when unknown.
        """
        asking = self._asking.get(number)
        if asking is None or asking.tokens is None:
            return b""
        held = find_held(self._scheduler, asking.model, asking.tokens, self._clock.now())
        return b"" if held is None else " ".join([str(held.tokens), *held.homes]).encode()

    def close(self) -> None:
        """The leader is gone: refuse what waits and what comes."""
        self._closed = True
        for asking in self._asking.values():
            if not asking.verdict.done():
                asking.verdict.set_exception(_stopping())

    def _send(self, message: AdmissionAsked | AdmissionEnded) -> None:
        self._broadcast.send(message)
        self._broadcast.flush()  # somebody waits for it


class SyncedLease(AdmissionLease):
    """A place that the leader has given."""

    __slots__ = ("_broadcast", "_number")

    def __init__(self, broadcast: Broadcast, number: int, prompt_tokens: int, said: AdmissionVerdict) -> None:
        super().__init__(prompt_tokens, said.waited_s, said.rule or "", frozenset(said.full))
        self._broadcast = broadcast
        self._number = number

    def on_placed(self, target: str, held_tokens: int | None) -> None:
        self._broadcast.send(AdmissionPlaced(self._number, target, held_tokens))

    def on_first_byte(self) -> None:
        self._broadcast.send(AdmissionAnswered(self._number))

    def end(self, computed: ComputedPrompt | None) -> None:
        self._broadcast.send(AdmissionEnded(self._number, computed))


class _Held:
    """One request of a follower. `lease` is None while it waits."""

    __slots__ = ("ended", "lease", "task")

    def __init__(self) -> None:
        self.lease: QueueLease | None = None
        self.ended: asyncio.Future[ComputedPrompt | None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None]


class FollowerAdmissions:
    """Requests of followers in the leader's queues, by follower and by the request's number there."""

    def __init__(self, queues: AdmissionQueues, tasks: Tasks) -> None:
        self._queues = queues
        self._tasks = tasks
        self._held: dict[tuple[int, int], _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, follower: int, channel: Channel, message: AdmissionAsked) -> None:
        """Ask the queues for a place, and answer the follower when there is one."""
        key = follower, message.number
        held = self._held[key] = _Held()
        held.task = self._tasks.spawn("admission", self._hold(held, channel, message))
        held.task.add_done_callback(lambda _: self._held.pop(key))

    def apply(self, follower: int, message: AdmissionPlaced | AdmissionAnswered | AdmissionEnded) -> None:
        """Note what became of a request. One that began while admission control was off has no place."""
        if (held := self._held.get((follower, message.number))) is None:
            return
        match message:
            case AdmissionEnded() if held.lease is None:
                held.task.cancel()
            case AdmissionEnded() if not held.ended.done():
                held.ended.set_result(message.computed)
            case AdmissionPlaced() if held.lease is not None:
                held.lease.on_placed(message.target, message.held_tokens)
            case AdmissionAnswered() if held.lease is not None:
                held.lease.on_first_byte()

    def drop_worker(self, follower: int) -> None:
        """End all requests of a follower that died."""
        for (owner, _), held in self._held.items():
            if owner == follower:
                held.task.cancel()

    async def _hold(self, held: _Held, channel: Channel, message: AdmissionAsked) -> None:
        """Wait for a place, and keep it until the request ends or this task is cancelled."""
        asked_s = self._queues.clock.now()
        if (queue := self._queues.queue_of(message.model)) is None:
            _answer(channel, AdmissionVerdict(message.number, None, None))
            return
        held_prefix = None
        if message.tokens_known and queue.model_admission.needs_overlap(message.session, message.prompt_tokens):
            payload = await channel.ask("local_tokens", str(message.number))
            held_prefix = _decode_held(payload)
        deadline_s = None if message.left_s is None else asked_s + message.left_s
        claim = Claim(message.tenant, message.weight, message.priority, deadline_s)
        try:
            asked = message.session, message.prompt_tokens, None, held_prefix, message.prefix, claim
            held.lease = await queue.acquire(*asked)
        except TooBusy as error:
            refusal = AdmissionRefusal(error.message, error.code, error.retry_after_s)
            _answer(channel, AdmissionVerdict(message.number, None, None, refusal))
            return
        computed = None
        try:
            lease = held.lease
            _answer(channel, AdmissionVerdict(message.number, lease.waited_s, lease.rule, full=(*lease.full,)))
            computed = await held.ended
        finally:
            held.lease.end(computed)


def _decode_held(payload: bytes | None) -> HeldPrefix | None:
    """Decode what a follower found."""
    tokens, *homes = (payload or b"").decode().split(" ")
    return HeldPrefix(int(tokens), tuple(homes)) if tokens else None


def _answer(channel: Channel, verdict: AdmissionVerdict) -> None:
    channel.send(verdict)
    channel.flush()  # a client waits for it


def _stopping() -> NoTarget:
    return NoTarget("this router is stopping; try again", code="stopping", retry_after_s=1)
