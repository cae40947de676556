"""Admission over several processes: one worker per host decides; hosts hold places for each other's requests.

    one host       the worker on duty decides about requests of all workers, which query it and wait for verdicts
    other hosts    each host decides by itself and publishes what it admits; no host waits for another, so two hosts
                   may give the same room away within the time of a message

Every process holds a place in its own queues for each admitted request of every other process. So a session is one
session whichever processes its requests reach. When the worker on duty ends, the next one already has all running
requests in its queues, and the processes send it the queries that wait for a verdict. A query costs one message
each way, and is repeated while it waits, because the query or its verdict may be lost. After a gap a process
receives the running requests and the state of the sessions that were answered last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, ClassVar, NamedTuple

import msgspec

from router.clock import Clock
from router.control.duty import Duty
from router.control.peers.parts import Message, Peers
from router.errors import TooBusy
from router.features.admission.lease import AdmissionLease
from router.features.admission.model_admission import ModelAdmission
from router.features.admission.pending_request import HeldPrefix, PendingRequest
from router.features.admission.shared_prefixes import PromptPrefix
from router.features.admission.verdicts import ComputedPrompt, KnownProgram
from router.features.admission.waiting import AdmissionQueue, AdmissionQueues, QueueLease
from router.tasks import Tasks
from scorers.admission.contract import Admission, Claim

KNOWN_PROGRAMS = 5_000  # of a model, sent after a gap
AGAIN_S = 1.0  # between repetitions of a query


class AdmissionAsked(Message, frozen=True):
    """Query for a place of a request, sent again until its verdict arrives. The number is the sender's own."""

    number: int
    model: str  # base model
    session: bytes | None
    prompt_tokens: int | None
    held: HeldPrefix | None = None  # the prefix that instances hold of the prompt; None: unknown, or not needed
    prefix: PromptPrefix | None = None  # None: unknown
    tenant: str | None = None
    weight: float = 1.0
    priority: int = 0
    left_s: float | None = None  # until its first token is due; None: it has no deadline


class AdmissionRefusal(NamedTuple):
    """Fields of the `TooBusy` with which a request is refused."""

    message: str
    code: str | None
    retry_after_s: int | None


class AdmissionVerdict(Message, frozen=True):
    """Verdict about a query: the request begins, or is refused."""

    number: int
    waited_s: float | None  # None: it was admitted at once
    rule: str | None  # the rule that admitted it; None: it was refused, or admission control is off
    refusal: AdmissionRefusal | None = None
    full: tuple[str, ...] = ()  # targets that had no room for it


class AdmissionBegan(Message, frozen=True):
    """A request was admitted. `AdmissionPlaced`, `AdmissionAnswered` and `AdmissionEnded` follow."""

    number: int  # the sender's own
    model: str  # base model
    session: bytes | None
    prompt_tokens: int  # 0: unknown
    prefix: PromptPrefix | None = None  # None: unknown
    tenant: str | None = None
    weight: float = 1.0


class AdmissionPlaced(Message, frozen=True):
    """An admitted request was sent to `target`, expected to hold `held_tokens` of its prompt; None: unknown."""

    number: int
    target: str
    held_tokens: int | None = None


class AdmissionAnswered(Message, frozen=True):
    """The first byte of an admitted request's answer arrived."""

    number: int


class AdmissionEnded(Message, frozen=True):
    """A request ended, or its client left while it waited. `computed` is None if it ended without an answer."""

    number: int
    computed: ComputedPrompt | None


class AdmissionsOpen(Message, frozen=True):
    """The sender's requests that wait for a verdict, or were admitted and have not ended."""

    numbers: list[int]


class ProgramKnown(Message, frozen=True):
    """A program that has no running or waiting request."""

    model: str
    program: KnownProgram


