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
from router.control.workers.broadcast import Broadcast
from router.control.workers.experiment import SyncedExperiment
from router.control.workers.messages import DrainMessage, ResponseStored, SessionMoved
from router.control.workers.policy_sync import make_rule
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.fleet.load import NO_SHARE, Booking, WorkerShare
from router.kvcache.events import TargetId
from router.kvcache.indexer import KvIndexer, SentPrompt
from router.kvcache.overlap_estimate import OverlapEstimate
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.usage import Usage
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import LegEnd
from router.scheduling.scheduler import UNTOLD, Scheduler
from router.scheduling.selector import Selector
from router.scheduling.ticket import Ticket

NUMBERS = 10**12  # of requests per worker: chance hangs on them, and must not fall alike everywhere


class SyncedScheduler(Scheduler):
    """`worker` 0 leads: it says what decides, and counts everybody's requests in its trial."""

    def __init__(
        self,
        fleet: Fleet,
        knowledge: KvIndexer,
        desk: Selector,
        clock: Clock,
        responses_kept: int,
        *,
        shared_pool: bool,
        secret: int,
        worker: int,
        telling: Broadcast,
    ) -> None:
        self._telling = telling
        self._leads = worker == 0
        self._beside: dict[TargetId, WorkerShare] = {}
        self._drained: set[str] = set()
        self.version = 0  # of what is in force: rises with every switch
        self.trial_since = 0  # the version that began the present trial
        desk.request_count = worker * NUMBERS
        super().__init__(fleet, knowledge, desk, clock, responses_kept, shared_pool=shared_pool, secret=secret)

    # told

    def swap(self, regime: PolicySet) -> None:
        before = self.experiment
        super().swap(regime)
        if self._leads:
            self.version += 1
            self._telling.tell(make_rule(regime, self.version))
        elif isinstance(self.experiment, SyncedExperiment):
            self.experiment.version = self.version
        elif regime.experiment is not None:
            self.experiment = SyncedExperiment(regime.experiment, self._telling, self.version)
        if self.experiment is not before:
            self.trial_since = self.version

    def drain(self, instance: str, on: bool) -> bool:
        found = super().drain(instance, on)
        if found:
            self.apply_drain(instance, on)
            self._telling.tell(DrainMessage(instance, on))
        return found

    def on_first_byte(self, ticket: Ticket) -> None:
        super().on_first_byte(ticket)
        self._telling.booked(ticket.target.id)
        if ticket.record.arm is not None and isinstance(self.experiment, SyncedExperiment):
            self.experiment.first_byte(ticket.record)

    def settle_prefill(self, ticket: Ticket, end: LegEnd, status: int | None = None, usage: Usage = UNTOLD) -> None:
        super().settle_prefill(ticket, end, status, usage)
        if ticket.prefill is not None:
            self._telling.booked(ticket.prefill.target.id)

    def settle(self, ticket: Ticket) -> None:
        super().settle(ticket)
        self._telling.booked(ticket.target.id)

    def remember_response(self, response_id: str, target: TargetId) -> None:
        super().remember_response(response_id, target)
        self._telling.tell(ResponseStored(response_id, target))
        self._telling.hurry()  # its client may ask another worker for it at once

    def _take(
        self,
        decision: Decision,
        known: TokenizedPrompt | None,
        belief: OverlapEstimate | None,
        tokens: int,
        uncached: int,
    ) -> tuple[Target, Booking, OverlapEstimate | None, SentPrompt | None]:
        taken = super()._take(decision, known, belief, tokens, uncached)
        view, target = decision.view, taken[0]
        self._telling.booked(target.id)
        if view.session is not None and view.last_target != target.id:
            self._telling.tell(SessionMoved(decision.part == "prefill", view.model, view.session, target.id))
        return taken

    # heard

    def apply_load(self, target: TargetId, share: WorkerShare) -> None:
        """All that everybody else has booked there, in the place of what they had."""
        if any(share):
            self._beside[target] = share
        else:
            self._beside.pop(target, None)
        if (here := self.fleet.target(target)) is not None:
            here.load_book.set_siblings(share)

    def apply_session(self, told: SessionMoved) -> None:
        self.selector.sessions.put((told.prefill, told.model, told.session), told.target)

    def apply_response(self, told: ResponseStored) -> None:
        super().remember_response(told.response, TargetId(told.target))

    def apply_drain(self, instance: str, on: bool) -> None:
        """Of one that is not here yet, too: it joins drained."""
        (self._drained.add if on else self._drained.discard)(instance)
        super().drain(instance, on)

    # what was heard before it joined

    def add_instance(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> list[Target]:
        joined = super().add_instance(instance, cards, sources)
        if instance in self._drained:
            super().drain(instance, True)
        return joined

    def _meet(self, target: Target, stream: EventEndpoint | None) -> None:
        super()._meet(target, stream)
        target.load_book.set_siblings(self._beside.get(target.id, NO_SHARE))

    # looked at

    def own_share(self, target: TargetId) -> WorkerShare:
        """What is booked here by this worker itself."""
        here = self.fleet.target(target)
        return NO_SHARE if here is None else here.load_book.own
