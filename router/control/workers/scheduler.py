"""The scheduler of one worker among several: it sends its bookings and moves to the others and applies theirs.

    sent       loads by target, blocks of prompts on their way, a session's new target and progress, response ids,
               breakers that moved, suspicions; by the leader also drains, forgotten caches and policy switches
    applied    the same, from all other workers

So all workers decide on the same load, a few milliseconds old at most, and a session that arrives at another worker
still goes to the target that has its cache. Not shared is what each worker learns by itself: the index (every worker
subscribes to all events), speeds. A follower's experiment only forwards
(`experiment.py`). Policies are sent with their full text and built by the same functions as those of a configuration; a
worker keeps the policies whose text did not change, with everything that their scorers learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from pydantic import ValidationError

from router.clock import Clock
from router.config.schema import PolicyConfig
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.listeners import AdmissionConfig
from router.control import proposals
from router.control.workers.broadcast import Broadcast
from router.control.workers.experiment import SyncedExperiment
from router.control.workers.messages import (
    BlocksSent,
    BreakerMoved,
    CacheForgotten,
    DrainMessage,
    InstanceSuspected,
    PolicyRule,
    PredictionChecked,
    PrefixPreloaded,
    PreloadSettled,
    ResponseStored,
    SessionAnswered,
    SessionMoved,
)
from router.errors import ConfigError
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.fleet.load import Booking
from router.fleet.saved_instance import SavedInstance, restore_instance
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import Key, TargetId
from router.kvcache.indexer import KvIndexer, SentPrompt
from router.kvcache.overlap_estimate import OverlapEstimate
from router.kvcache.sent_elsewhere import pack_keys, unpack_keys
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.usage import NO_USAGE, Usage
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import LegEnd
from router.scheduling.policy.session_progress import Progress
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.scheduling.ticket import ENGINE_IN_DOUBT, Ticket
from scorers.registry import Registry

SUSPICIOUS = ENGINE_IN_DOUBT | {"broken", "continued"}  # ends of requests after which an instance is probed
SUSPECT_AGAIN_S = 1.0
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
        self._suspected: dict[str, float] = {}  # instances, and when the others were told
        self.suspect: Callable[[str], None] = lambda instance: None
        """Probe an instance now; the composition root connects it."""
        self._learned: dict[str, SavedInstance] = {}  # elsewhere, of instances that have not joined yet
        self._learned_at = 0.0
        self.version = 0  # of the policies in force, rises with every switch
        self.experiment_since = 0  # the version that started the running experiment
        self.sends_every_session = False
        """Send a session's target with every request, not only when it moves: replicas whose moves crossed, or that
        could not reach each other meanwhile, agree again at the session's next request."""
        selector.request_count = worker * NUMBERS_PER_WORKER
        super().__init__(fleet, indexer, selector, clock, responses_kept, shared_pool=shared_pool, secret=secret)
        self.preloads.on_loaded = lambda *prefix: broadcast.send(PrefixPreloaded(*prefix))
        self.preloads.on_settled = lambda *found: broadcast.send(PreloadSettled(*found))

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

    def forget_cache(self, instance: str) -> bool:
        found = super().forget_cache(instance)
        if found:
            self._broadcast.send(CacheForgotten(instance))
        return found

    def report_load(self, target: TargetId) -> None:
        self._broadcast.report_load(target)

    def on_first_byte(self, ticket: Ticket) -> None:
        super().on_first_byte(ticket)
        self._broadcast.report_load(ticket.target.id)
        if ticket.has_prefilled:
            self._report_computed(ticket.sent_prompt)
        if ticket.record.arm is not None and self.experiment is not None:
            self.experiment.first_byte(ticket.record)

    def settle_prefill(self, ticket: Ticket, end: LegEnd, status: int | None = None, usage: Usage = NO_USAGE) -> None:
        half = ticket.prefill
        if half is None or half.leg.end != "running":
            return
        was_open = half.target.breaker.is_open
        super().settle_prefill(ticket, end, status, usage)
        self._broadcast.report_load(half.target.id)
        if end == "ok":
            self._report_computed(half.sent_prompt)
            self._report_finding(half.target)
        self._report_engine(half.target, was_open, end)

    def settle(self, ticket: Ticket) -> None:
        was_open = ticket.target.breaker.is_open
        super().settle(ticket)
        self._broadcast.report_load(ticket.target.id)
        self._report_engine(ticket.target, was_open, ticket.end)
        if ticket.end == "ok":
            self._report_finding(ticket.target)
        view = ticket.attempt.decision.view
        if ticket.end == "ok" and view.session is not None and self.selector.policy_set.needs_session:
            progress = self.selector.progress.get((view.model, view.session))
            if progress is not None:
                self._broadcast.send(SessionAnswered(view.model, view.session, *progress))

    def remember_response(self, response_id: str, target: TargetId, tenant: str = "") -> None:
        super().remember_response(response_id, target, tenant)
        self._broadcast.send(ResponseStored(response_id, target, tenant))
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
        if view.session is not None and (self.sends_every_session or view.last_target != target.id):
            self._broadcast.send(SessionMoved(decision.part == "prefill", view.model, view.session, target.id))
        if (sent := taken[3]) is not None and sent.speculative.keys:
            self._broadcast.send(BlocksSent(target.id, pack_keys(sent.speculative.keys)))
        return taken

    def _report_finding(self, target: Target) -> None:
        if (finding := target.overlap_accuracy.take_news()) is not None:
            self._broadcast.send(PredictionChecked(target.id, finding))

    def _report_computed(self, sent: SentPrompt | None) -> None:
        """Report what a target without trusted events has computed: no event will tell of it."""
        if sent is not None and sent.approximate:
            self._broadcast.send(BlocksSent(sent.speculative.target, pack_keys(sent.approximate), computed=True))

    def _report_engine(self, target: Target, was_open: bool, end: str) -> None:
        """Tell the others when the end of a request has moved a breaker, or makes its engine suspicious. Not that it
        could not be reached from here: each finds that out for itself, or one bad network would close all engines.
        """
        breaker, instance, now = target.breaker, target.instance.id, self._clock.now()
        if breaker.is_open != was_open and not (breaker.is_open and breaker.unreachable):
            blamed = (breaker.failed_client, breaker.several_failed) if breaker.is_open else (None, False)
            self._broadcast.send(BreakerMoved(target.id, breaker.is_open, *blamed))
        if end in SUSPICIOUS and now - self._suspected.get(instance, -inf) >= SUSPECT_AGAIN_S:
            self._suspected[instance] = now
            self._broadcast.send(InstanceSuspected(instance))

    # changes of the others

    def apply_load(self, target: TargetId, share: WorkerShare) -> None:
        """Replace the bookings of `target` by all other workers."""
        if share != NO_SHARE:
            self._others[target] = share
        else:
            self._others.pop(target, None)
        if (here := self.fleet.target(target)) is not None:
            here.load_book.set_siblings(share)

    def apply_sessions(self, moves: Sequence[SessionMoved]) -> None:
        put = self.selector.sessions.put
        for message in moves:
            put((message.prefill, message.model, message.session), message.target)

    def apply_progress(self, message: SessionAnswered) -> None:
        progress = Progress(message.turn, message.answered_s, message.tool_call)
        self.selector.progress.put((message.model, message.session), progress)

    def apply_response(self, message: ResponseStored) -> None:
        super().remember_response(message.response, TargetId(message.target), message.tenant)

    def apply_sent(self, message: BlocksSent) -> None:
        elsewhere, keys = self.indexer.elsewhere, unpack_keys(message.keys)
        (elsewhere.add_computed if message.computed else elsewhere.expect)(TargetId(message.target), keys)

    def apply_finding(self, message: PredictionChecked) -> None:
        if (target := self.fleet.target(TargetId(message.target))) is not None:
            target.overlap_accuracy.add(message.finding)

    def apply_drain(self, instance: str, on: bool) -> None:
        """Drain an instance, or stop draining it. One that has not joined yet will join drained."""
        (self._drained.add if on else self._drained.discard)(instance)
        super().drain(instance, on)

    def apply_breaker(self, message: BreakerMoved) -> None:
        if (target := self.fleet.target(TargetId(message.target))) is not None:
            if message.opened:
                target.breaker.on_opened_elsewhere(message.client, message.several, self._clock.now())
            else:
                target.breaker.on_closed_elsewhere()

    def open_breakers(self) -> list[BreakerMoved]:
        """Return a message for each breaker that is open because its engine failed."""
        now = self._clock.now()
        targets = (target for instance in self.fleet for target in instance.targets.values())
        failed = [t for t in targets if not t.breaker.unreachable and t.breaker.state(now) == "open"]
        return [BreakerMoved(t.id, True, t.breaker.failed_client, t.breaker.several_failed) for t in failed]

    def apply_preload(self, message: PrefixPreloaded | PreloadSettled) -> None:
        """Apply what another worker loaded ahead, or found to be hit or lost."""
        if isinstance(message, PreloadSettled):
            self.preloads.settle(TargetId(message.target), {Key(key): hit for key, hit in message.found.items()})
        else:
            keys = tuple(map(Key, message.keys))
            self.preloads.expect(TargetId(message.target), message.reason, keys, message.tokens, message.loaded_tokens)

    def apply_forgotten(self, instance: str) -> None:
        super().forget_cache(instance)

    def add_instance(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> list[Target]:
        joined = super().add_instance(instance, cards, sources)
        if instance in self._drained:
            super().drain(instance, True)
        learned, member = self._learned.pop(instance, None), self.fleet.get(instance)
        if learned is not None and member is not None:
            restore_instance(member, learned, self._learned_at)
        return joined

    def expect_learned(self, instances: Sequence[SavedInstance], at: float) -> None:
        """Give each of these instances, when it joins, what another router had learned of it at this time; those of an
        earlier call that have not joined get nothing.
        """
        self._learned = {saved.id: saved for saved in instances}
        self._learned_at = at

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
    try:
        specs = {name: PolicyConfig.model_validate_json(text) for name, text in rule.policies.items()}
        experiment = None if rule.experiment is None else ExperimentConfig.model_validate_json(rule.experiment)
        admission = AdmissionConfig.model_validate_json(rule.admission)
    except ValidationError as error:  # of a newer version
        raise ConfigError(f"policies of a router of another version: {error}") from error
    here = {name: policy for name, policy in before.policies.items() if name in specs}
    policies = proposals.build_changed(here, specs, registry)
    policy_set = proposals.build_policy_set(policies, rule.active, experiment, admission)
    return replace(policy_set, rolled_back=frozenset(rule.rolled_back))
