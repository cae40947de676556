"""The core of one worker among several: what it does, it tells; what the others told, it knows.

    told    bookings by target, a session's new target, response ids, drains, and, by the leader, what is switched
    heard   the same, of everybody else

So all of them decide on the same load, a few milliseconds old at most, and a session that comes in by another worker
still goes where its cache is. Not shared is what each learns for itself: the index (every worker hears all events),
what was just sent where, speeds, trust, breakers. A follower's trial only passes on (`trials.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from router.clock import Clock
from router.control.workers.broadcast import Telling
from router.control.workers.experiment import ToldTrial
from router.control.workers.messages import Drained, Made, Went
from router.control.workers.policy_sync import rule_of
from router.fleet.engine_facts import Card, EventEndpoint
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.fleet.load import NO_SHARE, Booking, Share
from router.kvcache.events import TargetId
from router.kvcache.indexer import Knowledge, Sent
from router.kvcache.overlap_estimate import Belief
from router.kvcache.tokenized_prompt import Known
from router.prompt.usage import Usage
from router.scheduling.experiments.policy_set import Regime
from router.scheduling.policy.decision import Decision
from router.scheduling.scheduler import UNTOLD, Core
from router.scheduling.selector import Desk
from router.scheduling.ticket import Ticket

NUMBERS = 10**12  # of requests per worker: chance hangs on them, and must not fall alike everywhere


class SharedCore(Core):
    """`worker` 0 leads: it says what decides, and counts everybody's requests in its trial."""

    def __init__(
        self,
        fleet: Fleet,
        knowledge: Knowledge,
        desk: Desk,
        clock: Clock,
        responses_kept: int,
        *,
        shared_pool: bool,
        secret: int,
        worker: int,
        telling: Telling,
    ) -> None:
        self._telling = telling
        self._leads = worker == 0
        self._beside: dict[TargetId, Share] = {}
        self._drained: set[str] = set()
        self.version = 0  # of what is in force: rises with every switch
        self.trial_since = 0  # the version that began the present trial
        desk.numbers = worker * NUMBERS
        super().__init__(fleet, knowledge, desk, clock, responses_kept, shared_pool=shared_pool, secret=secret)

    # told

    def swap(self, regime: Regime) -> None:
        before = self.trial
        super().swap(regime)
        if self._leads:
            self.version += 1
            self._telling.tell(rule_of(regime, self.version))
        elif isinstance(self.trial, ToldTrial):
            self.trial.version = self.version
        elif regime.experiment is not None:
            self.trial = ToldTrial(regime.experiment, self._telling, self.version)
        if self.trial is not before:
            self.trial_since = self.version

    def drain(self, instance: str, on: bool) -> bool:
        found = super().drain(instance, on)
        if found:
            self.heard_drain(instance, on)
            self._telling.tell(Drained(instance, on))
        return found

    def first_byte(self, ticket: Ticket) -> None:
        super().first_byte(ticket)
        self._telling.booked(ticket.target.id)
        if ticket.record.arm is not None and isinstance(self.trial, ToldTrial):
            self.trial.first_byte(ticket.record)

    def prefilled(self, ticket: Ticket, end: str, status: int | None = None, usage: Usage = UNTOLD) -> None:
        super().prefilled(ticket, end, status, usage)
        if ticket.half is not None:
            self._telling.booked(ticket.half.target.id)

    def settle(self, ticket: Ticket) -> None:
        super().settle(ticket)
        self._telling.booked(ticket.target.id)

    def remember_response(self, response_id: str, target: TargetId) -> None:
        super().remember_response(response_id, target)
        self._telling.tell(Made(response_id, target))
        self._telling.hurry()  # its client may ask another worker for it at once

    def _take(
        self, decision: Decision, known: Known | None, belief: Belief | None, tokens: int, uncached: int
    ) -> tuple[Target, Booking, Belief | None, Sent | None]:
        taken = super()._take(decision, known, belief, tokens, uncached)
        view, target = decision.view, taken[0]
        self._telling.booked(target.id)
        if view.session is not None and view.last_target != target.id:
            self._telling.tell(Went(decision.part == "prefill", view.model, view.session, target.id))
        return taken

    # heard

    def heard_load(self, target: TargetId, share: Share) -> None:
        """All that everybody else has booked there, in the place of what they had."""
        if any(share):
            self._beside[target] = share
        else:
            self._beside.pop(target, None)
        if (here := self.fleet.target(target)) is not None:
            here.books.beside(share)

    def heard_session(self, told: Went) -> None:
        self.desk.sessions.put((told.prefill, told.model, told.session), told.target)

    def heard_response(self, told: Made) -> None:
        super().remember_response(told.response, TargetId(told.target))

    def heard_drain(self, instance: str, on: bool) -> None:
        """Of one that is not here yet, too: it joins drained."""
        (self._drained.add if on else self._drained.discard)(instance)
        super().drain(instance, on)

    # what was heard before it joined

    def joined(self, instance: str, cards: Sequence[Card], sources: Sequence[EventEndpoint]) -> list[Target]:
        joined = super().joined(instance, cards, sources)
        if instance in self._drained:
            super().drain(instance, True)
        return joined

    def _meet(self, target: Target, stream: EventEndpoint | None) -> None:
        super()._meet(target, stream)
        target.books.beside(self._beside.get(target.id, NO_SHARE))

    # looked at

    def own_share(self, target: TargetId) -> Share:
        """What is booked here by this worker itself."""
        here = self.fleet.target(target)
        return NO_SHARE if here is None else here.books.own
