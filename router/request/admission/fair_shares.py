"""Fair shares of one model: who of the waiting requests is next, when engines have room, and whose deadline is lost.

`FairOrder` says who is next, the rule says whether engines have room (`AdmissionRule.saturated`) and whether a session
has room in their memory. This module joins them: requests that have begun and are in no engine's bookings yet take a
room each; a request that waits for memory does not hold up those that wait for an engine only.

A request that begins is charged the mean of what others cost beyond the prompt's estimate as well, mostly their
answers: charged at its end only, a tenant with long answers would be ahead by all that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router.request.admission.charges import estimate_computed
from router.request.admission.deadlines import Deadlines
from router.request.admission.fair_order import FairOrder
from router.request.admission.queue import WaitQueue
from scorers.admission.contract import Admission, AdmissionRule, FleetMemory, Queue, QueueName

NEWEST = 0.02  # weight of the newest request in that mean

WaitQueues = Mapping[QueueName, WaitQueue[Admission]]


class _Candidate:
    """The request that a rule is asked about; None: none."""

    def __init__(self) -> None:
        self.admission: Admission | None = None


class _CandidateQueue:
    """A queue as rules see it: its first is the candidate, if that waits there."""

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
    """`queues`: those of the controller, which lets requests join and leave."""

    def __init__(self, queues: WaitQueues) -> None:
        self.order = FairOrder()
        self.deadlines = Deadlines()
        self._candidate = _Candidate()
        self._live = queues["live"]
        self.queues: Mapping[QueueName, Queue] = {
            name: _CandidateQueue(name, queue, self._candidate) for name, queue in queues.items()
        }
        self._homes: dict[Admission, str | None] = {}  # of those that wait
        self._estimates: dict[Admission, int] = {}  # computed tokens of those that run
        self._beyond_tokens = 0.0  # mean of what requests cost beyond these
        self._unplaced: dict[Admission, str | None] = {}  # that have begun and were not sent yet, with their homes

    # one request

    def open(self, admission: Admission) -> None:
        """Count a request that has arrived."""
        self.order.open(admission)

    def join(self, admission: Admission, home: str | None, prefill_s: float | None) -> None:
        """Let a request wait. `home`: the engine that holds most of its prompt; `prefill_s`: how long its prefill takes
        on an idle engine. None: unknown.
        """
        self._homes[admission] = home
        self.order.join(admission, home)
        if prefill_s is not None and admission.claim.deadline_s is not None:
            self.deadlines.join(admission, prefill_s)

    def begin(self, admission: Admission, now: float) -> None:
        self._unplaced[admission] = self._homes.pop(admission, None)
        estimate = self._estimates[admission] = estimate_computed(admission)
        self.order.begin(admission, max(1.0, estimate + self._beyond_tokens), now)
        self.deadlines.begin(admission, now)

    def place(self, admission: Admission) -> None:
        """The request was sent to an engine, and is in its bookings."""
        self._unplaced.pop(admission, None)

    def end(self, admission: Admission, tokens: float | None) -> None:
        """Forget a request. `tokens`: what it should have been charged; None: what it was."""
        self._unplaced.pop(admission, None)
        self._homes.pop(admission, None)
        estimate = self._estimates.pop(admission, None)
        if estimate is not None and tokens:
            self._beyond_tokens += NEWEST * (tokens - estimate - self._beyond_tokens)
        self.deadlines.leave(admission)
        self.order.end(admission, tokens)

    # verdicts

    def must_wait(self, rule: AdmissionRule, prompt_tokens: int, fleet: FleetMemory, now: float) -> bool:
        """Return whether a request that the rule lets begin has to wait for an engine: others do, or none has room."""
        return bool(self._live) or rule.saturated(prompt_tokens, self._with_unplaced(fleet), now)

    def next_to_begin(self, rule: AdmissionRule, fleet: FleetMemory, now: float) -> Admission | None:
        """Return a waiting request that begins now; None: none does."""
        rooms = rule.engines_with_room(fleet, now)
        if rooms is not None:
            unplaced = list(self._unplaced.values())
            rooms = rooms.difference(home for home in unplaced if home is not None)
            if len(rooms) <= unplaced.count(None):
                return None
        found = self.order.first(rooms)
        if found is not None and not self._may_begin(found, rule, fleet, now):
            found = None if found.queue == "live" else self.order.first(rooms, live=True)
            if found is not None and not self._may_begin(found, rule, fleet, now):
                found = None
        return found

    def _may_begin(self, admission: Admission, rule: AdmissionRule, fleet: FleetMemory, now: float) -> bool:
        if rule.saturated(admission.prompt_tokens, self._with_unplaced(fleet), now):
            return False
        if admission.queue == "live":
            return True
        self._candidate.admission = admission
        begins = rule.next_to_begin(self.queues, fleet, now) is admission
        self._candidate.admission = None
        return begins

    def _with_unplaced(self, fleet: FleetMemory) -> FleetMemory:
        return fleet._replace(unplaced=len(self._unplaced)) if self._unplaced else fleet
