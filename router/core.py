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
from dataclasses import dataclass

from router.blocks.events import Key, TargetId
from router.blocks.knowledge import Belief, Knowledge, Sent
from router.blocks.known import Known
from router.clock import Clock
from router.decide.desk import Desk
from router.decide.record import Attempt, Decision, Record
from router.engines.base import Card, EventEndpoint, Gauges
from router.fleet.breaker import Verdict, verdict
from router.fleet.instances import Fleet, Served
from router.fleet.load import Booking
from router.fleet.target import Target
from router.fleet.view import rows
from router.prompt.prompt import Prompt
from scorers.contract import Outcome, Row, View

BYTES_PER_TOKEN = 4  # for the books alone, where a prompt could not be tokenised: better a guess than nothing


@dataclass(slots=True)
class Ticket:
    """The booking of load that one choice makes; `Core.settle` gives it back exactly once.

    The line fills in `end` (a word of `Attempt.end`), `status`, and through the record what the engine counted.
    """

    record: Record
    attempt: Attempt
    target: Target
    booking: Booking
    belief: Belief | None
    sent: Sent | None
    sent_at: float
    end: str = "client_gone"  # what it is when the line is cut without a word
    status: int | None = None
    ttft_ms: float | None = None

    @property
    def prefilled(self) -> bool:
        """The engine has computed the prompt. One that it refused left nothing in its cache."""
        return self.ttft_ms is not None and self.status is not None and self.status < 400


