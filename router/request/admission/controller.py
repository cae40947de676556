"""Admission control for one model: the programs, the queues and the longest wait, around a rule that decides.

An admission rule (`scorers/admission/contract.py`) says which request begins; this module keeps the facts that it is
told, the requests that wait, and what is the same whatever the rule: no request waits longer than `max_wait_s`, and a
new one that did, and comes again, stands ahead of those that come for the first time. A pure state machine of arrivals,
ends, capacity and time: no I/O.

`switch` replaces the rule. The new one adopts all programs and decides about the requests that wait.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice, takewhile
from sys import maxsize
from typing import NamedTuple

from router.request.admission.programs import Programs
from router.request.admission.queue import WaitQueue
from router.request.admission.shared_prefixes import PromptPrefix, SharedPrefixes
from scorers.admission.contract import (
    Admission,
    AdmissionRule,
    AgentProgram,
    Answer,
    ExpectedLoad,
    FleetMemory,
    QueueName,
)

QUEUES: tuple[QueueName, ...] = ("parked", "again", "new")  # in this order


class Arrival(NamedTuple):
    """A request that asks for admission."""

    session: bytes | None  # None: it cannot be recognised again
    prompt_tokens: int | None  # None: unknown
    local_tokens: int | None = None  # leading ones that some instance holds; None: unknown


class Admitted(NamedTuple):
    admission: Admission


class Queued(NamedTuple):
    """A request that waits, or that has waited as long as it may."""

    admission: Admission
    position: int  # from 1, over all queues
    expected_s: float | None  # the wait still ahead; None: unknown


class Released(NamedTuple):
    """The requests that no longer wait. `more`: others may be released at once, too, beyond the number asked for."""

    admitted: tuple[Admission, ...]
    refused: tuple[Queued, ...]
    more: bool = False


NOTHING_RELEASED = Released((), ())


class AdmissionState(NamedTuple):
    """The state of one model's admission, for people and metrics."""

    known: int  # programs, however long they have been silent
    live: ExpectedLoad | None  # None: the rule counts no contexts
    capacity_tokens: int | None  # None: unknown, so nothing waits
    queued: dict[QueueName, int]  # number of waiting requests
    waiting: tuple[Queued, ...]  # the first of them, in order


class KnownProgram(NamedTuple):
    """What one router knows of a silent program, for another one."""

    name: bytes
    prompt_tokens: int
    context_tokens: int
    target: str | None


