"""The router without a network: takes engine state, places requests, and learns from their outcomes.

    engines   add_instance, remove_instance, apply_metrics      -> the targets and their load
    requests  admit -> on_first_byte -> settle                  -> the choice of a target, and its outcome

(KV cache events go to `indexer`.) All calls run on one event loop and return at once, so there are no locks:
`admit` chooses *and* books in one turn, so no two choices ever see the same state of the load. Time comes from the
clock argument; nothing in this module waits or sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from mypy_extensions import mypyc_attr

from router.clock import Clock
from router.config.sections.experiment import ExperimentConfig
from router.fleet.drains import DrainDecisions
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel, Target
from router.fleet.load import Booking
from router.fleet.working_set import WorkingSets
from router.kvcache.events import TargetId
from router.kvcache.indexer import KvIndexer, SentPrompt
from router.kvcache.overlap_estimate import OverlapEstimate
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.prompt.usage import NO_USAGE, Usage
from router.scheduling.conversations import Conversations
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.feedback import learn_from_answer, predicted_tokens
from router.scheduling.pair import PairChoice, choose_pair
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy, merge_orders
from router.scheduling.policy.record import Attempt, LegEnd, PrefillRecord, Record
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.response_targets import ResponseTargets, StoredResponse
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.selector import Selector
from router.scheduling.shortlist import SMALL
from router.scheduling.ticket import (
    ENGINE_IN_DOUBT,
    PrefillBooking,
    TargetBooking,
    Ticket,
    build_outcome,
    judge_end,
    uncached_tokens,
)
from router.scheduling.view_builder import ViewBuilder
from scorers.contract import Overlap, PoolHit, Row, View

BYTES_PER_TOKEN = 4  # only for bookings of prompts that could not be tokenised


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    def __init__(
        self,
        fleet: Fleet,
        indexer: KvIndexer,
        selector: Selector,
        clock: Clock,
        responses_kept: int,
        *,
        shared_pool: bool = False,
        secret: int = 0,
        run: str = "",
    ) -> None:
        self.fleet = fleet
        self.drains = DrainDecisions(run)
        self.indexer = indexer
        self.selector = selector
        self._clock = clock
        self._responses = ResponseTargets(responses_kept)
        self.shared_pool = shared_pool  # whether engines may find prompts in a shared pool that no engine holds
        self.peers = PrefillPeers()
        self.working_sets = WorkingSets()
        self.on_swap: list[Callable[[PolicySet], None]] = []  # called after every swap
        self.on_settled: list[Callable[[Ticket, Usage], None]] = []  # called with each attempt that has ended
        self.on_left: list[Callable[[TargetId], None]] = []  # called with each target of an instance that leaves
        self.experiment: RunningExperiment | None = None  # results of the experiment, if there is one
        self.make_experiment: Callable[[ExperimentConfig], RunningExperiment] = RunningExperiment
        self.conversations = Conversations()
        self.view_builder = ViewBuilder(fleet, indexer, self.peers, selector, secret, self.conversations)
        self.swap(selector.policy_set)

    def swap(self, policy_set: PolicySet) -> None:
        """Make `policy_set` the active one. An experiment that continues retains its results."""
        before = self.selector.policy_set
        self.selector.swap(policy_set)
        if policy_set.experiment is None:
            self.experiment = None
        elif (
            self.experiment is None
            or policy_set.experiment != before.experiment
            or policy_set.arm_digests != before.arm_digests
        ):
            self.experiment = self.make_experiment(policy_set.experiment)
        if self.experiment is not None:
            for arm in policy_set.rolled_back:
                self.experiment.exclude_arm(arm, "it was rolled back")
        for follow in self.on_swap:
            follow(policy_set)

    def drain(self, instance: str, on: bool) -> bool:
        """Drain an instance, so that it gets no new requests, or undrain it. Returns False if it does not exist."""
        found = self.fleet.drain(instance, on)
        if found:
            self.drains.decide(instance, on)
        return found

    def add_instance(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> list[Target]:
        """Make an instance ready, with its models and the ranks that publish events. Returns its targets."""
        if (member := self.fleet.get(instance)) is None:
            return []
        for target in member.targets.values():  # the instance may return with fewer targets
            self._leave(target.id)
        self.peers.add(member.config)
        self.fleet.mark_ready(instance, cards, {source.rank for source in sources})
        if self.drains.drains(instance):
            self.fleet.drain(instance, True)
        streams = {source.rank: source for source in sources}
        for target in member.targets.values():
            self._index(target, streams.get(target.rank))
        return list(member.targets.values())

    def forget_cache(self, instance: str) -> bool:
        """Forget the cache contents of an instance whose weights changed. Returns False if it does not exist."""
        member = self.fleet.get(instance)
        for target in () if member is None else member.targets.values():
            self.indexer.clear(target.id)
            self.conversations.forget_answers(target.id)
        return member is not None

    def distrust(self, instance: str) -> Sequence[Target]:
        """Treat an instance as having no events until it is added again. Returns its targets."""
        member = self.fleet.get(instance)
        targets = [] if member is None else list(member.targets.values())
        for target in targets:
            self._index(target, None)
        return targets

    def remove_instance(self, instance: str) -> None:
        """Remove an instance and everything known about its caches."""
        if (member := self.fleet.get(instance)) is not None:
            for target in member.targets.values():
                self._leave(target.id)
                for forget in self.on_left:
                    forget(target.id)
        self.peers.remove(instance)
        self.fleet.leave(instance)

    def apply_metrics(self, instance: str, page: Mapping[int, Gauges], sent_at: float) -> None:
        """Apply an instance's metrics page (gauges by rank), requested at `sent_at`."""
        joined, left = self.fleet.apply_metrics(instance, page, sent_at)
        for target in joined:
            self._index(target, None)
        for target in left:
            self._leave(target.id)
        if (member := self.fleet.get(instance)) is not None:
            for target in member.targets.values():
                if (size := self.view_builder.block_tokens(target)) and target.capacity_tokens is not None:
                    gpu_blocks = page[target.rank].cache_blocks if target.rank in page else None
                    self.indexer.set_capacity(target.id, target.capacity_tokens // size, gpu_blocks)

    def _leave(self, target: TargetId) -> None:
        self.indexer.leave(target)
        self.conversations.forget_answers(target)

    def _index(self, target: Target, stream: EventEndpoint | None) -> None:
        target.events = stream
        self.indexer.join(
            target.id,
            target.instance.base or "",
            stream=stream is not None,
            replayable=stream is not None and stream.replay_endpoint is not None,
        )

    def block_sizes(self, model: str) -> frozenset[int]:
        """Return the block sizes for which a prompt of this model needs keys."""
        return self.view_builder.block_sizes(model)

    def hash_inputs(self, salt: str | None, served: ServedModel) -> HashInputs:
        """Return the inputs of the hashes that identify a prompt's blocks in the shared pool."""
        adapter = None if served.adapter is None else (served.adapter, self.fleet.model_path(served.adapter) or "")
        return HashInputs(served.base, self.fleet.model_path(served.base), adapter, salt)

    def admit(
        self,
        request: SchedulingRequest,
        *,
        excluding: Collection[str] = (),
        only: TargetId | None = None,
        splits: bool = False,
        prefilled: PrefillRecord | None = None,
    ) -> Ticket | None:
        """Choose a target by the policy of the request's record and book it; choose a pair if the request may be
        split (`splits`) and a pair pays. Returns None if no target can serve the request now. `prefilled` is an
        earlier prefill half whose KV has not been fetched yet.
        """
        record, prompt, known = request.record, request.prompt, request.known
        now = self._clock.now()
        self.fleet.on_arrival(now)
        policy = record.policy or self.selector.policy_set.policy
        candidates = self.view_builder.candidates(record, prompt.model, excluding, only, now)
        answering, feeding = self._by_role(candidates, pairs=splits and prefilled is None)
        if not answering:
            return None
        panic = not answering[0].breaker.allows(now, record.sender)  # then no breaker allows it
        blind = (known is None or not known.complete) and self._needs_cache(policy)
        last = self.conversations.last_answer(prompt, now) if blind else None
        narrows = last is None and len(answering) > SMALL and not self.peers
        listed = self._narrow(answering, policy, request, now) if narrows else answering
        estimates = self.view_builder.estimates(known, [*listed, *feeding], last)
        matched_at = now if known is None else self._clock.now()
        overlaps = {target: estimate.overlap for target, estimate in estimates.items()}
        rows = self._row_builder(policy, overlaps, now)
        view = self.view_builder.build(request, rows(listed), now, len(answering) - len(listed))
        choice = self._choose(view, policy, feeding, rows)
        ticket = self._book(request, choice, estimates, prefilled, now)
        if blind:
            ticket.conversation = self.conversations.identify(prompt)
        ticket.attempt.down = ticket.target.instance.is_slow
        ticket.attempt.panic = panic or ticket.attempt.down
        if known is not None:
            record.stages.match_ms = ticket.attempt.match_ms = (matched_at - now) * 1e3
        self.selector.picked(choice.answer)
        if choice.prefill is not None:
            self.selector.picked(choice.prefill)
        record.stages.decide_ms = ticket.attempt.decide_ms = (self._clock.now() - matched_at) * 1e3
        return ticket

    def _by_role(self, candidates: Sequence[Target], *, pairs: bool) -> tuple[Sequence[Target], Sequence[Target]]:
        """Return the candidates that can answer, and those that can only prefill for them: none unless `pairs`."""
        if not self.peers:
            return candidates, ()
        answering = [target for target in candidates if not self.peers.is_prefill_only(target)]
        return answering, [target for target in candidates if self.peers.is_prefill_only(target)] if pairs else ()

    def _choose(
        self, view: View, policy: Policy, feeding: Sequence[Target], rows: Callable[[Sequence[Target]], tuple[Row, ...]]
    ) -> PairChoice:
        if not feeding:
            return PairChoice(self.selector.choose(view, policy), None)
        return choose_pair(self.selector, policy, view, lambda id: rows(self.view_builder.peers_for(id, feeding)))

    def _narrow(
        self, candidates: Sequence[Target], policy: Policy, request: SchedulingRequest, now: float
    ) -> Sequence[Target]:
        """Return the few `candidates` that can win, or all candidates if this cannot be determined."""
        orders = merge_orders(self.selector.policy_set.orders, policy.orders)  # shadows read the same view
        few = None if orders is None else self.view_builder.shortlist(orders, candidates, request, now)
        return candidates if few is None else few

    def _row_builder(
        self, policy: Policy, overlaps: Mapping[TargetId, Overlap | None], now: float
    ) -> Callable[[Sequence[Target]], tuple[Row, ...]]:
        """Return a function from targets to rows. Rows are reused by later decisions, and shadows read the view of
        the deciding policy, so the rows contain everything that any active policy needs, not only `policy`.
        """
        count_held = self.view_builder.held_tokens if self._needs_cache(policy) else None
        return lambda targets: self.fleet.row_cache.rows(targets, overlaps, now, count_held)

    def _needs_cache(self, policy: Policy) -> bool:
        return self.selector.policy_set.needs_cache or policy.needs_cache

    def assign_policy(self, record: Record, unit: bytes | None) -> None:
        """Set the policy that decides all attempts at a request. `unit` is None outside of an experiment."""
        policy_set = self.selector.policy_set
        record.policy = policy_set.policy
        if unit is None or policy_set.experiment is None:
            return
        record.unit = unit
        record.arm, record.policy = policy_set.assign(unit)
        if self.experiment is not None:
            self.experiment.begin_request(record.arm, unit, record)

    def on_ttft(self, record: Record) -> None:
        """Notify the experiment that the answer to a request has begun, after `record.ttft_ms`."""
        if self.experiment is not None and record.arm is not None:
            self.experiment.first_byte(record)

    def complete(self, record: Record) -> None:
        """Evaluate shadows and count a request in the experiment, after it has ended and its record is complete."""
        if self.selector.shadows and record.attempts:
            record.shadows = self.selector.evaluate_shadows(record.attempts[0].decision)
        if self.experiment is not None and record.arm is not None:
            self.experiment.end_request(record)

    def settle_prefill(self, ticket: Ticket, end: LegEnd, status: int | None = None, usage: Usage = NO_USAGE) -> None:
        """Settle a pair's prefill half, which ended with `end`. Only the first call has an effect."""
        half = ticket.prefill
        if half is None or half.leg.end != "running":
            return
        now = self._clock.now()
        leg, instance = half.leg, half.target.instance.id
        leg.end, leg.cached_tokens = end, usage.cached_tokens
        leg.duration_ms = duration_ms = (now - ticket.sent_at) * 1e3
        half.booking.release()
        half.target.breaker.on_request_end(judge_end(end, status), now, ticket.record.sender)
        if end in ENGINE_IN_DOUBT:
            self.peers.forget_engine_ids(instance)
        if half.sent_prompt is not None:
            (self.indexer.on_first_byte if end == "ok" else self.indexer.on_failure)(half.sent_prompt)
        ttft_ms = duration_ms if end == "ok" else None  # the answer of a prefill half is one token long
        if end == "ok":
            half.target.instance.delivered = True
        if end == "ok" and not ticket.record.several_answers:
            self.learn(half, ticket.pool_hit, usage, ttft_ms, ticket.sent_at, now)
        if leg.decision.learners:
            self.selector.finished(leg.decision, build_outcome(end, status, ttft_ms, duration_ms, usage))

    def on_first_byte(self, ticket: Ticket) -> None:
        """Record that the engine began to answer with `ticket.status`: its prefill for this request is over."""
        ticket.ttft_ms = (self._clock.now() - ticket.sent_at) * 1e3
        ticket.booking.on_first_byte()
        if ticket.sent_prompt is not None and ticket.has_prefilled:
            self.indexer.on_first_byte(ticket.sent_prompt)

    def settle(self, ticket: Ticket) -> None:
        """Settle an attempt, however it ended: release all its bookings, once, and learn from its outcome."""
        self.settle_prefill(ticket, "client_gone" if ticket.end == "client_gone" else "cancelled")
        if not ticket.booking.release():
            return
        if ticket.prefill is not None and ticket.status is not None and ticket.status >= 500:
            self.peers.forget_engine_ids(ticket.prefill.target.instance.id)  # the peer may have had another engine id
        now = self._clock.now()
        record, attempt = ticket.record, ticket.attempt
        attempt.end = ticket.end
        attempt.duration_ms = duration_ms = (now - ticket.sent_at) * 1e3
        ticket.target.breaker.on_request_end(judge_end(ticket.end, ticket.status), now, record.sender)
        if ticket.sent_prompt is not None and not ticket.has_prefilled:
            self.indexer.on_failure(ticket.sent_prompt)
        usage = Usage(record.prompt_tokens, record.cached_tokens, record.output_tokens)
        for follow in self.on_settled:
            follow(ticket, usage)
        alone = ticket.end == "ok" and not record.several_answers  # else counts are of another answer or of all
        alone = alone and attempt.continued_tokens is None  # else the counts are of several engines
        if alone and attempt.prefill is None:  # else another target did the prefill
            # Only a stream shows the prefill time: any other answer begins after its last token.
            ttft_ms = ticket.ttft_ms if record.stream else None
            self.learn(ticket, ticket.pool_hit, usage, ttft_ms, ticket.sent_at, now)
            if ticket.sent_prompt is not None and ticket.sent_prompt.late is not None and usage.cached_tokens:
                self.indexer.missed.on_answer(ticket.sent_prompt.late, usage.cached_tokens)
        if alone and ticket.conversation is not None and usage.prompt_tokens is not None:
            tokens = usage.prompt_tokens + (usage.output_tokens or 0)
            self.conversations.on_answer(ticket.conversation, ticket.target.id, tokens, now)
        if ticket.end == "ok" and usage.output_tokens is not None:
            self.fleet.answer_lengths.observe(record.model, usage.output_tokens)
        if ticket.end == "ok":
            self.selector.on_answer(attempt.decision.view, record.tool_call, now)
        if alone and record.stream and ticket.ttft_ms is not None and usage.output_tokens is not None:
            ticket.target.observe_decode(ticket.booking, usage.output_tokens, ticket.ttft_ms, duration_ms, now)
        if attempt.decision.learners:
            outcome = build_outcome(ticket.end, ticket.status, ticket.ttft_ms, duration_ms, usage)
            self.selector.finished(attempt.decision, outcome)

    def learn(
        self,
        part: TargetBooking,
        pool_hit: PoolHit | None,
        usage: Usage,
        ttft_ms: float | None,
        sent_at: float,
        now: float,
    ) -> None:
        """Learn from the complete answer to a part of a request, or to a preload; see `learn_from_answer`."""
        learn_from_answer(part, pool_hit, usage, ttft_ms, sent_at, now, self.indexer, shared_pool=self.shared_pool)

    def report_load(self, target: TargetId) -> None:
        """Do nothing: this router has one process, so there are no other workers to notify of bookings."""

    def remember_response(self, response_id: str, target: TargetId, tenant: str = "") -> None:
        """Remember which target stores a response of `tenant` (empty if clients need not identify themselves)."""
        self._responses.put(StoredResponse(response_id, target, tenant))

    def responses(self) -> list[StoredResponse]:
        """Return all remembered responses, the oldest first."""
        return self._responses.all()

    def response_target(self, response_id: str) -> TargetId | None:
        """Return the target that stores the response; None if the response is unknown or its target has left."""
        target = self._responses.target(response_id)
        return target if target is not None and self.fleet.target(target) is not None else None

    def _book(
        self,
        request: SchedulingRequest,
        choice: PairChoice,
        estimates: Mapping[TargetId, OverlapEstimate],
        prefilled: PrefillRecord | None,
        now: float,
    ) -> Ticket:
        """Book the choice. If KV is handed over, the answering target's booking has context but no prefill work."""
        record, known, pool_hit = request.record, request.known, request.pool_hit
        tokens = len(known.ids) if known is not None else len(request.prompt.body) // BYTES_PER_TOKEN
        half = None
        if choice.prefill is not None:
            estimate = estimates.get(TargetId(choice.prefill.target))
            prefilled = PrefillRecord(choice.prefill, *predicted_tokens(estimate))
            uncached = uncached_tokens(tokens, estimate, pool_hit)
            half = PrefillBooking(*self._take(choice.prefill, known, estimate, tokens, uncached, now), leg=prefilled)
        estimate = estimates.get(TargetId(choice.answer.target))
        predicted, expected = predicted_tokens(estimate)
        pool_tokens = None if pool_hit is None or expected is None else max(0, pool_hit.tokens - expected)
        attempt = Attempt(choice.answer, predicted, expected, pool_tokens, prefill=prefilled)
        attempt.start_ms = (now - record.arrived_s) * 1e3
        record.attempts.append(attempt)
        uncached = 0 if prefilled is not None else uncached_tokens(tokens, estimate, pool_hit)
        share = self._take(choice.answer, known, estimate, tokens, uncached, now)
        return Ticket(*share, record=record, attempt=attempt, sent_at=now, pool_hit=pool_hit, prefill=half)

    def _take(
        self,
        decision: Decision,
        known: TokenizedPrompt | None,
        estimate: OverlapEstimate | None,
        tokens: int,
        uncached: int,
        now: float,
    ) -> tuple[Target, Booking, OverlapEstimate | None, SentPrompt | None]:
        """Book the chosen target for a prompt of `tokens`, and add the prompt to what it is expected to hold."""
        target = self.fleet.target(TargetId(decision.target))
        assert target is not None, "candidates belong to the fleet"
        sent = self.indexer.add_sent(target.id, known, estimate) if known is not None and estimate is not None else None
        target.breaker.on_request_sent(now)
        booking = target.book(uncached, tokens) if known is None else target.book(uncached, tokens, known.keys)
        if known is not None and not self.shared_pool:  # a shared pool retains what engines evict
            self.working_sets.add(target.instance, known, now)
        return target, booking, estimate, sent