class Core:
    def __init__(self, fleet: Fleet, knowledge: Knowledge, desk: Desk, clock: Clock, responses_kept: int) -> None:
        self.fleet = fleet
        self.knowledge = knowledge
        self.desk = desk
        self._clock = clock
        self._made_by: OrderedDict[str, TargetId] = OrderedDict()
        self._responses_kept = responses_kept

    # engines

    def joined(self, instance: str, cards: Sequence[Card], sources: Sequence[EventEndpoint]) -> list[Target]:
        """An instance told what it serves and which ranks publish events: from now on its targets may be chosen."""
        if (member := self.fleet.get(instance)) is None:
            return []
        for target in member.targets.values():  # perhaps it comes back with fewer
            self.knowledge.leave(target.id)
        self.fleet.learned(instance, cards, {source.rank for source in sources})
        streams = {source.rank: source for source in sources}
        for target in member.targets.values():
            self._meet(target, streams.get(target.rank))
        return list(member.targets.values())

    def left(self, instance: str) -> None:
        if (member := self.fleet.get(instance)) is not None:
            for target in member.targets.values():
                self.knowledge.leave(target.id)
        self.fleet.leave(instance)

    def polled(self, instance: str, page: Mapping[int, Gauges], sent_at: float) -> None:
        """An instance's metrics page, by rank."""
        for target in self.fleet.polled(instance, page, sent_at):
            self._meet(target, None)
        if (member := self.fleet.get(instance)) is not None:
            for target in member.targets.values():
                if (size := self._block_tokens(target)) and target.capacity_tokens is not None:
                    self.knowledge.holds_at_most(target.id, target.capacity_tokens // size)

    def _meet(self, target: Target, stream: EventEndpoint | None) -> None:
        self.knowledge.join(
            target.id,
            target.instance.base or "",
            stream=stream is not None,
            replayable=stream is not None and stream.replay_endpoint is not None,
        )

    # requests

    def block_sizes(self, model: str) -> frozenset[int]:
        """The block sizes for which a prompt of this model needs keys."""
        sizes = (self._block_tokens(target) for target in self.fleet.serving(model))
        return frozenset(size for size in sizes if size)

    def admit(
        self,
        record: Record,
        prompt: Prompt,
        served: Served | None,
        known: Known | None,
        *,
        excluding: Collection[str] = (),
        only: TargetId | None = None,
    ) -> Ticket | None:
        """Choose a target and book it, in one go. None: nobody is left who could serve this now."""
        now = self._clock.now()
        self.fleet.arrived(now)
        candidates = self.fleet.candidates(prompt.model, excluding, now)
        if only is not None:
            candidates = [target for target in candidates if target.id == only]
        if not candidates:
            return None
        beliefs = self._beliefs(known, candidates)
        overlaps = {target: belief.overlap for target, belief in beliefs.items()}
        matched_at = self._clock.now()
        decision = self.desk.decide(self._view(record, prompt, served, known, rows(candidates, overlaps, now), now))
        chosen = decision.target
        target = next(target for target in candidates if target.id == chosen)
        ticket = self._book(record, prompt, known, decision, target, beliefs.get(target.id), now)
        self.desk.picked(decision)
        record.stages.match_ms = (matched_at - now) * 1e3
        record.stages.decide_ms = (self._clock.now() - matched_at) * 1e3
        return ticket

    def first_byte(self, ticket: Ticket) -> None:
        """The engine has begun to answer, with `ticket.status`: its prefill for this request is over."""
        ticket.ttft_ms = (self._clock.now() - ticket.sent_at) * 1e3
        ticket.booking.first_byte()
        if ticket.sent is not None and ticket.prefilled:
            self.knowledge.began(ticket.sent)

    def settle(self, ticket: Ticket) -> None:
        """The request's time at this target is over, however it ended. Everything taken is given back, once."""
        if not ticket.booking.release():
            return
        now = self._clock.now()
        ticket.attempt.end = ticket.end
        ticket.target.breaker.ended(_verdict(ticket), now)
        if ticket.sent is not None and not ticket.prefilled:
            self.knowledge.failed(ticket.sent)
        if ticket.end == "ok":
            self._learn(ticket, now)
        if ticket.attempt.decision.learners:
            self.desk.finished(ticket.attempt.decision, _outcome(ticket, now))

    def remember_response(self, response_id: str, target: TargetId) -> None:
        """Responses are state of the engine that made them."""
        self._made_by[response_id] = target
        if len(self._made_by) > self._responses_kept:
            self._made_by.popitem(last=False)

    def made_by(self, response_id: str) -> TargetId | None:
        """None: nobody who is here, as far as we remember."""
        target = self._made_by.get(response_id)
        return target if target is not None and self.fleet.target(target) is not None else None

    # parts of the above

    def _block_tokens(self, target: Target) -> int | None:
        """Its events' word wins over its metrics page's: that one may be the size of something else (protocol 5)."""
        told = self.knowledge.block_tokens(target.id)
        if told is not None:
            target.block_tokens = told
        return target.block_tokens

    def _beliefs(self, known: Known | None, candidates: Sequence[Target]) -> dict[TargetId, Belief]:
        if known is None or not known.keys:
            return {}
        sizes = {target.id: self._block_tokens(target) for target in candidates}
        distrusted = frozenset(target.id for target in candidates if not target.trust.trusted)
        return self.knowledge.beliefs(known, sizes, distrusted)

    def _view(
        self,
        record: Record,
        prompt: Prompt,
        served: Served | None,
        known: Known | None,
        candidates: tuple[Row, ...],
        now: float,
    ) -> View:
        """`seed`, `turn` and `last_target` are the desk's to fill in."""
        prefixes = prefix_keys(known)
        return View(
            number=record.number,
            seed=0,
            model=served.base if served is not None else "",
            adapter=served.adapter if served is not None else None,
            prompt_tokens=len(known.ids) if known is not None and known.complete else None,
            prefix=prefixes[0] if prefixes else None,
            session=prompt.session,
            last_target=None,
            pool=None,
            busy=self.fleet.busy,
            rows=candidates,
            now_s=now,
            prefixes=prefixes,
        )

    def _book(
        self,
        record: Record,
        prompt: Prompt,
        known: Known | None,
        decision: Decision,
        target: Target,
        belief: Belief | None,
        now: float,
    ) -> Ticket:
        overlap = belief.overlap if belief is not None else None
        promised = belief.promised_tokens if belief is not None else None
        attempt = Attempt(decision, promised, overlap.expected_tokens if overlap is not None else None)
        record.attempts.append(attempt)
        tokens = len(known.ids) if known is not None else len(prompt.body) // BYTES_PER_TOKEN
        cached_tokens = max(overlap.expected_tokens, overlap.disk_tokens) if overlap is not None else 0
        booking = target.book(tokens - cached_tokens, tokens)
        sent = self.knowledge.sent(target.id, known, belief) if known is not None and belief is not None else None
        return Ticket(record, attempt, target, booking, belief, sent, now)

    def _learn(self, ticket: Ticket, now: float) -> None:
        """From an answer that came whole: was the promise kept, and how fast was the prefill?

        Only a stream shows its prefill: the first byte of any other answer is the end of its last token.
        """
        record, belief, target = ticket.record, ticket.belief, ticket.target
        if belief is not None and belief.promised_tokens is not None and belief.block_tokens is not None:
            target.trust.observe(belief.promised_tokens, record.cached_tokens, belief.block_tokens)
        if not record.stream or ticket.ttft_ms is None or record.prompt_tokens is None or record.cached_tokens is None:
            return
        overlap = belief.overlap if belief is not None else None
        if overlap is not None and overlap.disk_tokens > overlap.gpu_tokens:  # loading it took time too
            return
        target.showed(ticket.booking, record.prompt_tokens, record.cached_tokens, ticket.ttft_ms, now)


def _verdict(ticket: Ticket) -> Verdict:
    """What an end says of the engine. The client's leaving and our own deadline say nothing; nor does a full queue."""
    if ticket.end in ("client_gone", "deadline", "busy"):
        return "neutral"
    return verdict(ticket.status if ticket.end == "ok" else None)


def _outcome(ticket: Ticket, now: float) -> Outcome:
    record = ticket.record
    return Outcome(
        ok=ticket.end == "ok" and ticket.status is not None and ticket.status < 500,
        status=ticket.status,
        ttft_ms=ticket.ttft_ms,
        duration_ms=(now - ticket.sent_at) * 1e3,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
    )


def prefix_keys(known: Known | None) -> tuple[Key, ...]:
    """Stable names for "prompts that begin alike": the keys of blocks 1, 2, 4, 8, ... in the smallest size in use."""
    if known is None or not known.keys:
        return ()
    keys = known.keys[min(known.keys)]
    return tuple(keys[(1 << i) - 1] for i in range(len(keys).bit_length()))