class AdmissionController:
    """Admission for one model. `pooled`: the fleet has a shared pool."""

    def __init__(
        self, rule: AdmissionRule, max_wait_s: float, idle_s: float, *, pooled: bool = False, now: float = 0.0
    ) -> None:
        self._rule = rule
        self._max_wait_s = max_wait_s
        self._pooled = pooled
        self._programs = Programs(idle_s, self._on_forget)
        self._shared = SharedPrefixes(lambda program: self._rule.shared(program))
        self._queues: dict[QueueName, WaitQueue[Admission]] = {queue: WaitQueue() for queue in QUEUES}
        self._refused: OrderedDict[bytes, float] = OrderedDict()  # new programs, and when
        self._fleet = FleetMemory()
        rule.adopt((), now, idle_s=idle_s, pooled=pooled)

    def switch(self, rule: AdmissionRule, max_wait_s: float, idle_s: float, now: float) -> None:
        """Let `rule` decide from now on. Those that wait stay where they are until `release_waiting`."""
        self._advance(now)
        self._rule, self._max_wait_s, self._programs.idle_s = rule, max_wait_s, idle_s
        rule.adopt(self._programs, now, idle_s=idle_s, pooled=self._pooled)

    # requests

    def needs_overlap(self, session: bytes | None, prompt_tokens: int | None) -> bool:
        """Return whether it matters what instances hold of this prompt; to find out costs more than all the rest."""
        return self._rule.needs_overlap(self._programs.find(session), prompt_tokens or 0, self._queues, self._fleet)

    def arrive(self, arrival: Arrival, now: float) -> Admitted | Queued:
        """Admit or queue a request. Call `on_answer` or `on_leave` afterwards, whatever the verdict."""
        self._advance(now)
        program = self._programs.get_or_create(arrival.session)
        self._rule.arrived(program, now)
        self._programs.wake(program)
        queue = self._choose_queue(program)
        admission = Admission(program, arrival.prompt_tokens or 0, arrival.local_tokens, queue, now)
        if self._rule.begins(admission, self._queues, self._fleet, now):
            self._begin(admission, now)
            return Admitted(admission)
        if queue == "parked":  # what it held counts no longer: others take its place
            program.context_tokens = admission.context_before = 0
            self._shared.remove(program)
        admission.waited = True
        program.waiting += 1
        self._queues[queue].join(admission)
        return self._describe(admission, len(self._queues[queue]), now)

    def on_placed(self, admission: Admission, target: str, now: float, prefix: PromptPrefix | None = None) -> None:
        """The request was sent to `target`. `prefix`: of its prompt; `None`: unknown."""
        if admission.state == "running":
            admission.program.target = target
            self._shared.place(admission.program, target, prefix)
            self._rule.placed(admission, now)

    def on_first_token(self, admission: Admission, now: float) -> None:
        """The answer has begun."""
        if admission.state == "running":
            self._rule.first_token(admission, now)

    def on_answer(
        self,
        admission: Admission,
        prompt_tokens: int,
        context_tokens: int,
        now: float,
        local_tokens: int | None = None,
        decode_s: float | None = None,
    ) -> None:
        """The request was computed: `context_tokens`, its answer included, are in some cache. `local_tokens` of its
        prompt were in the instance's own cache before, neither computed nor loaded; `None` when unknown.
        """
        if self._close(admission):
            return
        program = admission.program
        answer = Answer(prompt_tokens, context_tokens, local_tokens, program.prompt_tokens, decode_s)
        program.running -= 1
        program.prompt_tokens = prompt_tokens
        program.context_tokens = max(program.context_tokens, context_tokens) if program.running else context_tokens
        self._rule.ended(admission, answer, now)
        self._rest(program, now)

    def on_leave(self, admission: Admission, now: float) -> None:
        """The request ended without an answer, or stopped waiting."""
        waited, program = admission.state == "waiting", admission.program
        if self._close(admission):
            return
        if waited:
            self._queues[admission.queue].leave(admission)
            program.waiting -= 1
        else:
            program.running -= 1
            if not program.running:
                program.context_tokens = admission.context_before
            self._rule.ended(admission, None, now)
        self._rest(program, now)

    # programs of other routers

    def begin_elsewhere(self, session: bytes | None, prompt_tokens: int | None, now: float) -> Admission:
        """Count a request that another router has admitted. What becomes of it follows as for one of this router."""
        self._advance(now)
        program = self._programs.get_or_create(session)
        self._rule.arrived(program, now)
        self._programs.wake(program)
        queue: QueueName = "new" if program.prompt_tokens is None else "parked"
        admission = Admission(program, prompt_tokens or 0, None, queue, now)
        self._begin(admission, now)
        return admission

    def learn(self, known: KnownProgram, now: float) -> None:
        """Take over what another router knows of a program, unless a request of it is here or nothing is new."""
        program = self._programs.find(known.name)
        if program is not None:
            same = (known.prompt_tokens, known.context_tokens) == (program.prompt_tokens, program.context_tokens)
            if same or program.running or program.waiting:
                return
        self._advance(now)
        program = self._programs.get_or_create(known.name)
        self._rule.arrived(program, now)
        self._programs.wake(program)
        program.prompt_tokens, program.context_tokens, program.target = known[1:]
        self._rest(program, now)

    def list_silent(self, at_most: int) -> list[KnownProgram]:
        """Return the programs that were last answered, the latest first."""
        return [
            KnownProgram(program.name, program.prompt_tokens, program.context_tokens, program.target)
            for program in islice(self._programs.latest(), at_most)
            if program.name is not None and program.prompt_tokens is not None
        ]

    # the fleet, and time

    def set_fleet(self, fleet: FleetMemory) -> None:
        """Set what the fleet has, for this model."""
        self._fleet = fleet

    def release_waiting(self, now: float, at_most: int = maxsize) -> Released:
        """Return the requests whose wait ends now, `at_most` so many of either kind. Call it when something has
        changed, and at `next_s`. Those refused need no further calls.
        """
        self._advance(now)
        if not any(self._queues.values()):
            return NOTHING_RELEASED
        admitted = tuple(self._admit(now, at_most))
        refused = tuple(self._refuse_late(now, at_most))
        if not admitted and not refused:
            return NOTHING_RELEASED
        return Released(admitted, refused, more=at_most in (len(admitted), len(refused)))

    @property
    def next_s(self) -> float | None:
        """The time at which `release_waiting` is due if nothing happens before; `None` while nothing waits."""
        firsts = [queue.first.since_s for queue in self._queues.values() if queue.first is not None]
        if not firsts:
            return None
        dues = (self._rule.due_s(), self._programs.next_s)
        return min([min(firsts) + self._max_wait_s, *(due_s for due_s in dues if due_s is not None)])

    def state(self, now: float, listed: int = maxsize) -> AdmissionState:
        """Return the state as of now, with at most `listed` of the waiting requests."""
        self._advance(now)
        waiting = (self._describe(a, place, now) for queue in self._queues.values() for place, a in enumerate(queue, 1))
        queued = {name: len(queue) for name, queue in self._queues.items()}
        live, capacity_tokens = self._rule.expected_load(), self._fleet.capacity_tokens
        return AdmissionState(len(self._programs), live, capacity_tokens, queued, tuple(islice(waiting, listed)))

    # transitions

    def _on_forget(self, program: AgentProgram) -> None:
        self._rule.forgotten(program)
        self._shared.remove(program)

    def _advance(self, now: float) -> None:
        self._rule.advance(self._fleet, now)
        self._programs.advance(now)
        while self._refused and next(iter(self._refused.values())) < now - self._programs.idle_s:
            self._refused.popitem(last=False)

    def _choose_queue(self, program: AgentProgram) -> QueueName:
        if program.prompt_tokens is not None:
            return "parked"
        return "again" if program.name is not None and self._refused.pop(program.name, None) is not None else "new"

    def _begin(self, admission: Admission, now: float) -> None:
        program, prompt_tokens = admission.program, admission.prompt_tokens
        admission.state = "running"
        if program.running:
            prompt_tokens = max(prompt_tokens, program.context_tokens)
        program.context_tokens = prompt_tokens or program.context_tokens
        program.running += 1
        self._rule.began(admission, now)

    def _rest(self, program: AgentProgram, now: float) -> None:
        if not program.running and not program.waiting and self._programs.rest(program, now):
            self._rule.idle(program, now)

    def _admit(self, now: float, at_most: int) -> list[Admission]:
        """Begin what the rule names, one after the other."""
        admitted: list[Admission] = []
        while len(admitted) < at_most:
            if (admission := self._rule.next_to_begin(self._queues, self._fleet, now)) is None:
                break
            self._queues[admission.queue].admit(admission, now)
            admission.program.waiting -= 1
            self._begin(admission, now)
            admitted.append(admission)
        return admitted

    def _refuse_late(self, now: float, at_most: int) -> list[Queued]:
        """Refuse what has waited for `max_wait_s`."""
        refused: list[Queued] = []
        for queue in self._queues.values():
            is_late = takewhile(lambda admission: admission.since_s + self._max_wait_s <= now, queue)
            late = list(islice(is_late, at_most - len(refused)))
            refused += [self._describe(admission, place, now) for place, admission in enumerate(late, 1)]
            for admission in late:
                queue.leave(admission)
                admission.state = "ended"
                admission.program.waiting -= 1
                if admission.queue != "parked" and admission.program.name is not None:
                    self._refused[admission.program.name] = now
                self._rest(admission.program, now)
        return refused

    def _close(self, admission: Admission) -> bool:
        """Mark `admission` as ended; return whether it was already."""
        before, admission.state = admission.state, "ended"
        return before == "ended"

    def _describe(self, admission: Admission, place: int, now: float) -> Queued:
        """Return the position and expected wait of `admission`, at `place` (from 1) of its own queue."""
        ahead = sum(len(self._queues[queue]) for queue in QUEUES[: QUEUES.index(admission.queue)])
        return Queued(admission, ahead + place, self._queues[admission.queue].expected_s(place, now))
