"""The scheduler of one process among several: publishes its bookings and findings, and applies those of its peers.

    to all peers    loads by target, blocks of prompts in flight, sessions' targets and progress, response ids,
                    drains, breakers that moved, suspicions, forgotten caches

So all processes decide on the same load, a few milliseconds old, and a session that arrives at another process
still goes to the target that has its cache. The index (every process subscribes to all events) and speeds are not
shared: each process learns them by itself. `features/preload/peers.py` publishes preloaded prefixes, and whether
they were hit, to this host only.

A session's target is sent with every request, not only when it moves, and of two messages that cross, the later one
counts everywhere: processes that could not reach each other meanwhile agree again at the session's next request.

A breaker that opens because an engine failed for several clients is open at all processes. Failures of one client
count at other processes as if they had happened there, so that a client whose requests make engines fail closes
these engines to nobody else. Each process retries the engine by itself, and the first good answer closes the
breaker everywhere. If one process cannot reach an engine, the others only probe the engine at once: the network of
one host may be at fault. An instance whose weights changed stays in the published state until this process ends, so
that a peer that missed the message also forgets what the caches held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, ClassVar

from msgspec.structs import astuple

from router.clock import Clock
from router.control.peers.messages import (
    BlocksSent,
    BreakerMoved,
    CacheForgotten,
    DrainMessage,
    InstanceSuspected,
    PredictionChecked,
    ResponseStored,
    SessionAnswered,
    SessionMoved,
)
from router.control.peers.parts import Broadcast, Message
from router.fleet.drains import DrainDecision
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.fleet.load import Booking
from router.fleet.saved_instance import SavedInstance, restore_instance
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.kvcache.indexer import KvIndexer, SentPrompt
from router.kvcache.overlap_estimate import OverlapEstimate
from router.kvcache.sent_elsewhere import pack_keys, unpack_keys
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.usage import NO_USAGE, Usage
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import LegEnd
from router.scheduling.policy.session_progress import Progress
from router.scheduling.scheduler import Scheduler
from router.scheduling.selector import Selector
from router.scheduling.ticket import ENGINE_IN_DOUBT, Ticket
from router.tasks import Tasks

SUSPICIOUS = ENGINE_IN_DOUBT | {"broken", "continued"}  # ends of requests after which an instance is probed
SUSPECT_AGAIN_S = 1.0
CROSSING_S = 2.0  # messages that take longer may undo a later move
NUMBERS_PER_WORKER = 10**12  # request numbers seed random choices, which must differ between workers


SessionKey = tuple[bool, str, str]
"""Whether the key is of prefill halves of pairs; the model; the session."""


class PeerScheduler(Scheduler):
    """A scheduler that shares its state with peers, as a `SharedPart`. `number` is this worker's number on its
    host.
    """

    messages: ClassVar[Sequence[type[Message]]] = (
        *(SessionMoved, SessionAnswered, ResponseStored, BlocksSent, PredictionChecked, DrainMessage, CacheForgotten),
        *(BreakerMoved, InstanceSuspected),
    )

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
        broadcast: Broadcast,
        number: int = 0,
    ) -> None:
        self._broadcast = broadcast
        self._others: dict[TargetId, WorkerShare] = {}
        self._forgotten: dict[str, CacheForgotten] = {}  # the last one of this process, by instance
        self._forgets = 0
        self._forgotten_elsewhere: dict[tuple[str, str], int] = {}  # number of the last one, by run and instance
        self._moved_s: dict[SessionKey, float] = {}  # when sessions were placed last, anywhere: of the last seconds
        self._moved_before_s: dict[SessionKey, float] = {}  # and of as many seconds before these
        self._moved_since_s = 0.0
        self._suspected: dict[str, float] = {}  # instances, and when their suspicion was published
        self.suspect: Callable[[str], None] = lambda instance: None
        """Probe an instance now; the composition root connects it."""
        self._learned: dict[str, SavedInstance] = {}  # learned elsewhere, of instances that have not joined yet
        self._learned_at = 0.0
        selector.request_count = number * NUMBERS_PER_WORKER
        super().__init__(
            fleet, indexer, selector, clock, responses_kept, shared_pool=shared_pool, secret=secret, run=broadcast.run
        )

    # changes of this process, published

    def drain(self, instance: str, on: bool) -> bool:
        found = super().drain(instance, on)
        if found:
            self._broadcast.share(DrainMessage(*astuple(self.drains.latest(instance))))
        return found

    def forget_cache(self, instance: str) -> bool:
        found = super().forget_cache(instance)
        if found:
            self._forgets += 1
            forgotten = self._forgotten[instance] = CacheForgotten(instance, self._forgets, self._broadcast.run)
            self._broadcast.share(forgotten)
        return found

    def report_load(self, target: TargetId) -> None:
        self._broadcast.report_load(target)

    def on_first_byte(self, ticket: Ticket) -> None:
        super().on_first_byte(ticket)
        self._broadcast.report_load(ticket.target.id)
        if ticket.has_prefilled:
            self._report_computed(ticket.sent_prompt)

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
                self._broadcast.share(SessionAnswered(view.model, view.session, *progress))

    def remember_response(self, response_id: str, target: TargetId, tenant: str = "") -> None:
        super().remember_response(response_id, target, tenant)
        self._broadcast.share(ResponseStored(response_id, target, tenant))
        self._broadcast.flush()  # its client may request it from another process at once

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
        if view.session is not None:
            key = decision.part == "prefill", view.model, view.session
            self._note_move(key, now)
            self._broadcast.share(SessionMoved(*key, target.id, now))
        if (sent := taken[3]) is not None and sent.speculative.keys:
            self._broadcast.share(BlocksSent(target.id, pack_keys(sent.speculative.keys)))
        return taken

    def _report_finding(self, target: Target) -> None:
        if (finding := target.overlap_accuracy.take_news()) is not None:
            self._broadcast.share(PredictionChecked(target.id, finding))

    def _report_computed(self, sent: SentPrompt | None) -> None:
        """Publish what a target without trusted events has computed: no event will report it."""
        if sent is not None and sent.approximate:
            self._broadcast.share(BlocksSent(sent.speculative.target, pack_keys(sent.approximate), computed=True))

    def _report_engine(self, target: Target, was_open: bool, end: str) -> None:
        """Publish that the end of a request has moved a breaker, or makes its engine suspicious. A breaker that
        opened because the engine cannot be reached from here is not published: each process detects that by itself,
        or one bad network would close all engines.
        """
        breaker, instance, now = target.breaker, target.instance.id, self._clock.now()
        if breaker.is_open != was_open and not (breaker.is_open and breaker.unreachable):
            blamed = (breaker.failed_client, breaker.several_failed) if breaker.is_open else (None, False)
            self._broadcast.share(BreakerMoved(target.id, breaker.is_open, *blamed))
        if end in SUSPICIOUS and now - self._suspected.get(instance, -inf) >= SUSPECT_AGAIN_S:
            self._suspected[instance] = now
            self._broadcast.share(InstanceSuspected(instance))

    # changes of peers

    def start(self, tasks: Tasks) -> None:
        """Do nothing: there are no tasks."""

    def state(self) -> Iterator[Message]:
        for decided in self.drains:
            yield DrainMessage(*astuple(decided))
        yield from self._open_breakers()
        yield from self._forgotten.values()
        yield from self.stored_responses()

    def forget(self, run: str) -> None:
        """Do nothing: facts outlive the peer that reported them; its bookings are kept elsewhere
        (`SharedLoads`).
        """

    def apply(self, message: Any, run: str) -> None:
        match message:
            case SessionMoved(prefill, model, session, target, at_s):
                key = prefill, model, session
                if at_s >= self.moved_at(key):
                    self._note_move(key, at_s)
                    self.selector.sessions.put(key, target)
            case SessionAnswered(model, session, turn, answered_s, tool_call):
                self.selector.progress.put((model, session), Progress(turn, answered_s, tool_call))
            case ResponseStored(response, target, tenant):
                super().remember_response(response, TargetId(target), tenant)
            case BlocksSent(target, packed, computed):
                elsewhere = self.indexer.elsewhere
                (elsewhere.add_computed if computed else elsewhere.expect)(TargetId(target), unpack_keys(packed))
            case PredictionChecked(target, finding):
                if (here := self.fleet.target(TargetId(target))) is not None:
                    here.overlap_accuracy.add(finding)
                    if finding == "contradicted":
                        self.indexer.begin_late(here.id)
            case DrainMessage(instance, on, version, by):
                if self.drains.accept(DrainDecision(instance, on, version, by)):
                    self.fleet.drain(instance, on)
            case CacheForgotten(instance, number, by):
                if number > self._forgotten_elsewhere.get((by, instance), 0):
                    self._forgotten_elsewhere[by, instance] = number
                    super().forget_cache(instance)
            case BreakerMoved():
                self._apply_breaker(message)
            case InstanceSuspected(instance):
                self.suspect(instance)

    def moved_at(self, key: SessionKey) -> float:
        """Return when a session was last placed, at any process; -inf if that was not in the last seconds."""
        return max(self._moved_s.get(key, -inf), self._moved_before_s.get(key, -inf))

    def _note_move(self, key: SessionKey, at_s: float) -> None:
        if at_s - self._moved_since_s > CROSSING_S:
            self._moved_s, self._moved_before_s, self._moved_since_s = {}, self._moved_s, at_s
        self._moved_s[key] = at_s

    def _apply_breaker(self, message: BreakerMoved) -> None:
        if (target := self.fleet.target(TargetId(message.target))) is not None:
            if message.opened:
                target.breaker.on_opened_elsewhere(message.client, message.several, self._clock.now())
            else:
                target.breaker.on_closed_elsewhere()

    def _open_breakers(self) -> list[BreakerMoved]:
        """Return a message for each breaker that is open because its engine failed."""
        now = self._clock.now()
        targets = (target for instance in self.fleet for target in instance.targets.values())
        failed = [t for t in targets if not t.breaker.unreachable and t.breaker.state(now) == "open"]
        return [BreakerMoved(t.id, True, t.breaker.failed_client, t.breaker.several_failed) for t in failed]

    # the state for a peer that starts

    def stored_responses(self) -> list[ResponseStored]:
        """Return the targets of stored responses, the oldest first."""
        return [ResponseStored(*stored) for stored in self.responses()]

    def apply_load(self, target: TargetId, share: WorkerShare) -> None:
        """Replace the bookings of `target` by all peers."""
        if share != NO_SHARE:
            self._others[target] = share
        else:
            self._others.pop(target, None)
        if (here := self.fleet.target(target)) is not None:
            here.load_book.set_siblings(share)

    def add_instance(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> list[Target]:
        joined = super().add_instance(instance, cards, sources)
        learned, member = self._learned.pop(instance, None), self.fleet.get(instance)
        if learned is not None and member is not None:
            restore_instance(member, learned, self._learned_at)
        return joined

    def expect_learned(self, instances: Sequence[SavedInstance], at: float) -> None:
        """Restore for each of these instances, when it joins, what another process had learned of it at the time
        `at`. Instances of an earlier call that have not joined get nothing.
        """
        self._learned = {saved.id: saved for saved in instances}
        self._learned_at = at

    def _index(self, target: Target, stream: EventEndpoint | None) -> None:
        super()._index(target, stream)
        target.load_book.set_siblings(self._others.get(target.id, NO_SHARE))

    def own_share(self, target: TargetId) -> WorkerShare:
        """Return this process's own bookings of `target`."""
        here = self.fleet.target(target)
        return NO_SHARE if here is None else here.load_book.own
