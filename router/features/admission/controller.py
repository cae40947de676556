"""Admission control for one model: the programs, the queues and the longest wait, around a rule that decides.

An admission rule (`scorers/admission/contract.py`) decides which request begins. This module keeps the facts that
the rule receives and the waiting requests, and applies what holds under every rule: no request waits longer than
`max_wait_s`, and a new session that was refused for its long wait is queued ahead of first-time sessions when it
comes again. The module is a pure state machine of arrivals, ends, capacity and time, without I/O.

The next request is the oldest of the first queue that is not empty, unless the rule shares the fleet fairly
(`AdmissionRule.shares`, `fair_shares.py`). With fair shares, requests also wait for saturated engines, in the queue
`live`, and requests that can no longer meet their deadlines are refused.

`switch` replaces the rule. The new rule adopts all programs and decides about the waiting requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice, takewhile
from sys import maxsize

from router.features.admission.charges import price_answer
from router.features.admission.fair_shares import FairShares
from router.features.admission.programs import Programs
from router.features.admission.queue import WaitQueue
from router.features.admission.shared_prefixes import PromptPrefix, SharedPrefixes
from router.features.admission.verdicts import (
    NOTHING_RELEASED,
    AdmissionState,
    Admitted,
    Arrival,
    ComputedPrompt,
    KnownProgram,
    Queued,
    Released,
)
from scorers.admission.contract import (
    NO_CLAIM,
    Admission,
    AdmissionRule,
    AgentProgram,
    Answer,
    Claim,
    FleetMemory,
    Queue,
    QueueName,
)

QUEUES: tuple[QueueName, ...] = ("live", "parked", "again", "new")  # in this order


class AdmissionController:
    """Admission for one model. `pooled`: the fleet has a shared pool. `tenants`: clients must be identified."""

    def __init__(
        self,
        rule: AdmissionRule,
        max_wait_s: float,
        idle_s: float,
        *,
        pooled: bool = False,
        tenants: bool = False,
        now: float = 0.0,
    ) -> None:
        self._rule = rule
        self._max_wait_s = max_wait_s
        self._pooled = pooled
        self._tenants = tenants
        self._programs = Programs(idle_s, self._on_forget)
        self._shared = SharedPrefixes(lambda program: self._rule.shared(program))
        self._queues: dict[QueueName, WaitQueue[Admission]] = {queue: WaitQueue() for queue in QUEUES}
        self._refused: OrderedDict[bytes, float] = OrderedDict()  # new programs, and when each was refused
        self._fleet = FleetMemory()
        rule.adopt((), now, idle_s=idle_s, pooled=pooled)
        self.fair: FairShares | None = None  # None: first come, first served
        self._rule_queues: Mapping[QueueName, Queue] = self._queues
        self._follow_shares()

    def _follow_shares(self) -> None:
        """Turn fair shares on or off, as the rule in force requires. Waiting requests stay in their queues."""
        shares = self._rule.shares == "always" or (self._rule.shares == "tenants" and self._tenants)
        if shares == (self.fair is not None):
            return
        self.fair, self._rule_queues = None, self._queues
        if shares:
            self.fair = FairShares(self._queues)
            self._rule_queues = self.fair.queues
            for queue in self._queues.values():
                for admission in queue:
                    self.fair.open(admission)
                    self.fair.join(admission)

    def switch(self, rule: AdmissionRule, max_wait_s: float, idle_s: float, now: float) -> None:
        """Let `rule` decide from now on. Waiting requests stay in their queues until `release_waiting`."""
        self._advance(now)
        self._rule, self._max_wait_s, self._programs.idle_s = rule, max_wait_s, idle_s
        rule.adopt(self._programs, now, idle_s=idle_s, pooled=self._pooled)
        self._follow_shares()

    # requests

    def needs_overlap(self, session: bytes | None, prompt_tokens: int | None, now: float) -> bool:
        """Return whether admission depends on the prefix that instances hold of this prompt. Finding the prefix
        costs more than the rest of admission.
        """
        tokens = prompt_tokens or 0
        if self.fair is not None and self.fair.must_wait(self._rule, tokens, self._fleet, now):
            return True
        return self._rule.needs_overlap(self._programs.find(session), tokens, self._rule_queues, self._fleet)

    def arrive(self, arrival: Arrival, now: float) -> Admitted | Queued:
        """Admit or queue a request. Call `on_answer` or `on_leave` afterwards, whatever the verdict."""
        self._advance(now)
        program = self._programs.get_or_create(arrival.session)
        self._rule.arrived(program, now)
        self._programs.wake(program)
        queue = self._choose_queue(program)
        admission = Admission(program, arrival.prompt_tokens or 0, arrival.local_tokens, queue, now, arrival.claim)
        begins = self._rule.begins(admission, self._rule_queues, self._fleet, now)
        if self.fair is not None:
            self.fair.open(admission)
            if begins and self.fair.must_wait(self._rule, self.fair.needs(admission, self._fleet), self._fleet, now):
                begins, admission.queue = False, "live"
        if begins:
            self._begin(admission, now)
            return Admitted(admission)
        self._join(admission, arrival)
        return self._describe(admission, len(self._queues[admission.queue]), now)

    def on_placed(
        self,
        admission: Admission,
        target: str,
        now: float,
        held_tokens: int | None = None,
        prefix: PromptPrefix | None = None,
    ) -> None:
        """Record that the request was sent to `target`, which is expected to hold `held_tokens` of its prompt.
        `prefix` is the prompt's. None: unknown.
        """
        if admission.state == "running":
            admission.target = target
            if self.fair is not None:
                self.fair.place(admission, held_tokens)
            admission.program.target = target
            self._shared.place(admission.program, target, prefix)
            self._rule.placed(admission, now)

    def on_first_token(self, admission: Admission, now: float) -> None:
        """Record that the answer has begun."""
        if admission.state == "running":
            if self.fair is not None:
                self.fair.deadlines.on_first_token(admission, now)
            self._rule.first_token(admission, now)

    def on_answer(self, admission: Admission, computed: ComputedPrompt, now: float) -> None:
        """Record that the request was answered, so its context is in some cache."""
        if self._close(admission):
            return
        if self.fair is not None:
            self.fair.end(admission, price_answer(computed))
        program = admission.program
        prompt_tokens, context_tokens, local_tokens, decode_s, _ = computed
        answer = Answer(prompt_tokens, context_tokens, local_tokens, program.prompt_tokens, decode_s)
        program.running -= 1
        program.prompt_tokens = prompt_tokens
        program.context_tokens = max(program.context_tokens, context_tokens) if program.running else context_tokens
        self._rule.ended(admission, answer, now)
        self._rest(program, now)

    def on_leave(self, admission: Admission, now: float) -> None:
        """Record that the request ended without an answer, or stopped waiting."""
        waited, program = admission.state == "waiting", admission.program
        if self._close(admission):
            return
        if self.fair is not None:
            self.fair.end(admission, 0.0 if admission.target is None else None)
        if waited:
            self._queues[admission.queue].leave(admission)
            self._stop_waiting(admission)
        else:
            program.running -= 1
            if not program.running:
                program.context_tokens = admission.context_before
            self._rule.ended(admission, None, now)
        self._rest(program, now)

    # programs of other routers

    def begin_elsewhere(
        self, session: bytes | None, prompt_tokens: int | None, now: float, claim: Claim = NO_CLAIM
    ) -> Admission:
        """Count a request that another router has admitted. Its later events are recorded by the same calls as for
        this router's own requests.
        """
        self._advance(now)
        program = self._programs.get_or_create(session)
        self._rule.arrived(program, now)
        self._programs.wake(program)
        queue: QueueName = "new" if program.prompt_tokens is None else "parked"
        admission = Admission(program, prompt_tokens or 0, None, queue, now, claim)
        if self.fair is not None:
            self.fair.open(admission)
        self._begin(admission, now)
        return admission

    def learn(self, known: KnownProgram, now: float) -> None:
        """Adopt another router's state of a program, unless the program has a request here or nothing is new."""
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
        """Return the silent programs, the most recently answered first."""
        return [
            KnownProgram(program.name, program.prompt_tokens, program.context_tokens, program.target)
            for program in islice(self._programs.latest(), at_most)
            if program.name is not None and program.prompt_tokens is not None
        ]

    # the fleet, and time

    def set_fleet(self, fleet: FleetMemory) -> None:
        """Set the fleet's memory and loads for this model."""
        self._fleet = fleet

    def release_waiting(self, now: float, at_most: int = maxsize) -> Released:
        """Return the requests whose wait ends now, at most `at_most` of each kind (admitted, late, past deadline).
        Call it when something has changed, and at `next_s`. Refused requests need no further calls.
        """
        self._advance(now)
        if not any(self._queues.values()):
            return NOTHING_RELEASED
        admitted = tuple(self._admit(now, at_most))
        refused = (*self._refuse_late(now, at_most), *self._refuse_unreachable(now, at_most))
        if not admitted and not refused:
            return NOTHING_RELEASED
        return Released(admitted, refused, more=max(len(admitted), len(refused)) >= at_most)

    @property
    def next_s(self) -> float | None:
        """The time at which `release_waiting` is due unless something happens before; None while nothing waits."""
        firsts = [queue.first.since_s for queue in self._queues.values() if queue.first is not None]
        if not firsts:
            return None
        dues = [self._rule.due_s(), self._programs.next_s]
        if self.fair is not None:
            dues += [self.fair.deadlines.next_s, self.fair.due_s]
        return min([min(firsts) + self._max_wait_s, *(due_s for due_s in dues if due_s is not None)])

    def state(self, now: float, listed: int = maxsize) -> AdmissionState:
        """Return the state as of now, with at most `listed` of the waiting requests."""
        self._advance(now)
        waiting = (self._describe(a, place, now) for queue in self._queues.values() for place, a in enumerate(queue, 1))
        queued = {name: len(queue) for name, queue in self._queues.items()}
        live, capacity_tokens = self._rule.expected_load(), self._fleet.capacity_tokens
        shares = () if self.fair is None else tuple(islice(self.fair.order.shares(), listed))
        listing = tuple(islice(waiting, listed))
        return AdmissionState(len(self._programs), live, capacity_tokens, queued, listing, shares)

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

    def _join(self, admission: Admission, arrival: Arrival) -> None:
        """Let a request wait."""
        program = admission.program
        if admission.queue == "parked":  # its context counts no longer: others take the room
            program.context_tokens = admission.context_before = 0
            self._shared.remove(program)
        admission.waited = True
        program.waiting += 1
        self._queues[admission.queue].join(admission)
        if self.fair is not None:
            self.fair.join(admission, arrival.holders, arrival.prefill)
        if admission.queue == "live":  # it keeps the room that it could have begun with
            program.kept += 1
            program.context_tokens = max(program.context_tokens, admission.prompt_tokens)
            self._rule.kept(program)

    def _stop_waiting(self, admission: Admission) -> None:
        """Record that a request no longer waits, and has not begun."""
        program = admission.program
        program.waiting -= 1
        if admission.queue == "live":
            program.kept -= 1
            if not program.running and not program.kept:
                program.context_tokens = admission.context_before
            self._rule.kept(program)

    def _begin(self, admission: Admission, now: float) -> None:
        if self.fair is not None:
            self.fair.begin(admission, now)
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
        """Begin the requests that the rule chooses, one after the other."""
        admitted: list[Admission] = []
        while len(admitted) < at_most:
            if self.fair is not None:
                admission = self.fair.next_to_begin(self._rule, self._fleet, now)
            else:
                admission = self._rule.next_to_begin(self._queues, self._fleet, now)
            if admission is None:
                break
            self._queues[admission.queue].admit(admission, now)
            admission.program.waiting -= 1
            admission.program.kept -= admission.queue == "live"
            self._begin(admission, now)
            admitted.append(admission)
        return admitted

    def _refuse_late(self, now: float, at_most: int) -> list[Queued]:
        """Refuse the requests that have waited for `max_wait_s`."""
        refused: list[Queued] = []
        for queue in self._queues.values():
            is_late = takewhile(lambda admission: admission.since_s + self._max_wait_s <= now, queue)
            late = list(islice(is_late, at_most - len(refused)))
            refused += [self._describe(admission, place, now) for place, admission in enumerate(late, 1)]
            for admission in late:
                self._refuse(admission, now)
        return refused

    def _refuse_unreachable(self, now: float, at_most: int) -> list[Queued]:
        """Refuse the requests that can no longer meet their deadlines."""
        refused: list[Queued] = []
        while self.fair is not None and len(refused) < at_most:
            if (admission := self.fair.deadlines.late(now)) is None:
                break
            refused.append(self._describe(admission, 1, now)._replace(reason="deadline"))
            self._refuse(admission, now)
        return refused

    def _refuse(self, admission: Admission, now: float) -> None:
        """End the wait of a request that is refused."""
        program = admission.program
        self._queues[admission.queue].leave(admission)
        admission.state = "ended"
        if self.fair is not None:
            self.fair.end(admission, None)
        self._stop_waiting(admission)
        if program.prompt_tokens is None and program.name is not None:
            self._refused[program.name] = now
        self._rest(program, now)

    def _close(self, admission: Admission) -> bool:
        """Mark `admission` as ended, and return whether it had ended before."""
        before, admission.state = admission.state, "ended"
        return before == "ended"

    def _describe(self, admission: Admission, place: int, now: float) -> Queued:
        """Return the position and expected wait of `admission`, which is at `place` (from 1) in its own queue."""
        if self.fair is not None:
            return Queued(admission, *self.fair.order.describe(admission, now))
        ahead = sum(len(self._queues[queue]) for queue in QUEUES[: QUEUES.index(admission.queue)])
        return Queued(admission, ahead + place, self._queues[admission.queue].expected_s(place, now))
