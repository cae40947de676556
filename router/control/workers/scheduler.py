"""The scheduler of one worker among several: it sends its bookings and moves to the others and applies theirs.

    sent       loads by target, a session's new target and progress, response ids, drains; by the leader also policy
               switches
    applied    the same, from all other workers

So all workers decide on the same load, a few milliseconds old at most, and a session that arrives at another worker
still goes to the target that has its cache. Not shared is what each worker learns by itself: the index (every worker
subscribes to all events), prompts just routed, speeds, accuracy, breakers. A follower's experiment only forwards
(`experiment.py`). Policies are sent with their full text and built by the same functions as those of a configuration; a
worker keeps the policies whose text did not change, with everything that their scorers learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from router.clock import Clock
from router.config.schema import PolicyConfig
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.listeners import AdmissionConfig
from router.control import proposals
from router.control.workers.experiment import SyncedExperiment
from router.control.workers.messages import (
    Broadcast,
    DrainMessage,
    PolicyRule,
    ResponseStored,
    SessionAnswered,
    SessionMoved,
)
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
from router.scheduling.policy.session_progress import Progress
from router.scheduling.scheduler import NO_USAGE, Scheduler
from router.scheduling.selector import Selector
from router.scheduling.ticket import Ticket
from scorers.registry import Registry

NUMBERS_PER_WORKER = 10**12  # request numbers seed random choices, which must differ between workers


class SyncedScheduler(Scheduler):
    """`worker` is 0 for the leader, whose policies apply everywhere and whose experiment counts all requests."""

    def __init__(
        self,
        fleet: Fleet,
        indexer: KvIndexer,
        selector: Selector,
        clock: Clock,
        responses_kept: int,
        *,
        shared_pool: bool,
        secret: int,
        worker: int,
        broadcast: Broadcast,
    ) -> None:
        self._broadcast = broadcast
        self._leads = worker == 0
        self._others: dict[TargetId, WorkerShare] = {}
        self._drained: set[str] = set()
        self.version = 0  # of the policies in force, rises with every switch
        self.experiment_since = 0  # the version that started the running experiment
        selector.request_count = worker * NUMBERS_PER_WORKER
        super().__init__(fleet, indexer, selector, clock, responses_kept, shared_pool=shared_pool, secret=secret)

    # changes of this worker, sent to the others

    def swap(self, policy_set: PolicySet) -> None:
        before = self.experiment
        super().swap(policy_set)
        if self._leads:
            self.version += 1
            self._broadcast.send(make_rule(policy_set, self.version))
        elif isinstance(self.experiment, SyncedExperiment):
            self.experiment.version = self.version
        elif policy_set.experiment is not None:
            self.experiment = SyncedExperiment(policy_set.experiment, self._broadcast, self.version)
        if self.experiment is not before:
            self.experiment_since = self.version

    def drain(self, instance: str, on: bool) -> bool:
        found = super().drain(instance, on)
        if found:
            self.apply_drain(instance, on)
            self._broadcast.send(DrainMessage(instance, on))
        return found

    def on_first_byte(self, ticket: Ticket) -> None:
        super().on_first_byte(ticket)
        self._broadcast.report_load(ticket.target.id)
        if ticket.record.arm is not None and isinstance(self.experiment, SyncedExperiment):
            self.experiment.first_byte(ticket.record)

    def settle_prefill(self, ticket: Ticket, end: LegEnd, status: int | None = None, usage: Usage = NO_USAGE) -> None:
        super().settle_prefill(ticket, end, status, usage)
        if ticket.prefill is not None:
            self._broadcast.report_load(ticket.prefill.target.id)

    def settle(self, ticket: Ticket) -> None:
        super().settle(ticket)
        self._broadcast.report_load(ticket.target.id)
        view = ticket.attempt.decision.view
        if ticket.end == "ok" and view.session is not None and self.selector.policy_set.needs_session:
            progress = self.selector.progress.get((view.model, view.session))
            if progress is not None:
                self._broadcast.send(SessionAnswered(view.model, view.session, *progress))

    def remember_response(self, response_id: str, target: TargetId) -> None:
        super().remember_response(response_id, target)
        self._broadcast.send(ResponseStored(response_id, target))
        self._broadcast.flush()  # its client may ask another worker for it at once

    def _take(
        self,
        decision: Decision,
        known: TokenizedPrompt | None,
        estimate: OverlapEstimate | None,
        tokens: int,
        uncached: int,
        now: float,
    ) -> tuple[Target, Booking, OverlapEstimate | None, SentPrompt | None]:
        taken = super()._take(decision, known, estimate, tokens, uncached, now)
        view, target = decision.view, taken[0]
        self._broadcast.report_load(target.id)
        if view.session is not None and view.last_target != target.id:
            self._broadcast.send(SessionMoved(decision.part == "prefill", view.model, view.session, target.id))
        return taken

    # changes of the others

    def apply_load(self, target: TargetId, share: WorkerShare) -> None:
        """Replace the bookings of `target` by all other workers."""
        if any(share):
            self._others[target] = share
        else:
            self._others.pop(target, None)
        if (here := self.fleet.target(target)) is not None:
            here.load_book.set_siblings(share)

    def apply_session(self, message: SessionMoved) -> None:
        self.selector.sessions.put((message.prefill, message.model, message.session), message.target)

    def apply_progress(self, message: SessionAnswered) -> None:
        progress = Progress(message.turn, message.answered_s, message.tool_call)
        self.selector.progress.put((message.model, message.session), progress)

    def apply_response(self, message: ResponseStored) -> None:
        super().remember_response(message.response, TargetId(message.target))

    def apply_drain(self, instance: str, on: bool) -> None:
        """Drain an instance, or stop draining it. One that has not joined yet will join drained."""
        (self._drained.add if on else self._drained.discard)(instance)
        super().drain(instance, on)

    def add_instance(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> list[Target]:
        joined = super().add_instance(instance, cards, sources)
        if instance in self._drained:
            super().drain(instance, True)
        return joined

    def _index(self, target: Target, stream: EventEndpoint | None) -> None:
        super()._index(target, stream)
        target.load_book.set_siblings(self._others.get(target.id, NO_SHARE))

    def own_share(self, target: TargetId) -> WorkerShare:
        """Return this worker's own bookings of `target`."""
        here = self.fleet.target(target)
        return NO_SHARE if here is None else here.load_book.own


def make_rule(policy_set: PolicySet, version: int) -> PolicyRule:
    """Return `policy_set` as a message, without policies that were built in code and have no text."""
    return PolicyRule(
        version,
        {
            name: policy.spec.model_dump_json()
            for name, policy in policy_set.policies.items()
            if policy.spec is not None
        },
        policy_set.active,
        None if policy_set.experiment is None else policy_set.experiment.model_dump_json(),
        sorted(policy_set.rolled_back),
        policy_set.admission.model_dump_json(),
    )


def build_from_rule(rule: PolicyRule, before: PolicySet, registry: Registry) -> PolicySet:
    """Build a rule's policies, keeping unchanged ones of `before`. Raises ConfigError if one cannot be built here."""
    specs = {name: PolicyConfig.model_validate_json(text) for name, text in rule.policies.items()}
    here = {name: policy for name, policy in before.policies.items() if name in specs}
    experiment = None if rule.experiment is None else ExperimentConfig.model_validate_json(rule.experiment)
    policies = proposals.build_changed(here, specs, registry)
    admission = AdmissionConfig.model_validate_json(rule.admission)
    policy_set = proposals.build_policy_set(policies, rule.active, experiment, admission)
    return replace(policy_set, rolled_back=frozenset(rule.rolled_back))
