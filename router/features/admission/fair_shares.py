"""Fair shares of one model: which waiting request is next, when engines have room, and which deadlines are lost.

`FairOrder` chooses the next request. The rule decides which engines have room (`AdmissionRule.engine_wait`) and
whether a session has room in their memory. This module combines the two. Each request that has begun and is in no
engine's load book yet takes the room of one engine. A request that waits for memory does not hold up requests that
wait for an engine only. A request that begins should be sent to an engine with room, because at any other engine
(`Admission.full` lists these) it would only wait in the engine's queue.

A little of each engine's memory (`LEFT_SHARE`) is reserved for tenants that had less than their share lately.
Without the reserve, a tenant that comes back to engines with full memory would wait until answers end, however much
it is owed.

When a request begins, it is charged its prompt's estimate plus the mean cost of other requests beyond their
estimates, which is mostly their answers. If answers were charged only at the end, a tenant with long answers would
get ahead by those of all its running requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from router.features.admission.charges import estimate_computed
from router.features.admission.deadlines import Deadlines
from router.features.admission.fair_order import FairOrder
from router.features.admission.queue import WaitQueue
from router.features.admission.verdicts import PrefillTimes
from scorers.admission.contract import Admission, AdmissionRule, FleetMemory, Queue, QueueName, TargetLoad
from scorers.admission.engine_room import REPORT_S

NEWEST = 0.02  # weight of the newest request in that mean
LEFT_SHARE = 0.02  # of an engine's KV memory, reserved for prompts of tenants that had less than their share lately

WaitQueues = Mapping[QueueName, WaitQueue[Admission]]


class _Candidate:
    """The request that a rule decides about; None: none."""

    def __init__(self) -> None:
        self.admission: Admission | None = None


class _CandidateQueue:
    """A queue as rules see it: its first request is the candidate, if the candidate waits in this queue."""

    def __init__(self, name: QueueName, queue: WaitQueue[Admission], candidate: _Candidate) -> None:
        self._name = name
        self._queue = queue
        self._candidate = candidate

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Admission]:
        return iter(self._queue)

    @property
    def first(self) -> Admission | None:
        found = self._candidate.admission
        return found if found is not None and found.queue == self._name else None


class FairShares:
    """Fair shares over `queues` of the controller, which lets requests join and leave them."""

    def __init__(self, queues: WaitQueues) -> None:
        self.order = FairOrder()
        self.deadlines = Deadlines()
        self._candidate = _Candidate()
        self._live = queues["live"]
        self.queues: Mapping[QueueName, Queue] = {
            name: _CandidateQueue(name, queue, self._candidate) for name, queue in queues.items()
        }
        self._estimates: dict[Admission, int] = {}  # computed tokens of running requests
        self._beyond_tokens = 0.0  # mean cost of requests beyond their estimates
        self.due_s = inf  # when a request may begin although nothing happens before
        self._unplaced: set[Admission] = set()  # requests that have begun and were not sent yet

    # one request

    def open(self, admission: Admission) -> None:
        """Count a request that has arrived."""
        self.order.open(admission)

    def join(self, admission: Admission, holders: tuple[str, ...] = (), prefill: PrefillTimes | None = None) -> None:
        """Let a request wait. `holders`: the engines that hold most of its prompt. `prefill` None: unknown."""
        self.order.join(admission, holders, 0.0 if prefill is None else prefill.cold_s - prefill.held_s)
        if prefill is not None and admission.claim.deadline_s is not None:
            self.deadlines.join(admission, prefill.held_s)

    def begin(self, admission: Admission, now: float) -> None:
        self._unplaced.add(admission)
        estimate = self._estimates[admission] = estimate_computed(admission)
        self.order.begin(admission, max(1.0, estimate + self._beyond_tokens), now)
        self.deadlines.begin(admission, now)

    def place(self, admission: Admission, held_tokens: int | None) -> None:
        """Record that the request was sent to an engine, whose load book now has it. The engine is expected to hold
        `held_tokens` of its prompt; None: unknown.
        """
        self._unplaced.discard(admission)
        if held_tokens is not None and admission in self._estimates:
            estimate = self._estimates[admission] = max(1, admission.prompt_tokens - held_tokens)
            self.order.charge(admission, max(1.0, estimate + self._beyond_tokens))

    def end(self, admission: Admission, tokens: float | None) -> None:
        """Forget a request. `tokens` is its correct charge; None if its charge so far stands."""
        self._unplaced.discard(admission)
        estimate = self._estimates.pop(admission, None)
        if estimate is not None and tokens:
            self._beyond_tokens += NEWEST * (tokens - estimate - self._beyond_tokens)
        self.deadlines.leave(admission)
        self.order.end(admission, tokens)

    # verdicts

    def must_wait(self, rule: AdmissionRule, new_tokens: int, fleet: FleetMemory, now: float) -> bool:
        """Return whether a request that the rule lets begin, and that needs room for `new_tokens`, has to wait for
        an engine, because others already wait or no engine has room.
        """
        return bool(self._live) or not self._has_room(rule, new_tokens, fleet.loads, now)

    def next_to_begin(self, rule: AdmissionRule, fleet: FleetMemory, now: float) -> Admission | None:
        """Return a waiting request that begins now; None if none does."""
        self.due_s = inf
        fleet = fleet._replace(loads=list(fleet.loads))
        if not self._has_room(rule, 0, fleet.loads, now):
            return None
        loads = {load.target: load for load in fleet.loads}

        def wait_s(holders: tuple[str, ...], admission: Admission) -> float:
            needs = self.needs(admission, fleet)
            soonest_s = min(
                [rule.engine_wait(loads[holder], needs) for holder in holders if holder in loads], default=inf
            )
            if soonest_s > 0:
                self._look_again(now, soonest_s)
            return soonest_s

        found = self.order.first(wait_s, now)
        if found is not None and not self._may_begin(found, rule, fleet, now):
            found = None if found.queue == "live" else self.order.first(wait_s, now, live=True)
            if found is not None and not self._may_begin(found, rule, fleet, now):
                found = None
        return found

    def _may_begin(self, admission: Admission, rule: AdmissionRule, fleet: FleetMemory, now: float) -> bool:
        needs = self.needs(admission, fleet)
        if not self._has_room(rule, needs, fleet.loads, now):
            return False
        admission.full = frozenset([load.target for load in fleet.loads if rule.engine_wait(load, needs) > 0])
        if admission.queue == "live":
            return True
        self._candidate.admission = admission
        begins = rule.next_to_begin(self.queues, fleet, now) is admission
        self._candidate.admission = None
        return begins

    def needs(self, admission: Admission, fleet: FleetMemory) -> int:
        """Return the tokens of KV memory that an engine must have free for a request."""
        new_tokens = estimate_computed(admission)
        if self.order.tenants_known <= 1 or self.order.is_owed(admission):
            return new_tokens
        return new_tokens + round(LEFT_SHARE * (fleet.capacity_tokens or 0) / max(1, len(fleet.targets)))

    def _has_room(self, rule: AdmissionRule, new_tokens: int, loads: Iterable[TargetLoad], now: float) -> bool:
        """Return whether an engine has room for a prompt beside the requests not yet sent to one. A fleet without
        targets counts as having room, so that its requests get the error that there are no targets.
        """
        needed, some = len(self._unplaced) + 1, False
        for load in loads:
            some = True
            if (wait_s := rule.engine_wait(load, new_tokens)) > 0:
                self._look_again(now, wait_s)
            elif (needed := needed - 1) == 0:
                return True  # the other loads are not computed: mostly the first engine has room
        return not some

    def _look_again(self, now: float, wait_s: float) -> None:
        self.due_s = min(self.due_s, now + min(wait_s, REPORT_S))
