"""The core as stories, with the real fleet, knowledge, desk and policies; only time is ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config import schema
from router.config.sections.listeners import LimitsConfig
from router.control.core import build_scheduler
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.instance import Target
from router.kvcache.event_sequencer import UNANNOUNCED
from router.kvcache.events import Key, TargetId, Tier
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.policy.record_view import describe_record
from router.scheduling.scheduler import Scheduler, Ticket
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.view_builder import prefix_keys
from scorers.best import Best
from scorers.contract import Outcome, Row, Scorer, Unit, View
from tests.fakes.caches import RING, Cache, prompt_of

MODEL = ModelCard("m", "/models/m", None, 8192)
LORA = ModelCard("lora", "/loras/lora", "m", None)
IDS = list(range(100, 140))  # 40 tokens: 10 blocks of 4, of which 9 can be used
KNOWN = prompt_of(IDS)


@cache
def policy(*scorers: str) -> Policy:
    """`name` or `name:weight`."""
    named = [name.partition(":") for name in scorers]
    spec = {"scorers": [{"name": name, "weight": float(weight or 1)} for name, _, weight in named]}
    return build_policy("test", schema.PolicyConfig.model_validate(spec))


def page(block_tokens: int | None = 4, capacity_tokens: int | None = 400, running: int = 0, waiting: int = 0) -> Gauges:
    return Gauges(running, waiting, 0.1, block_tokens, capacity_tokens, None, None)


class House:
    """A core with instances `a`, `b`, ... of one rank each."""

    def __init__(self, *scorers: str, count: int = 3, stream: bool = True) -> None:
        self.clock = ManualClock(1000.0, wall=1000.0)
        limits = LimitsConfig(responses_kept=3)
        config = schema.Config(seed=1, limits=limits)
        deciding = policy(*(scorers or ("prefix_overlap", "queue_depth:0.5")))
        self.core: Scheduler = build_scheduler(
            config, PolicySet({deciding.name: deciding}, deciding.name), RING, self.clock
        )
        self.caches: dict[str, Cache] = {}
        for name in "abcdefgh"[:count]:
            self.join(name, ranks=[0] if stream else [])

    def join(self, name: str, ranks: Sequence[int] = (0,), cards: Sequence[ModelCard] = (MODEL,)) -> None:
        """Every rank of `ranks` publishes events, and its first batch is here."""
        self.core.fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name))
        sources = [EventEndpoint(rank, f"tcp://{name}:5557", None, "") for rank in ranks]
        self.core.add_instance(name, cards, sources)
        self.core.apply_metrics(name, {0: page()}, self.clock.now())
        for rank in ranks:
            id_ = TargetId(f"{name}/{rank}")
            self.caches[id_] = cache = Cache()
            self.core.indexer.on_batch(id_, cache.batch())

    def target(self, id_: str) -> Target:
        found = self.core.fleet.target(TargetId(id_))
        assert found is not None
        return found

    def stored(self, id_: str, ids: Sequence[int] = IDS) -> None:
        cache = self.caches[id_]
        self.core.indexer.on_batch(TargetId(id_), cache.batch(cache.stored(ids)))

    def record(self, model: str = "m", *, stream: bool = True) -> Record:
        now = self.clock.now()
        number = self.core.selector.next_number()
        return Record(f"r-{number}", number, now, now, "/v1/completions", model, stream, "local", None, Stages())

    def may_admit(
        self,
        known: TokenizedPrompt | None = KNOWN,
        model: str = "m",
        *,
        record: Record | None = None,
        excluding: Collection[str] = (),
        only: str | None = None,
        session: str | None = None,
        body: bytes = b"",
    ) -> Ticket | None:
        prompt = Prompt(Endpoint.COMPLETIONS, "/v1/completions", model, body, Text("", True), True, session=session)
        return self.core.admit(
            SchedulingRequest(record or self.record(model), prompt, self.core.fleet.resolve(model), known),
            excluding=excluding,
            only=TargetId(only) if only is not None else None,
        )

    def admit(self, *args: TokenizedPrompt | None, **asked: object) -> Ticket:
        ticket = self.may_admit(*args, **asked)  # type: ignore[arg-type]
        assert ticket is not None
        return ticket

    def answer(self, ticket: Ticket, status: int = 200, cached: int | None = None, after_s: float = 0.1) -> None:
        """The whole answer: first byte after `after_s`, usage, end."""
        self.clock.advance(after_s)
        ticket.status = status
        self.core.on_first_byte(ticket)
        if cached is not None:
            ticket.record.prompt_tokens, ticket.record.cached_tokens = len(IDS), cached
        ticket.end = "ok"
        self.core.settle(ticket)

    def expected(self, id_: str) -> int:
        """Tokens of the prompt that are expected or held there."""
        target = TargetId(id_)
        overlap = self.core.indexer.estimate_overlaps(KNOWN, {target: 4}, frozenset())[target].overlap
        assert overlap is not None
        return overlap.expected_tokens


# admit: choose


def test_the_holder_is_chosen() -> None:
    house = House()
    house.stored("b/0")
    ticket = house.admit()
    assert ticket.target.id == "b/0"
    assert ticket.attempt.predicted_tokens == 36
    assert ticket.attempt.expected_tokens == 36
    assert ticket.record.attempts == [ticket.attempt]
    view = ticket.attempt.decision.view
    assert [row.overlap.gpu_tokens if row.overlap else None for row in view.rows] == [0, 36, 0]
    assert (view.model, view.adapter, view.prompt_tokens, view.seed, view.now_s) == ("m", None, 40, 1, 1000.0)


def test_excluded_targets_are_not_chosen_and_nobody_is_a_value() -> None:
    house = House(count=2)
    house.stored("b/0")
    assert house.admit(excluding={"b/0"}).target.id == "a/0"
    record = house.record()
    assert house.may_admit(record=record, excluding={"a/0", "b/0"}) is None
    assert record.attempts == []


def test_a_pinned_target_is_the_only_one_that_may_be_chosen() -> None:
    house = House()
    house.stored("b/0")
    assert house.admit(only="c/0").target.id == "c/0"
    assert house.may_admit(only="gone/0") is None
    assert house.may_admit(only="c/0", excluding={"c/0"}) is None


def test_a_retry_is_one_more_attempt_of_the_same_record() -> None:
    house = House("round_robin")
    record = house.record()
    first = house.admit(record=record)
    first.end = "connect"
    house.clock.advance(0.25)
    house.core.settle(first)
    house.clock.advance(0.5)
    second = house.admit(record=record, excluding={first.target.id})
    assert first.attempt.duration_ms == 250.0
    assert (first.attempt.start_ms, second.attempt.start_ms) == (0.0, 750.0)
    assert (second.attempt.match_ms, second.attempt.decide_ms, second.attempt.duration_ms) == (0.0, 0.0, None)
    assert [attempt.end for attempt in record.attempts] == ["connect", "running"]
    assert second.attempt.decision.view.number == first.attempt.decision.view.number
    assert record.target == second.target.id != first.target.id


def test_drained_down_and_unknown_models_get_nothing() -> None:
    house = House(count=2)
    house.core.fleet.drain("a")
    assert house.admit().target.id == "b/0"
    for _ in range(2):
        house.core.fleet.record_probe_failure("b", house.clock.now())
    assert house.may_admit() is None
    assert house.may_admit(model="other") is None


def test_a_request_for_an_adapter_goes_where_it_is_loaded() -> None:
    house = House(count=1)
    house.join("z", cards=[MODEL, LORA])
    house.caches["z/0"].adapter = "lora"
    house.stored("z/0")
    ticket = house.admit(prompt_of(IDS, adapter="lora"), model="lora")
    assert ticket.target.id == "z/0"
    view = ticket.attempt.decision.view
    assert (view.model, view.adapter, len(view.rows)) == ("m", "lora", 1)
    assert ticket.attempt.predicted_tokens == 36
    assert house.admit(only="z/0").attempt.predicted_tokens == 0, "the base model's blocks are others"


def test_every_decision_sees_how_busy_the_fleet_is() -> None:
    house = House("least_requests", count=2)
    assert house.admit().attempt.decision.view.busy == 0.0
    house.clock.advance(1e6)
    assert house.admit().attempt.decision.view.busy == 0.5  # of two instances one prefills


def test_a_session_is_remembered_once_it_was_placed() -> None:
    house = House("session_affinity")
    first = house.admit(session="s")
    assert first.attempt.decision.view.last_target is None
    assert house.admit(session="s").attempt.decision.view.last_target == first.target.id


# admit: book


def test_a_burst_on_one_new_prefix_sticks_together() -> None:
    house = House("prefix_overlap:3", "queue_depth")
    tickets = [house.admit() for _ in range(5)]
    assert {ticket.target.id for ticket in tickets} == {tickets[0].target.id}
    assert [ticket.attempt.expected_tokens for ticket in tickets] == [0, 36, 36, 36, 36]
    assert [ticket.attempt.predicted_tokens for ticket in tickets] == [0] * 5, "events have promised nothing yet"
    load_book = tickets[0].target.load_book
    assert (load_book.requests, load_book.prefilling, load_book.prompt_tokens) == (5, 5, 200)
    assert load_book.prefill_tokens == 40 + 4 * 4  # the first computes all, the others the last block's worth


def test_a_burst_of_strangers_spreads() -> None:
    house = House()
    tickets = [house.admit(prompt_of([begin] * 40)) for begin in range(6)]
    assert sorted(ticket.target.id for ticket in tickets) == ["a/0", "a/0", "b/0", "b/0", "c/0", "c/0"]


def test_a_full_target_is_booked_to_compute_what_it_cannot_keep() -> None:
    house = House("least_requests", count=1)
    house.stored("a/0")
    house.core.apply_metrics("a", {0: page(capacity_tokens=10)}, house.clock.now())
    assert house.admit().target.load_book.prefill_tokens == len(IDS) - 9  # a tenth of the memory is in use


def test_an_unknown_prompt_is_booked_by_its_bytes() -> None:
    house = House("least_requests")
    ticket = house.admit(None, body=b"x" * 403)
    assert ticket.sent_prompt is None
    assert (ticket.attempt.predicted_tokens, ticket.attempt.expected_tokens) == (None, None)
    assert ticket.target.load_book.prefill_tokens == 100
    view = ticket.attempt.decision.view
    assert (view.prompt_tokens, view.prefix, view.prefixes) == (None, None, ())
    assert {row.overlap for row in view.rows} == {None}


def test_the_length_of_a_prompt_with_media_is_unknown_but_its_beginning_is_not() -> None:
    house = House()
    house.stored("c/0")
    ticket = house.admit(prompt_of(IDS, complete=False))
    assert ticket.attempt.decision.view.prompt_tokens is None
    assert ticket.attempt.predicted_tokens == 40
    assert ticket.target.load_book.prefill_tokens == 0


def test_what_slower_tiers_hold_need_not_be_computed() -> None:
    house = House(count=1)
    cache = house.caches["a/0"]
    house.core.indexer.on_batch(TargetId("a/0"), cache.batch(cache.stored(IDS[:32], tier=Tier.CPU)))
    ticket = house.admit()
    assert (ticket.attempt.predicted_tokens, ticket.attempt.expected_tokens) == (32, 0)
    assert ticket.target.load_book.prefill_tokens == 8


def test_a_target_of_unknown_block_size_has_an_unknown_overlap() -> None:
    house = House("least_requests", count=0)
    house.core.fleet.join(schema.InstanceConfig(url="http://x:1", name="x"))
    house.core.add_instance("x", [MODEL], [])
    assert house.core.block_sizes("m") == frozenset()
    ticket = house.admit()
    assert ticket.attempt.decision.view.rows[0].overlap is None
    assert ticket.sent_prompt is None
    house.answer(ticket, cached=0)
    assert ticket.target.load_book.requests == 0


def test_the_stages_of_a_decision_are_time_decisions() -> None:
    house = House()
    record = house.record()
    house.admit(record=record)
    assert (record.stages.match_ms, record.stages.decide_ms) == (0.0, 0.0)  # our clock stands still


def test_where_nothing_is_known_of_a_prompt_there_is_nothing_to_match() -> None:
    house = House("round_robin")
    record = house.record()
    house.admit(None, record=record)
    assert (record.stages.match_ms, record.stages.decide_ms) == (None, 0.0)


# first byte


def test_with_the_first_byte_the_prefill_is_over() -> None:
    house = House()
    ticket = house.admit()
    house.clock.advance(0.25)
    ticket.status = 200
    house.core.on_first_byte(ticket)
    assert ticket.ttft_ms == pytest.approx(250)
    load_book = ticket.target.load_book
    assert (load_book.requests, load_book.prefilling, load_book.prefill_tokens, load_book.prompt_tokens) == (
        1,
        0,
        0,
        40,
    )
    house.clock.advance(4.9)
    assert house.expected(ticket.target.id) == 36
    house.clock.advance(0.1)
    assert house.expected(ticket.target.id) == 0, "no event came within the expectation's time"


# settle


def test_settling_gives_everything_back_exactly_once() -> None:
    house = House()
    ticket = house.admit()
    ticket.end = "connect"
    house.core.settle(ticket)
    load_book = ticket.target.load_book
    assert (load_book.requests, load_book.prefilling, load_book.prefill_tokens, load_book.context_tokens) == (
        0,
        0,
        0,
        0,
    )
    ticket.end, ticket.status = "ok", 200
    house.core.settle(ticket)
    assert ticket.attempt.end == "connect"
    assert load_book.requests == 0
    assert ticket.target.breaker._failures == 1


@pytest.mark.parametrize(
    ("end", "status", "failures", "keeps_expecting"),
    [
        ("ok", 200, 0, True),
        ("ok", 400, None, False),  # found fault with the client: computed nothing, which says nothing of its health
        ("ok", 500, 1, False),
        ("ok", 503, None, False),  # full: nothing is said of its health
        ("connect", None, 1, False),
        ("died", None, 1, False),
        ("broken", 200, 1, True),  # the prompt was computed before it died
        ("busy", None, None, False),
        ("deadline", None, None, False),
        ("client_gone", None, None, False),
        ("client_gone", 200, None, True),
    ],
)
def test_what_an_end_says_of_the_engine(
    end: str, status: int | None, failures: int | None, keeps_expecting: bool
) -> None:
    house = House(count=1)
    breaker = house.target("a/0").breaker
    breaker.on_request_end("failure", house.clock.now())
    ticket = house.admit()
    ticket.end = end
    if status is not None:
        ticket.status = status
        house.core.on_first_byte(ticket)
    house.core.settle(ticket)
    assert ticket.attempt.end == end
    assert breaker._failures == (1 if failures is None else 2 if failures else 0)
    assert house.expected("a/0") == (36 if keeps_expecting else 0)


@pytest.mark.parametrize(("status", "held"), [(200, 36), (400, 0), (500, 0), (503, 0)])
def test_without_a_stream_only_what_was_computed_is_taken_for_cached(status: int, held: int) -> None:
    house = House(count=1, stream=False)
    house.answer(house.admit(), status=status)
    overlap = house.admit().attempt.decision.view.rows[0].overlap
    assert overlap is not None
    assert (overlap.source, overlap.gpu_tokens) == ("approximate", held)


def test_a_line_that_is_cut_without_a_word_is_a_client_that_left() -> None:
    house = House()
    ticket = house.admit()
    house.core.settle(ticket)
    assert ticket.attempt.end == "client_gone"
    assert house.expected(ticket.target.id) == 0


def fail(house: House, target: str, end: str = "connect", sender: str | None = None) -> Ticket:
    record = house.record()
    record.sender = sender
    ticket = house.admit(record=record, only=target)
    if end == "ok":
        ticket.status = 500
    ticket.end = end  # type: ignore[assignment]
    house.core.settle(ticket)
    return ticket


def test_failures_in_a_row_take_a_target_out_and_one_trial_brings_it_back() -> None:
    house = House(count=2)
    for _ in range(3):
        fail(house, "a/0")
    assert {house.admit().target.id for _ in range(5)} == {"b/0"}
    house.clock.advance(5.0)
    trial = house.admit(excluding={"b/0"})
    assert {house.admit().target.id for _ in range(5)} == {"b/0"}, "one trial at a time"
    house.answer(trial)
    assert not trial.attempt.panic
    assert "a/0" in {house.admit().target.id for _ in range(5)}


def test_with_all_breakers_open_a_request_is_placed_all_the_same_and_its_record_says_so() -> None:
    house = House(count=2)
    for target in ("a/0", "b/0"):
        for _ in range(3):
            fail(house, target)
    ticket = house.admit()
    assert ticket.attempt.panic
    assert describe_record(ticket.record)["why"].startswith("panic: the breakers of all targets that could answer are")
    assert describe_record(ticket.record)["attempts"][0]["panic"]
    house.answer(ticket)
    assert not house.admit().attempt.panic


def test_the_one_target_that_can_answer_gets_the_request_whatever_its_breaker() -> None:
    house = House(count=2)
    for _ in range(3):
        fail(house, "a/0")
    ticket = house.admit(only="a/0")
    assert (ticket.target.id, ticket.attempt.panic) == ("a/0", True)


def test_one_sender_s_failures_take_no_target_out_that_answers_others() -> None:
    house = House(count=1)
    record = house.record()
    record.sender = "good"
    house.answer(house.admit(record=record))
    for _ in range(20):
        assert not fail(house, "a/0", "ok", "bad").attempt.panic
    assert house.target("a/0").breaker.state(house.clock.now()) == "closed"
    fail(house, "a/0", "ok", "good")
    assert house.target("a/0").breaker.state(house.clock.now()) == "open"


def test_broken_promises_cost_the_stream_its_trust_and_kept_ones_bring_it_back() -> None:
    house = House(count=1)
    house.stored("a/0")
    target = house.target("a/0")
    for _ in range(3):
        ticket = house.admit()
        assert ticket.attempt.decision.view.rows[0].overlap is not None
        assert ticket.attempt.decision.view.rows[0].overlap.source == "events"
        house.answer(ticket, cached=0)
    assert not target.overlap_accuracy.trusted
    for _ in range(3):
        ticket = house.admit()
        assert ticket.attempt.decision.view.rows[0].overlap is not None
        assert ticket.attempt.decision.view.rows[0].overlap.source == "approximate"
        assert ticket.attempt.predicted_tokens == 36, "the promise is still watched"
        house.answer(ticket, cached=36)
    assert target.overlap_accuracy.trusted


@pytest.mark.parametrize("announced", [True, False], ids=["announced anew", "evicted before its prefill"])
def test_blocks_that_an_answer_proves_gone_make_the_index_of_the_target_worthless(
    announced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(count=1)
    other = [*range(500, 540)]
    house.stored("a/0")
    house.stored("a/0", other)
    for answers in (1, 2):
        ticket = house.admit()
        assert ticket.attempt.predicted_tokens == 36
        if announced:
            house.stored("a/0")
        house.answer(ticket, cached=0)
        contradictions = house.target("a/0").overlap_accuracy.contradictions
        assert contradictions == (announced and answers == 2)
    assert house.target("a/0").overlap_accuracy.trusted
    assert ("answers contradict its events" in caplog.text) == announced
    held = house.core.indexer.held_tokens(TargetId("a/0"), 4, trusted=True)
    assert held == (None if announced else 80), "what it still holds of the other prompt is unknown, not nothing"
    stream = house.core.indexer.sequencer(TargetId("a/0"))
    assert stream is not None
    assert stream.joined_late == announced


def test_a_stream_that_stopped_is_noticed_by_answers_and_what_was_sent_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House(count=1)
    house.stored("a/0")
    stream = house.core.indexer.sequencer(TargetId("a/0"))
    assert stream is not None
    house.clock.advance(1.0)
    new = [prompt_of([*range(1000 * n, 1000 * n + 40)]) for n in range(1, UNANNOUNCED + 2)]
    for known in new[:UNANNOUNCED]:
        assert not stream.silent
        house.answer(house.admit(known), cached=0, after_s=1.0)
    assert stream.silent
    assert "its events stopped" in caplog.text
    assert house.expected("a/0") == 36, "the index is kept"
    house.answer(house.admit(new[-1]), cached=0, after_s=1.0)
    again = house.admit(new[-1])
    assert again.attempt.expected_tokens == 36
    house.answer(again, cached=36)
    house.stored("a/0", [*range(1000, 1040)])
    assert not stream.silent


def test_an_engine_that_drafts_keeps_its_stream_s_trust_and_is_promised_a_block_less() -> None:
    """With EAGLE or MTP vLLM computes the last block of every hit again."""
    house = House(count=1)
    house.stored("a/0")
    promised = []
    for _ in range(5):
        ticket = house.admit()
        promised.append((ticket.attempt.predicted_tokens, house.target("a/0").load_book.prefill_tokens))
        house.answer(ticket, cached=32)
    assert promised == [(36, 4)] * 3 + [(32, 8)] * 2
    assert ticket.attempt.expected_tokens == 36, "a choice goes by what is held: all such engines lose a block"
    assert house.target("a/0").overlap_accuracy.trusted


def test_a_request_that_met_an_emptied_cache_says_nothing_of_its_stream() -> None:
    house = House(count=1)
    for _ in range(4):
        house.stored("a/0")
        ticket = house.admit()
        assert ticket.attempt.predicted_tokens == 36
        assert house.core.forget_cache("a")  # after the choice, before the prompt is computed
        assert house.expected("a/0") == 0
        house.answer(ticket, cached=0)
    accuracy = house.target("a/0").overlap_accuracy
    assert (accuracy.trusted, accuracy.overestimated) == (True, 0)
    assert not house.core.forget_cache("zz")


def test_several_answers_to_one_prompt_hit_each_other_and_teach_nothing() -> None:
    """The engine's count of cached tokens is a sibling's, which found what the first one had just computed."""
    house = House(count=1)
    target = house.target("a/0")
    for cached in [36] * 10:
        record = house.record()
        record.several_answers = True
        house.answer(house.admit(record=record), cached=cached)
    house.stored("a/0")
    record = house.record()
    record.several_answers = True
    house.answer(house.admit(record=record), cached=0)
    accuracy = target.overlap_accuracy
    assert (accuracy.confirmed, accuracy.overestimated, accuracy.underestimated, accuracy.alarm) == (0, 0, 0, None)
    assert target.latency_model.speed(house.clock.now()).samples == 0


def test_an_answer_that_says_nothing_of_the_cache_teaches_nothing() -> None:
    house = House(count=1)
    house.stored("a/0")
    for _ in range(5):
        house.answer(house.admit(), cached=None)
    accuracy = house.target("a/0").overlap_accuracy
    assert (accuracy.trusted, accuracy.confirmed, accuracy.overestimated, accuracy.underestimated) == (True, 0, 0, 0)


def test_a_stream_on_an_idle_engine_shows_its_speed() -> None:
    house = House(count=1)
    house.answer(house.admit(), cached=8, after_s=0.3)
    curve = house.target("a/0").latency_model
    shown = curve.speed(house.clock.now())
    assert shown.samples == 1
    assert shown.prefill_ms(32, 8) > 50  # by the prior 10 + 32 * 0.1; shown were 300


@pytest.mark.parametrize("why", ["not a stream", "not alone", "loaded from disk", "no usage", "broken"])
def test_what_would_mistake_waiting_for_slowness_teaches_no_speed(why: str) -> None:
    house = House(count=1)
    if why == "loaded from disk":
        cache = house.caches["a/0"]
        house.core.indexer.on_batch(TargetId("a/0"), cache.batch(cache.stored(IDS, tier=Tier.DISK)))
    if why == "not alone":
        house.admit()
    ticket = house.admit(record=house.record(stream=why != "not a stream"))
    if why == "broken":
        ticket.status = 200
        house.core.on_first_byte(ticket)
        ticket.record.prompt_tokens, ticket.record.cached_tokens = 40, 0
        ticket.end = "broken"
        house.core.settle(ticket)
    else:
        house.answer(ticket, cached=None if why == "no usage" else 36)
    assert house.target("a/0").latency_model.samples == 0


@dataclass
class Pupil(Scorer):
    """Remembers its lessons."""

    unit = Unit.RAW

    heard: list[tuple[str, Outcome | None]] = field(default_factory=list)

    def score(self, view: View) -> Sequence[float]:
        return [0.0] * len(view.rows)

    def picked(self, view: View, row: Row) -> None:
        self.heard.append((row.target, None))

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        self.heard.append((row.target, outcome))


def test_scorers_that_learn_hear_of_the_choice_and_its_outcome() -> None:
    house = House(count=1)
    pupil = Pupil()
    learning = Policy("p", [], [WeightedScorer("pupil", 1.0, pupil)], NamedPicker("best", Best()))
    house.core.swap(PolicySet({"p": learning}, "p"))
    house.answer(house.admit(), cached=8, after_s=0.5)
    ticket = house.admit()
    house.clock.advance(1.0)
    ticket.end = "died"
    house.core.settle(ticket)
    assert pupil.heard == [
        ("a/0", None),
        ("a/0", Outcome(True, 200, 500.0, 500.0, 40, 8, None)),
        ("a/0", None),
        ("a/0", Outcome(False, None, None, 1000.0, None, None, None)),
    ]


@given(st.lists(st.sampled_from(["admit", "first_byte", "ok", "died", "cut", "poll", "leave", "join"]), max_size=30))
def test_whatever_happens_the_books_are_empty_in_the_end(steps: Sequence[str]) -> None:
    house = House(count=2)
    targets: set[Target] = set()
    open_: list[Ticket] = []
    for step in steps:
        house.clock.advance(0.1)
        if step == "admit" and (ticket := house.may_admit()) is not None:
            open_.append(ticket)
            targets.add(ticket.target)
        elif step == "poll":
            house.core.apply_metrics("a", {0: page(running=1)}, house.clock.now())
        elif step == "leave":
            house.core.remove_instance("a")
        elif step == "join":
            house.join("a")
        elif open_ and step == "first_byte":
            open_[0].status = 200
            house.core.on_first_byte(open_[0])
        elif open_ and step in ("ok", "died", "cut"):
            ticket = open_.pop(0)
            ticket.end = {"cut": ticket.end}.get(step, step)
            house.core.settle(ticket)
    for ticket in open_:
        house.core.settle(ticket)
    for load_book in (target.load_book for target in targets):
        assert (load_book.requests, load_book.prefilling, load_book.prefill_tokens) == (0, 0, 0)
        assert (load_book.prompt_tokens, load_book.context_tokens, load_book.double_releases) == (0, 0, 0)
        assert load_book.prefill_attended == pytest.approx(0)


# engines: joined, left, polled


def test_joined_answers_with_its_targets_and_a_stranger_has_none() -> None:
    house = House(count=0)
    assert house.core.add_instance("nobody", [MODEL], []) == []
    house.core.fleet.join(schema.InstanceConfig(url="http://x:1", name="x"))
    sources = [EventEndpoint(rank, f"tcp://x:{rank}", None, "") for rank in (0, 1)]
    assert [target.id for target in house.core.add_instance("x", [MODEL], sources)] == ["x/0", "x/1"]
    streams = [house.core.indexer.describe_stream(TargetId(f"x/{rank}")) for rank in (0, 1)]
    assert all(stream is not None and stream.sequencer is not None for stream in streams)


def test_a_replay_endpoint_makes_a_stream_replayable() -> None:
    house = House(count=0)
    house.core.fleet.join(schema.InstanceConfig(url="http://x:1", name="x"))
    sources = [EventEndpoint(0, "tcp://x:0", "tcp://x:9", ""), EventEndpoint(1, "tcp://x:1", None, "")]
    house.core.add_instance("x", [MODEL], sources)
    streams = [house.core.indexer.describe_stream(TargetId(f"x/{rank}")) for rank in (0, 1)]
    load_book = [stream.sequencer for stream in streams if stream is not None]
    assert [book.replayable for book in load_book if book is not None] == [True, False]


def test_coming_back_with_fewer_ranks_forgets_the_others() -> None:
    house = House(count=0)
    house.join("a", ranks=[0, 1])
    house.stored("a/1")
    assert house.admit().target.id == "a/1"
    house.join("a", ranks=[0])
    assert house.core.indexer.describe_stream(TargetId("a/1")) is None
    assert house.core.fleet.target(TargetId("a/1")) is None
    assert house.admit().target.id == "a/0"


def test_who_joins_again_holds_nothing() -> None:
    house = House(count=2)
    house.stored("b/0")
    house.join("b")
    assert house.admit().attempt.predicted_tokens == 0


def test_who_left_is_forgotten_and_what_it_still_had_can_end() -> None:
    house = House(count=2)
    house.stored("b/0")
    ticket = house.admit()
    house.core.remove_instance("b")
    house.core.remove_instance("b")
    assert house.core.indexer.describe_stream(TargetId("b/0")) is None
    house.answer(ticket, cached=36)
    assert ticket.target.load_book.requests == 0
    assert house.admit().target.id == "a/0"


def test_the_metrics_page_tells_block_size_and_capacity() -> None:
    house = House(count=1, stream=False)
    target = house.target("a/0")
    assert (target.block_tokens, target.capacity_tokens) == (4, 400)
    assert house.core.block_sizes("m") == {4}


def test_a_rank_that_only_the_page_made_known_joins_without_a_stream() -> None:
    house = House(count=1)
    house.core.apply_metrics("a", {0: page(), 1: page()}, house.clock.now())
    stream = house.core.indexer.describe_stream(TargetId("a/1"))
    assert stream is not None
    assert stream.sequencer is None
    house.answer(house.admit(only="a/1"))
    overlap = house.admit(only="a/1").attempt.decision.view.rows[0].overlap
    assert overlap is not None
    assert (overlap.source, overlap.gpu_tokens) == ("approximate", 36)


def test_a_page_of_a_stranger_is_ignored() -> None:
    house = House(count=1)
    house.core.apply_metrics("nobody", {0: page()}, house.clock.now())
    assert house.core.block_sizes("m") == {4}


def test_the_block_size_told_by_events_wins() -> None:
    house = House(count=1, stream=False)
    house.core.add_instance("a", [MODEL], [EventEndpoint(0, "tcp://a:1", None, "")])
    house.core.apply_metrics("a", {0: page(block_tokens=16, capacity_tokens=64)}, house.clock.now())
    assert house.core.block_sizes("m") == {16}
    cache = Cache()
    cache.seq = 6  # joined late: unknown until turned over
    house.core.indexer.on_batch(TargetId("a/0"), cache.batch(cache.stored(IDS)))
    house.core.apply_metrics("a", {0: page(block_tokens=16, capacity_tokens=64)}, house.clock.now())
    assert house.target("a/0").block_tokens == 4
    assert house.core.block_sizes("m") == {4}
    stream = house.core.indexer.describe_stream(TargetId("a/0"))
    assert stream is not None
    assert not stream.turned_over, "10 blocks of 4 stored; 64 tokens are 16 of them, not 4"


def test_fleets_of_two_block_sizes_ask_for_both() -> None:
    house = House(count=2)
    house.caches["b/0"].size = 8
    house.stored("b/0")
    assert house.core.block_sizes("m") == {4, 8}
    ticket = house.admit(prompt_of(IDS, 4, 8))
    assert ticket.target.id == "b/0"
    assert ticket.attempt.predicted_tokens == 32
    assert ticket.attempt.decision.view.prefix == prompt_of(IDS, 4).keys[4][0], "the smallest size names prefixes"


# stored responses


def test_who_made_a_response_is_remembered_within_a_bound() -> None:
    house = House()
    for number in range(5):
        house.core.remember_response(f"resp-{number}", TargetId("b/0"))
    assert [house.core.response_target(f"resp-{number}") for number in range(5)] == [None, None, "b/0", "b/0", "b/0"]


def test_a_response_of_somebody_who_left_is_nobodys() -> None:
    house = House(count=2)
    house.core.remember_response("resp", TargetId("b/0"))
    house.core.remove_instance("b")
    assert house.core.response_target("resp") is None
    house.join("b")
    assert house.core.response_target("resp") == "b/0", "it may only have been away"


# prefixes


@pytest.mark.parametrize(
    ("blocks", "lengths"),
    [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2]), (4, [1, 2, 4]), (5, [1, 2, 4]), (6, [1, 2, 4]), (7, [1, 2, 4]),
     (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8])],
)  # fmt: skip
def test_prefixes_are_named_at_powers_of_two(blocks: int, lengths: Sequence[int]) -> None:
    known = prompt_of(IDS[: blocks * 4])
    assert len(known.keys[4]) == blocks
    assert prefix_keys(known) == tuple(known.keys[4][length - 1] for length in lengths)


def test_no_prefixes_of_an_unknown_prompt() -> None:
    nothing: tuple[Key, ...] = ()
    assert prefix_keys(None) == nothing
    assert prefix_keys(KNOWN._replace(keys={})) == nothing