class SharedAdmission:
    """The admission of this process: by its own `queues` if it is on duty or alone, else by the worker on duty."""

    messages: ClassVar[Sequence[type[Message]]] = (
        *(AdmissionAsked, AdmissionVerdict, AdmissionBegan, AdmissionPlaced, AdmissionAnswered, AdmissionEnded),
        *(AdmissionsOpen, ProgramKnown),
    )

    def __init__(self, queues: AdmissionQueues, duty: Duty, peers: Peers, tasks: Tasks, clock: Clock) -> None:
        self._queues = queues
        self._duty = duty
        self._peers = peers
        self._tasks = tasks
        self._clock = clock
        self._numbers = count()
        self._asking: dict[int, _Question] = {}
        self._open: dict[int, list[Message]] = {}  # messages published of each admitted request here
        self._held: dict[str, dict[int, QueueLease]] = {}  # for other processes' requests, by run and number
        self._deciding: dict[tuple[str, int], asyncio.Task[None]] = {}  # other processes' requests that wait here
        queues.listen(self)

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("admission", self._ask_again_always)

    async def acquire(self, queue: AdmissionQueue, pending: PendingRequest) -> AdmissionLease | None:
        """Wait for a place from the process on duty; None if admission control is off at that process. Raises
        `TooBusy`.
        """
        while (decider := self._duty.holder) is not None and not self._duty.held:
            query = self._describe(queue.model_admission, pending)
            verdict = await self._ask(decider, query)
            if verdict is not None:
                return None if verdict.rule is None else PeerLease(self, queue, query, verdict)
        return await queue.acquire(pending)

    def _describe(self, admission: ModelAdmission, pending: PendingRequest) -> AdmissionAsked:
        """Return the query for a place."""
        session, prompt_tokens, _, _, prefix, claim = pending
        held = admission.find_held(pending)
        return AdmissionAsked(
            next(self._numbers),
            admission.model,
            session,
            prompt_tokens,
            held,
            prefix,
            claim.tenant,
            claim.weight,
            claim.priority,
            None if claim.deadline_s is None else claim.deadline_s - self._clock.now(),
        )

    async def _ask(self, decider: str, query: AdmissionAsked) -> AdmissionVerdict | None:
        """Return the verdict of the worker on duty; None if that worker ends. Raises `TooBusy` for a refusal."""
        verdict_of = asyncio.get_running_loop().create_future()
        question = self._asking[query.number] = _Question(decider, query, self._clock.now(), verdict_of)
        self._peers.send_to(decider, query)
        try:
            verdict = await question.verdict
        except asyncio.CancelledError:
            self._peers.send_to(decider, AdmissionEnded(query.number, None))
            raise
        finally:
            del self._asking[query.number]
        if verdict is not None and (refusal := verdict.refusal) is not None:
            raise TooBusy(refusal.message, code=refusal.code, retry_after_s=refusal.retry_after_s)
        return verdict

    async def _ask_again_always(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            self.ask_again()

    def ask_again(self) -> None:
        """Repeat the queries that have waited for a while."""
        now = self._clock.now()
        for decider, query, sent_s, _ in self._asking.values():
            if (waited_s := now - sent_s) >= AGAIN_S:
                left_s = None if query.left_s is None else query.left_s - waited_s
                self._peers.send_to(decider, msgspec.structs.replace(query, left_s=left_s))

    # admitted here

    def on_begin(self, model: str, admission: Admission, prefix: PromptPrefix | None) -> int:
        number, claim = next(self._numbers), admission.claim
        session, prompt_tokens = admission.program.name, admission.prompt_tokens
        self.publish_begin(AdmissionBegan(number, model, session, prompt_tokens, prefix, claim.tenant, claim.weight))
        return number

    def on_placed(self, number: int, target: str, held_tokens: int | None) -> None:
        self._publish(number, AdmissionPlaced(number, target, held_tokens))

    def on_first_byte(self, number: int) -> None:
        self._publish(number, AdmissionAnswered(number))

    def on_end(self, number: int, computed: ComputedPrompt | None) -> None:
        if self._open.pop(number, None) is not None:
            self._peers.share(AdmissionEnded(number, computed))

    def publish_begin(self, message: AdmissionBegan) -> None:
        """Publish that a request of this process was admitted."""
        self._open[message.number] = []
        self._publish(message.number, message)

    def _publish(self, number: int, message: Message) -> None:
        if (published := self._open.get(number)) is not None:
            published.append(message)
            self._peers.share(message)

    # admitted elsewhere

    def state(self) -> Iterator[Message]:
        yield AdmissionsOpen([*self._open, *self._asking])
        for published in self._open.values():
            yield from published
        for model_admission in self._queues:
            for program in model_admission.controller.list_silent(KNOWN_PROGRAMS):
                yield ProgramKnown(model_admission.model, program)

    def apply(self, message: Any, run: str) -> None:
        held = self._held.setdefault(run, {})
        match message:
            case AdmissionBegan():
                queue = self._queues.queue_of(message.model)
                if queue is not None and message.number not in held:  # else it was admitted here
                    claim = Claim(message.tenant, message.weight)
                    begun = PendingRequest(message.session, message.prompt_tokens, prefix=message.prefix, claim=claim)
                    held[message.number] = queue.hold(begun)
            case AdmissionPlaced(number, target, held_tokens) if number in held:
                held[number].place(target, held_tokens)
            case AdmissionAnswered(number) if number in held:
                held[number].begin_answer()
            case AdmissionEnded(number, computed):
                self._end(run, number, computed)
            case AdmissionsOpen(numbers):
                waiting = (number for owner, number in self._deciding if owner == run)
                for number in {*held, *waiting}.difference(numbers):
                    self._end(run, number, None)
            case ProgramKnown(model, program):
                if (queue := self._queues.queue_of(model)) is not None:
                    queue.learn(program)
            case AdmissionAsked(number):
                if (given := held.get(number)) is not None:  # its verdict was lost
                    self._peers.send_to(run, _admit(number, given))
                elif (run, number) not in self._deciding:
                    deciding = self._tasks.spawn("admission", self._decide(run, message))
                    self._deciding[run, number] = deciding
                    deciding.add_done_callback(lambda _: self._deciding.pop((run, number)))
            case AdmissionVerdict(number):
                if (question := self._asking.get(number)) is None:
                    if number not in self._open:  # its client has gone
                        self._peers.send_to(run, AdmissionEnded(number, None))
                elif not question.verdict.done():
                    question.verdict.set_result(message)

    def forget(self, run: str) -> None:
        for (owner, _), deciding in self._deciding.items():
            if owner == run:
                deciding.cancel()
        for lease in self._held.pop(run, {}).values():
            lease.end(None)
        for question in self._asking.values():
            if question.decider == run and not question.verdict.done():
                question.verdict.set_result(None)

    def _end(self, run: str, number: int, computed: ComputedPrompt | None) -> None:
        if (deciding := self._deciding.get((run, number))) is not None:
            deciding.cancel()
        if (lease := self._held[run].pop(number, None)) is not None:
            lease.end(computed)

    async def _decide(self, run: str, query: AdmissionAsked) -> None:
        """Wait for a place for a request of another worker, hold it, and send the verdict."""
        number = query.number
        if (queue := self._queues.queue_of(query.model)) is None:
            verdict = AdmissionVerdict(number, None, None)
        else:
            deadline_s = None if query.left_s is None else self._clock.now() + query.left_s
            claim = Claim(query.tenant, query.weight, query.priority, deadline_s)
            pending = PendingRequest(query.session, query.prompt_tokens, None, query.held, query.prefix, claim)
            try:
                lease = await queue.acquire(pending, listened=False)
            except TooBusy as error:
                refusal = AdmissionRefusal(error.message, error.code, error.retry_after_s)
                verdict = AdmissionVerdict(number, None, None, refusal)
            else:
                self._held.setdefault(run, {})[number] = lease
                verdict = _admit(number, lease)
        self._peers.send_to(run, verdict)


def _admit(number: int, lease: QueueLease) -> AdmissionVerdict:
    return AdmissionVerdict(number, lease.waited_s, lease.rule, None, (*lease.full,))


class _Question(NamedTuple):
    """A request of this process that waits for the verdict of another one; None: the other process has ended."""

    decider: str
    query: AdmissionAsked
    sent_s: float
    verdict: asyncio.Future[AdmissionVerdict | None]


class PeerLease(AdmissionLease):
    """A place given by the worker on duty, and held in this process's queue, too."""

    __slots__ = ("_held", "_number", "_shared")

    def __init__(
        self, shared: SharedAdmission, queue: AdmissionQueue, query: AdmissionAsked, verdict: AdmissionVerdict
    ) -> None:
        super().__init__(query.prompt_tokens or 0, verdict.waited_s, verdict.rule or "", frozenset(verdict.full))
        self._shared = shared
        self._number = query.number
        session, prompt_tokens, prefix = query.session, query.prompt_tokens or 0, query.prefix
        claim = Claim(query.tenant, query.weight)
        self._held = queue.hold(PendingRequest(session, prompt_tokens, prefix=prefix, claim=claim))
        began = AdmissionBegan(query.number, query.model, session, prompt_tokens, prefix, claim.tenant, claim.weight)
        shared.publish_begin(began)

    def place(self, target: str, held_tokens: int | None) -> None:
        self._held.place(target, held_tokens)
        self._shared.on_placed(self._number, target, held_tokens)

    def begin_answer(self) -> None:
        self._held.begin_answer()
        self._shared.on_first_byte(self._number)

    def end(self, computed: ComputedPrompt | None) -> None:
        self._held.end(computed)
        self._shared.on_end(self._number, computed)
