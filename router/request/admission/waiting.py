"""Where requests wait that the door (`request/admission/controller.py`) does not let in yet, until it does or they
have waited too long.

A request that waits is a future and nothing else: whoever leaves (an answer's end, a client that hangs up while it
waits) makes the door look again, and one timer per model does so where nothing happens. What a request took is given
back by its `AdmissionLease`, once, whatever ends it: `with await waiting.seat(...)`.

With `admission.enabled` false there are no queues, and nothing is read, counted or remembered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from math import ceil
from types import TracebackType
from typing import Literal

from router.clock import Clock
from router.config.sections import admission
from router.errors import TooBusy
from router.fleet.instance import ServedModel
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.api.conversation_id import DIGEST_BYTES, opening
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.request.admission.controller import Admission, AdmissionController, Queued, QueueName
from router.request.admission.model_admission import ModelAdmission
from router.scheduling.policy.record import Record
from router.scheduling.scheduler import Scheduler

log = logging.getLogger("warmroute.admission")

SOON_S = 0.001  # the least time between two looks by the timer: loops and clocks differ by less
NOWHERE: AbstractContextManager[None] = nullcontext()

End = Literal["passed", "refused", "client_gone"]
Waited = Callable[[str, QueueName, End, float], None]
"""Told of every wait that is over: model, queue, how it ended, seconds."""


class AdmissionQueues:
    """`share` of the fleet's memory is this process's. `pooled`: the fleet has a shared pool."""

    def __init__(
        self,
        told: admission.AdmissionConfig,
        core: Scheduler,
        clock: Clock,
        waited: Waited,
        *,
        share: float = 1.0,
        pooled: bool = False,
    ) -> None:
        self._told = told
        self._core = core
        self._clock = clock
        self._waited = waited
        self._share = share
        self._pooled = pooled
        self._rooms: dict[str, AdmissionQueue] = {}  # by base model: those that instances serve

    def __iter__(self) -> Iterator[ModelAdmission]:
        """The gates that have been asked for."""
        return (room.gate for room in self._rooms.values())

    async def seat(
        self, prompt: Prompt, served: ServedModel | None, known: TokenizedPrompt | UnknownIds
    ) -> AbstractContextManager[AdmissionLease | None]:
        """Waits as long as it must. None: nobody keeps count. Raises `TooBusy` after `max_wait_s`."""
        if not self._told.enabled or served is None or not keeps_context(prompt):
            return NOWHERE
        if (room := self._rooms.get(served.base)) is None:
            controller = AdmissionController(self._told, pooled=self._pooled)
            gate = ModelAdmission(served.base, controller, self._core, self._clock, self._share)
            room = self._rooms[served.base] = AdmissionQueue(gate, self._told.max_wait_s, self._clock, self._waited)
        return await room.seat(session_of(prompt), known)


class AdmissionQueue:
    """Of one model."""

    def __init__(self, gate: ModelAdmission, max_wait_s: float, clock: Clock, waited: Waited) -> None:
        self.gate = gate
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._waited = waited
        self._sitting: dict[Admission, asyncio.Future[Queued | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._open_was_told = False

    async def seat(self, session: bytes | None, known: TokenizedPrompt | UnknownIds) -> AdmissionLease:
        """Raises `TooBusy`."""
        verdict = (
            self.gate.arrives(session, len(known.ids), known)
            if isinstance(known, TokenizedPrompt)
            else self.gate.arrives(session, None, None)
        )
        if self.gate.capacity_tokens is None and not self._open_was_told:
            self._open_was_told = True
            log.warning("the door is open for %s: no instance has told yet how much its cache holds", self.gate.model)
        return AdmissionLease(
            self, verdict.turn, await self._wait(verdict.turn) if isinstance(verdict, Queued) else None
        )

    async def _wait(self, turn: Admission) -> float:
        """For how many seconds. Whoever goes away while it waits leaves nothing behind, even if it was just let in."""
        future = self._sitting[turn] = asyncio.get_running_loop().create_future()
        self.look()
        end: End = "client_gone"
        try:
            refused = await future
            end = "passed" if refused is None else "refused"
        finally:
            waited_s = self._clock.now() - turn.since_s
            self._waited(self.gate.model, turn.queue, end, waited_s)
            if end == "client_gone":
                self._sitting.pop(turn, None)
                self.gate.left(turn)
                self.look()
        if refused is not None:
            raise self._refusal(refused)
        return waited_s

    def look(self) -> None:
        """Something has changed, or time has passed."""
        called = self.gate.look()
        for turn in called.passed:
            self._call(turn, None)
        for hold in called.refused:
            self._call(hold.turn, hold)
        self._arm()

    def _call(self, turn: Admission, refused: Queued | None) -> None:
        future = self._sitting.pop(turn)
        if not future.done():  # else its client has just gone, and its seat gives everything back
            future.set_result(refused)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (next_s := self.gate.next_s) is not None:
            pause_s = max(SOON_S, next_s - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(pause_s, self.look)

    def _refusal(self, hold: Queued) -> TooBusy:
        expected = "an unknown time" if hold.expected_s is None else f"about {ceil(hold.expected_s)} s"
        return TooBusy(
            f"the caches of the fleet are full of live conversations: this request has waited {self._max_wait_s:g} s, "
            f"stands at place {hold.position} of those who wait, and {expected} more is to be expected; try again",
            code="no_room",
            retry_after_s=max(1, ceil(self._max_wait_s if hold.expected_s is None else hold.expected_s)),
        )


class AdmissionLease:
    """What one request took, from its being let in to its end. `record` tells how that was, once there is one."""

    __slots__ = ("_room", "_turn", "record", "waited_s")

    def __init__(self, room: AdmissionQueue, turn: Admission, waited_s: float | None) -> None:
        self._room = room
        self._turn = turn
        self.waited_s = waited_s  # None: it did not have to
        self.record: Record | None = None

    def __enter__(self) -> AdmissionLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gate, turn, record = self._room.gate, self._turn, self.record
        if record is not None and was_computed(record):
            prompt_tokens = record.prompt_tokens or record.prompt_tokens_counted or turn.prompt_tokens
            context_tokens = prompt_tokens + (record.output_tokens or 0)
            gate.answered(turn, prompt_tokens, context_tokens, local_tokens_of(record))
        else:
            gate.left(turn)
        self._room.look()


def keeps_context(prompt: Prompt) -> bool:
    """Does an engine compute a prompt for it that a later turn could need again, as far as that can be seen? What goes
    on from a stored response is a turn of somebody whom we cannot tell: it passes.
    """
    return prompt.endpoint is not Endpoint.OTHER and (prompt.previous_response_id is None or prompt.session is not None)


def session_of(prompt: Prompt) -> bytes | None:
    """What the client calls its session, else how its conversation opens; None: nothing to know it by again."""
    if prompt.session is None:
        return opening(prompt)
    return blake2b(prompt.session.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def local_tokens_of(record: Record) -> int | None:
    """Of its prompt, what the instance had itself. Engines report loads from a pool as cached, too: of those, what was
    expected there counts. None: unknown.
    """
    expected = record.attempts[-1].expected_tokens if record.attempts else None
    return None if record.cached_tokens is None or expected is None else min(record.cached_tokens, expected)


def was_computed(record: Record) -> bool:
    """An engine has answered, at least begun to: the prompt is in its cache."""
    return record.ttft_ms is not None and record.status is not None and record.status < 400
