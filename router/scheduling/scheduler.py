"""The router without a network: two lines of calls meet here and nowhere else.

    engines   joined, left, polled                   -> who is there and how busy
    requests  admit -> first_byte -> settle          -> who gets it, and what became of it

(What engines say of their caches goes to `knowledge`, which implements the event feeds' `Hearing`.) Everything runs in
turns of one event loop and returns at once, so there are no locks: `admit` chooses *and* books in one turn, and no two
requests ever decide on the same picture of the load. Time comes from the clock given; nothing here waits or sends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from router.clock import Clock
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import ServedModel, Target
from router.fleet.load import Booking
from router.kvcache.events import TargetId
from router.kvcache.indexer import KvIndexer, SentPrompt
from router.kvcache.overlap_estimate import OverlapEstimate
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.prompt.prompt import Prompt
from router.prompt.usage import Usage
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.feedback import learn_from_answer
from router.scheduling.pair import PairChoice, choose_pair
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Orders, Policy, merge_orders
from router.scheduling.policy.record import Attempt, LegEnd, PrefillRecord, Record
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.selector import Selector
from router.scheduling.shortlist import SMALL
from router.scheduling.ticket import PrefillBooking, Ticket, build_outcome, judge_end
from router.scheduling.view_builder import ViewBuilder
from scorers.contract import Overlap, PoolHit

BYTES_PER_TOKEN = 4  # for the books alone, where a prompt could not be tokenised: better a guess than nothing
UNTOLD = Usage(None, None, None)
ENGINE_IN_DOUBT = frozenset(("connect", "died", "failed"))  # ends after which another process may answer there


class Scheduler:
    def __init__(
        self,
        fleet: Fleet,
        knowledge: KvIndexer,
        desk: Selector,
        clock: Clock,
        responses_kept: int,
        *,
        shared_pool: bool = False,
        secret: int = 0,
    ) -> None:
        self.fleet = fleet
        self.indexer = knowledge
        self.selector = desk
        self._clock = clock
        self._made_by: OrderedDict[str, TargetId] = OrderedDict()
        self._responses_kept = responses_kept
        self._shared_pool = shared_pool  # engines may find a prompt there that none of them holds
        self.peers = PrefillPeers()
        self.experiment: RunningExperiment | None = None  # the experiment's numbers; None: there is none
        self.view_builder = ViewBuilder(fleet, knowledge, self.peers, desk, secret)
        self.swap(desk.policy_set)

    # the operator

    def swap(self, regime: PolicySet) -> None:
        """From now on `regime` decides. An experiment that goes on keeps its numbers."""
        before = self.selector.policy_set
        self.selector.swap(regime)
        if regime.experiment is None:
            self.experiment = None
        elif (
            self.experiment is None
            or regime.experiment != before.experiment
            or regime.arm_digests != before.arm_digests
        ):
            self.experiment = RunningExperiment(regime.experiment)
        if self.experiment is not None:
            for arm in regime.rolled_back:
                self.experiment.exclude_arm(arm, "it was rolled back")

    def drain(self, instance: str, on: bool) -> bool:
        """It finishes what it has and gets nothing new, or gets requests again. False: nobody of that id."""
        return self.fleet.drain(instance, on)

    # engines

    def add_instance(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> list[Target]:
        """An instance told what it serves and which ranks publish events: from now on its targets may be chosen."""
        if (member := self.fleet.get(instance)) is None:
            return []
        for target in member.targets.values():  # perhaps it comes back with fewer
            self.indexer.leave(target.id)
        self.peers.add(member.config)
        self.fleet.mark_ready(instance, cards, {source.rank for source in sources})
        streams = {source.rank: source for source in sources}
        for target in member.targets.values():
            self._meet(target, streams.get(target.rank))
        return list(member.targets.values())

    def remove_instance(self, instance: str) -> None:
        if (member := self.fleet.get(instance)) is not None:
            for target in member.targets.values():
                self.indexer.leave(target.id)
        self.peers.remove(instance)
        self.fleet.leave(instance)

    def apply_metrics(self, instance: str, page: Mapping[int, Gauges], sent_at: float) -> None:
        """An instance's metrics page, by rank."""
        for target in self.fleet.apply_metrics(instance, page, sent_at):
            self._meet(target, None)
        if (member := self.fleet.get(instance)) is not None:
            for target in member.targets.values():
                if (size := self.view_builder.block_tokens(target)) and target.capacity_tokens is not None:
                    self.indexer.set_capacity(target.id, target.capacity_tokens // size)

    def _meet(self, target: Target, stream: EventEndpoint | None) -> None:
        self.indexer.join(
            target.id,
            target.instance.base or "",
            stream=stream is not None,
            replayable=stream is not None and stream.replay_endpoint is not None,
        )

    # requests

    def block_sizes(self, model: str) -> frozenset[int]:
        """The block sizes for which a prompt of this model needs keys."""
        return self.view_builder.block_sizes(model)

    def hash_inputs(self, prompt: Prompt, served: ServedModel) -> HashInputs:
        """What the shared pool is asked about this prompt with."""
        adapter = None if served.adapter is None else (served.adapter, self.fleet.model_path(served.adapter) or "")
        return HashInputs(served.base, self.fleet.model_path(served.base), adapter, prompt.salt)

    def admit(
        self,
        record: Record,
        prompt: Prompt,
        served: ServedModel | None,
        known: TokenizedPrompt | None,
        pooled: PoolHit | None = None,
        *,
        excluding: Collection[str] = (),
        only: TargetId | None = None,
        splits: bool = False,
        handed: PrefillRecord | None = None,
    ) -> Ticket | None:
        """Choose a target and book it, in one go; two of them where the request `splits` and that pays. None: nobody
        is left who could serve this now. `handed`: an earlier prefill half whose KV still waits to be fetched.
        `record.policy` decides.
        """
        now = self._clock.now()
        self.fleet.on_arrival(now)
        policy = record.policy or self.selector.policy_set.policy
        candidates = self.view_builder.candidates(record, prompt.model, excluding, only, now)
        answering = (
            [target for target in candidates if not self.peers.is_prefill_only(target)] if self.peers else candidates
        )
        if not answering:
            return None
        feeding = (
            [target for target in candidates if self.peers.is_prefill_only(target)] if splits and handed is None else []
        )
        seen = answering
        if len(answering) > SMALL and not self.peers and (orders := self._orders(policy)) is not None:
            few = self.view_builder.shortlist(orders, answering, prompt, known, pooled, record.number, now)
            seen = answering if few is None else few
        beliefs: Mapping[TargetId, OverlapEstimate] = {}
        overlaps: Mapping[TargetId, Overlap | None] = {}
        matched_at = now
        if known is not None:
            beliefs = self.view_builder.estimates(known, [*seen, *feeding])
            overlaps = {target: belief.overlap for target, belief in beliefs.items()}
            matched_at = self._clock.now()
            record.stages.match_ms = (matched_at - now) * 1e3
        # Rows are kept between decisions, and shadows see the view of whoever decided: so what any of them needs
        # counts, not this policy alone.
        looks_at_caches = self.selector.policy_set.needs_cache or policy.needs_cache
        board = self.fleet.row_cache
        held = self.view_builder.held_tokens if looks_at_caches else None
        rows, others = board.rows(seen, overlaps, now, held), len(answering) - len(seen)
        view = self.view_builder.build(record, prompt, served, known, pooled, rows, now, others)
        if feeding:
            choice = choose_pair(
                self.selector,
                policy,
                view,
                lambda id: board.rows(self.view_builder.peers_for(id, feeding), overlaps, now, held),
            )
        else:
            choice = PairChoice(self.selector.choose(view, policy), None)
        ticket = self._book(record, prompt, known, choice, beliefs, handed, now)
        self.selector.picked(choice.answer)
        if choice.prefill is not None:
            self.selector.picked(choice.prefill)
        record.stages.decide_ms = (self._clock.now() - matched_at) * 1e3
        return ticket

    def assign_policy(self, record: Record, unit: bytes | None) -> None:
        """A request is about to be placed: what decides for it to its end. `unit` None: outside of an experiment."""
        regime = self.selector.policy_set
        record.policy = regime.policy
        if unit is None or regime.experiment is None:
            return
        record.unit = unit
        record.arm, record.policy = regime.assign(unit)
        if self.experiment is not None:
            self.experiment.begin_request(record.arm, unit, record)

    def complete(self, record: Record) -> None:
        """The request has left and its record is complete: shadows look on, the experiment counts."""
        if self.selector.shadows and record.attempts:
            record.shadows = self.selector.evaluate_shadows(record.attempts[0].decision)
        if self.experiment is not None and record.arm is not None:
            self.experiment.end_request(record)

    def explain(
        self,
        record: Record,
        prompt: Prompt,
        served: ServedModel | None,
        known: TokenizedPrompt | None,
        only: TargetId | None = None,
    ) -> Decision | None:
        """What `admit` would choose now, for the whole of a request and without the pool. Nothing is booked, counted or
        learned. None: nobody could serve it.
        """
        now = self._clock.now()
        candidates = self.view_builder.candidates(record, prompt.model, (), only, now)
        answering = [target for target in candidates if not self.peers.is_prefill_only(target)]
        if not answering:
            return None
        overlaps = {target: belief.overlap for target, belief in self.view_builder.estimates(known, answering).items()}
        candidates_now = self.fleet.row_cache.rows(answering, overlaps, now, self.view_builder.held_tokens)
        view = self.view_builder.build(record, prompt, served, known, None, candidates_now, now)
        return self.selector.explain(view, record.policy or self.selector.policy_set.policy)

    def settle_prefill(self, ticket: Ticket, end: LegEnd, status: int | None = None, usage: Usage = UNTOLD) -> None:
        """A pair's prefill half is over. Only the first call counts."""
        half = ticket.prefill
        if half is None or half.leg.end != "running":
            return
        now = self._clock.now()
        leg, instance = half.leg, half.target.instance.id
        leg.end, leg.cached_tokens = end, usage.cached_tokens
        leg.duration_ms = duration_ms = (now - ticket.sent_at) * 1e3
        half.booking.release()
        half.target.breaker.on_request_end(judge_end(end, status), now)
        if end in ENGINE_IN_DOUBT:
            self.peers.forget_engine_ids(instance)
        if half.sent_prompt is not None:
            (self.indexer.on_first_byte if end == "ok" else self.indexer.on_failure)(half.sent_prompt)
        ttft_ms = duration_ms if end == "ok" else None  # its one token is its whole answer
        if end == "ok":
            learn_from_answer(half, ticket.pool_hit, usage, ttft_ms, now, shared_pool=self._shared_pool)
        if leg.decision.learners:
            self.selector.finished(leg.decision, build_outcome(end, status, ttft_ms, duration_ms, usage))

    def on_first_byte(self, ticket: Ticket) -> None:
        """The engine has begun to answer, with `ticket.status`: its prefill for this request is over."""
        ticket.ttft_ms = (self._clock.now() - ticket.sent_at) * 1e3
        ticket.booking.on_first_byte()
        if ticket.sent_prompt is not None and ticket.has_prefilled:
            self.indexer.on_first_byte(ticket.sent_prompt)

    def settle(self, ticket: Ticket) -> None:
        """The request's time at this target is over, however it ended. Everything taken is given back, once."""
        self.settle_prefill(ticket, "client_gone" if ticket.end == "client_gone" else "cancelled")
        if not ticket.booking.release():
            return
        if ticket.prefill is not None and ticket.status is not None and ticket.status >= 500:
            self.peers.forget_engine_ids(
                ticket.prefill.target.instance.id
            )  # what it fetched from may have had another name
        now = self._clock.now()
        record, attempt = ticket.record, ticket.attempt
        attempt.end = ticket.end
        ticket.target.breaker.on_request_end(judge_end(ticket.end, ticket.status), now)
        if ticket.sent_prompt is not None and not ticket.has_prefilled:
            self.indexer.on_failure(ticket.sent_prompt)
        usage = Usage(record.prompt_tokens, record.cached_tokens, record.output_tokens)
        if ticket.end == "ok" and attempt.prefill is None:  # what was handed over says nothing of the target itself
            # Only a stream shows its prefill: the first byte of any other answer is the end of its last token.
            ttft_ms = ticket.ttft_ms if record.stream else None
            learn_from_answer(ticket, ticket.pool_hit, usage, ttft_ms, now, shared_pool=self._shared_pool)
        if ticket.end == "ok" and usage.output_tokens is not None:
            self.fleet.answer_lengths.observe(record.model, usage.output_tokens)
        if ticket.end == "ok" and record.stream and ticket.ttft_ms is not None and usage.output_tokens is not None:
            duration_ms = (now - ticket.sent_at) * 1e3
            ticket.target.observe_decode(ticket.booking, usage.output_tokens, ticket.ttft_ms, duration_ms, now)
        if attempt.decision.learners:
            duration_ms = (now - ticket.sent_at) * 1e3
            outcome = build_outcome(ticket.end, ticket.status, ticket.ttft_ms, duration_ms, usage)
            self.selector.finished(attempt.decision, outcome)

    def remember_response(self, response_id: str, target: TargetId) -> None:
        """Responses are state of the engine that made them."""
        self._made_by[response_id] = target
        if len(self._made_by) > self._responses_kept:
            self._made_by.popitem(last=False)

    def responses(self) -> list[tuple[str, TargetId]]:
        """All that are remembered, the oldest first."""
        return list(self._made_by.items())

    def response_target(self, response_id: str) -> TargetId | None:
        """None: nobody who is here, as far as we remember."""
        target = self._made_by.get(response_id)
        return target if target is not None and self.fleet.target(target) is not None else None

    # parts of the above

    def _orders(self, policy: Policy) -> Orders | None:
        """What may settle this choice: shadows see the view of whoever decides, so theirs counts, too."""
        regime = self.selector.policy_set
        return merge_orders(regime.orders, policy.orders)

    def _book(
        self,
        record: Record,
        prompt: Prompt,
        known: TokenizedPrompt | None,
        choice: PairChoice,
        beliefs: Mapping[TargetId, OverlapEstimate],
        handed: PrefillRecord | None,
        now: float,
    ) -> Ticket:
        """Where KV is handed over, the prefill target has all the work; the answering one only holds the context."""
        tokens = len(known.ids) if known is not None else len(prompt.body) // BYTES_PER_TOKEN
        pooled = choice.answer.view.pool
        half = None
        if choice.prefill is not None:
            belief = beliefs.get(TargetId(choice.prefill.target))
            handed = PrefillRecord(choice.prefill, *_predicted(belief))
            share = self._take(choice.prefill, known, belief, tokens, _to_compute(tokens, belief, pooled))
            half = PrefillBooking(*share, leg=handed)
        belief = beliefs.get(TargetId(choice.answer.target))
        promised, expected = _predicted(belief)
        beyond = None if pooled is None or expected is None else max(0, pooled.tokens - expected)
        attempt = Attempt(choice.answer, promised, expected, beyond, prefill=handed)
        record.attempts.append(attempt)
        uncached = 0 if handed is not None else _to_compute(tokens, belief, pooled)
        share = self._take(choice.answer, known, belief, tokens, uncached)
        return Ticket(*share, record=record, attempt=attempt, sent_at=now, pool_hit=pooled, prefill=half)

    def _take(
        self,
        decision: Decision,
        known: TokenizedPrompt | None,
        belief: OverlapEstimate | None,
        tokens: int,
        uncached: int,
    ) -> tuple[Target, Booking, OverlapEstimate | None, SentPrompt | None]:
        """Books the chosen target for a prompt of `tokens`, and expects it to hold that soon."""
        target = self.fleet.target(TargetId(decision.target))
        assert target is not None, "candidates are of the fleet"
        sent = self.indexer.add_sent(target.id, known, belief) if known is not None and belief is not None else None
        return target, target.book(uncached, tokens), belief, sent


def _predicted(belief: OverlapEstimate | None) -> tuple[int | None, int | None]:
    """What the index promised of a target, and the same with what was just sent there."""
    if belief is None:
        return None, None
    return belief.indexed_tokens, None if belief.overlap is None else belief.overlap.expected_tokens


def _to_compute(tokens: int, belief: OverlapEstimate | None, pooled: PoolHit | None) -> int:
    """What is left of a prompt for a target. An engine loads whatever the pool has, cheap or not."""
    overlap = belief.overlap if belief is not None else None
    held = max(overlap.expected_tokens, overlap.disk_tokens) if overlap is not None else 0
    return tokens - max(held, pooled.tokens if pooled is not None else 0)
