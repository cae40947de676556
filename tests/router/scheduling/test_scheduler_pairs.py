"""The core with prefill and decode instances, as stories: who is chosen, what is booked, and that all is given back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config import schema
from router.control.core import build_scheduler
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.instance import Target
from router.kvcache.events import TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text
from router.prompt.usage import Usage
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.scheduler import Scheduler
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.ticket import Ticket
from tests.fakes.caches import RING, Cache, prompt_of

IDS = list(range(100, 140))  # 40 tokens: 10 blocks of 4, of which 9 can be used
KNOWN = prompt_of(IDS)
MOONCAKE = {"protocol": "mooncake", "bootstrap_url": "http://boot:8998"}
POLICY = {
    "scorers": [{"name": "round_robin"}],
    "prefill": {"scorers": [{"name": "prefix_overlap"}]},
    "decode": {"scorers": [{"name": "prefix_overlap"}]},
    "prefill_from_tokens": 9,
}


class House:
    """Prefill instances `p`, `q`, decode instances `c`, `d`, all of which publish events."""

    def __init__(self, transfer: dict[str, Any] | None = None, policy: dict[str, Any] | None = None) -> None:
        self.clock = ManualClock(1000.0, wall=1000.0)
        built = build_policy("test", schema.PolicyConfig.model_validate(policy or POLICY))
        self.core: Scheduler = build_scheduler(
            schema.Config(seed=1), PolicySet({built.name: built}, built.name), RING, self.clock
        )
        self.caches: dict[str, Cache] = {}
        for name in "pqcd":
            self.join(name, "prefill" if name in "pq" else "decode", transfer or {"protocol": "nixl"})

    def join(self, name: str, role: str, transfer: dict[str, Any] | None) -> None:
        spec = {"url": f"http://{name}:8000", "name": name, "role": role, "transfer": transfer}
        self.core.fleet.join(schema.InstanceConfig.model_validate(spec))
        card = ModelCard("m", "/models/m", None, 8192)
        self.core.add_instance(name, [card], [EventEndpoint(0, f"tcp://{name}:5557", None, "")])
        self.core.apply_metrics(name, {0: Gauges(0, 0, 0.1, 4, 400, None, None)}, self.clock.now())
        self.caches[name] = cache = Cache()
        self.core.indexer.on_batch(TargetId(f"{name}/0"), cache.batch())

    def target(self, name: str) -> Target:
        found = self.core.fleet.target(TargetId(f"{name}/0"))
        assert found is not None
        return found

    def stored(self, name: str, ids: Sequence[int] = IDS) -> None:
        cache = self.caches[name]
        self.core.indexer.on_batch(TargetId(f"{name}/0"), cache.batch(cache.stored(ids)))

    def record(self) -> Record:
        now, number = self.clock.now(), self.core.selector.next_number()
        return Record(f"r-{number}", number, now, now, "/v1/completions", "m", True, "local", None, Stages())

    def may_admit(
        self,
        known: TokenizedPrompt | None = KNOWN,
        *,
        record: Record | None = None,
        excluding: Collection[str] = (),
        only: str | None = None,
        splits: bool = True,
        prefilled: Any = None,
    ) -> Ticket | None:
        prompt = Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"x" * 400, Text("", True), True)
        return self.core.admit(
            SchedulingRequest(record or self.record(), prompt, self.core.fleet.resolve("m"), known),
            excluding=excluding,
            only=TargetId(only) if only is not None else None,
            splits=splits,
            prefilled=prefilled,
        )

    def admit(self, *args: Any, **asked: Any) -> Ticket:
        ticket = self.may_admit(*args, **asked)
        assert ticket is not None
        return ticket

    def first_byte(self, ticket: Ticket, after_s: float = 0.1) -> None:
        self.clock.advance(after_s)
        ticket.status = 200
        self.core.on_first_byte(ticket)

    def end(self, ticket: Ticket, end: str = "ok", cached: int | None = None) -> None:
        ticket.end = end
        if cached is not None:
            ticket.record.prompt_tokens, ticket.record.cached_tokens = 40, cached
        self.core.settle(ticket)

    def books(self) -> dict[str, tuple[int, int, int, int]]:
        """Of everybody who has any."""
        all_ = {name: self.target(name).load_book for name in "pqcd" if self.core.fleet.get(name)}
        found = {n: (b.requests, b.prefilling, b.prefill_tokens, b.context_tokens) for n, b in all_.items()}
        return {name: books for name, books in found.items() if any(books)}


# who


def test_a_pair_is_chosen_by_both_profiles_and_booked_on_both() -> None:
    house = House()
    house.stored("d", IDS[:16])
    house.stored("q", IDS[:24])
    ticket = house.admit()
    assert ticket.target.id == "d/0"
    assert ticket.prefill is not None
    assert ticket.prefill.target.id == "q/0"
    attempt = ticket.attempt
    assert (attempt.decision.policy, attempt.predicted_tokens) == ("test.decode", 16)
    assert [row.target for row in attempt.decision.view.rows] == ["c/0", "d/0"]
    leg = attempt.prefill
    assert leg is not None
    assert (leg.decision.policy, leg.predicted_tokens, leg.end) == ("test.prefill", 24, "running")
    assert [row.target for row in leg.decision.view.rows] == ["p/0", "q/0"]
    # q computes 40 - 24 = 16; d computes nothing, and waits with all 40
    assert house.books() == {"q": (1, 1, 16, 40), "d": (1, 1, 0, 40)}


def test_prefill_instances_never_answer() -> None:
    house = House()
    house.stored("p")
    assert house.admit(splits=False).target.instance.id in ("c", "d")
    assert house.may_admit(only="p/0") is None
    for name in "cd":
        house.core.remove_instance(name)
    record = house.record()
    assert house.may_admit(record=record) is None
    assert record.attempts == []
    house.join("b", "both", None)
    ticket = house.admit()
    assert (ticket.target.id, ticket.prefill) == ("b/0", None), "it speaks no transfer protocol"
    assert house.core.peers.unpaired == {"protocol": 1}


def test_what_is_not_split_is_placed_whole_by_the_policys_own_profile() -> None:
    house = House()
    ticket = house.admit(splits=False)
    assert (ticket.prefill, ticket.attempt.prefill, ticket.attempt.decision.policy) == (None, None, "test")
    assert house.books() == {ticket.target.instance.id: (1, 1, 40, 40)}
    for name in "pq":
        house.core.remove_instance(name)
    assert house.admit().attempt.decision.policy == "test", "nobody is there to prefill"


def test_little_work_skips_the_prefill_half() -> None:
    house = House()
    house.stored("d", IDS[:32])
    ticket = house.admit()  # 40 - 32 = 8 left, from 9 on it is worth it
    assert (ticket.target.id, ticket.prefill) == ("d/0", None)
    assert house.books() == {"d": (1, 1, 8, 40)}


def test_an_unnamed_engine_is_no_peer() -> None:
    house = House(MOONCAKE)
    ticket = house.admit()
    assert ticket.prefill is None
    assert house.core.peers.unpaired == {"engine_id": 1}
    assert sorted(house.core.peers.without_engine_ids()) == ["p", "q"]
    house.core.peers.set_engine_ids("q", {0: "e"})
    half = house.admit(prompt_of([1] * 40)).prefill
    assert half is not None
    assert half.target.id == "q/0"
    house.core.add_instance("q", [ModelCard("m", None, None, None)], [])  # it restarted
    assert house.admit(prompt_of([2] * 40)).prefill is None


def test_a_prompt_that_is_on_its_way_to_the_decode_target_needs_no_second_half() -> None:
    house = House()
    first, second = house.admit(), house.admit()
    assert first.prefill is not None
    assert (second.target, second.prefill) == (first.target, None)


@pytest.mark.parametrize(
    ("end", "doubted"), [("ok", False), ("busy", False), ("rejected", False), ("connect", True), ("died", True),
                         ("failed", True)]
)  # fmt: skip
def test_a_prefill_engine_that_failed_may_be_another_one_by_now(end: str, doubted: bool) -> None:
    house = House(MOONCAKE)
    house.core.peers.set_engine_ids("q", {0: "e"})
    house.core.settle_prefill(house.admit(), end, 500 if end == "failed" else None)
    assert ("q" in house.core.peers.without_engine_ids()) is doubted


def test_failed_ones_are_not_chosen_again_and_in_the_end_nobody_prefills() -> None:
    house = House()
    house.stored("q")
    record = house.record()
    first = house.admit(record=record)
    house.core.settle_prefill(first, "died")
    house.end(first, "prefill")
    second = house.admit(record=record, excluding={"q/0"})
    assert second.prefill is not None
    assert second.prefill.target.id == "p/0"
    house.core.settle_prefill(second, "connect")
    house.end(second, "prefill")
    third = house.admit(record=record, excluding={"q/0", "p/0"})
    assert third.prefill is None
    house.first_byte(third)
    house.end(third)
    told = [(attempt.end, attempt.prefill and attempt.prefill.end) for attempt in record.attempts]
    assert told == [("prefill", "died"), ("prefill", "connect"), ("ok", None)]
    assert house.books() == {}


def test_handed_over_kv_is_fetched_by_another_one() -> None:
    house = House()
    record = house.record()
    first = house.admit(record=record)
    house.core.settle_prefill(first, "ok", 200, Usage(40, 0, 1))
    house.end(first, "connect")
    leg = first.attempt.prefill
    second = house.admit(record=record, excluding={first.target.id}, prefilled=leg)
    assert second.target.id != first.target.id
    assert second.prefill is None
    assert second.attempt.prefill is leg
    assert house.books() == {second.target.instance.id: (1, 1, 0, 40)}
    house.end(second)
    assert leg is not None
    assert leg.end == "ok", "the second attempt's end is not the half's"
    assert house.books() == {}


# what ends when


def test_the_prefill_share_ends_with_its_half() -> None:
    house = House()
    ticket = house.admit()
    house.clock.advance(0.3)
    house.core.settle_prefill(ticket, "ok", 200, Usage(40, 0, 1))
    leg = ticket.attempt.prefill
    assert leg is not None
    assert (leg.end, leg.duration_ms, leg.cached_tokens) == ("ok", pytest.approx(300), 0)
    answering = ticket.target.instance.id
    assert house.books() == {answering: (1, 1, 0, 40)}
    house.first_byte(ticket)
    assert house.books() == {answering: (1, 0, 0, 40)}
    house.core.settle_prefill(ticket, "died")
    assert leg.end == "ok", "only the first word counts"
    house.end(ticket)
    assert house.books() == {}


@pytest.mark.parametrize(
    ("end", "half"), [("client_gone", "client_gone"), ("connect", "cancelled"), ("ok", "cancelled")]
)
def test_a_half_that_is_cut_ends_with_the_rest(end: str, half: str) -> None:
    house = House()
    ticket = house.admit()
    house.end(ticket, end)
    assert ticket.attempt.prefill is not None
    assert (ticket.attempt.end, ticket.attempt.prefill.end) == (end, half)
    assert house.books() == {}


@pytest.mark.parametrize(
    ("half", "status", "failures"),
    [("ok", 200, 0), ("rejected", 400, None), ("failed", 500, 1), ("connect", None, 1), ("died", None, 1),
     ("busy", 503, None), ("deadline", None, None), (None, None, None)],
)  # fmt: skip
def test_what_a_halfs_end_says_of_either_engine(half: str | None, status: int | None, failures: int | None) -> None:
    house = House()
    breakers = {name: house.target(name).breaker for name in "pqcd"}
    for breaker in breakers.values():
        breaker.on_request_end("failure", house.clock.now())
    ticket = house.admit()
    assert ticket.prefill is not None
    if half is not None:
        house.core.settle_prefill(ticket, half, status)
    house.end(ticket, "prefill")
    assert breakers[ticket.prefill.target.instance.id]._failures == (1 if failures is None else 2 if failures else 0)
    assert breakers[ticket.target.instance.id]._failures == 1, "it had no part in it"


# what is learned


def test_what_was_handed_over_says_nothing_of_the_answering_target() -> None:
    house = House()
    house.stored("d", IDS[:16])
    ticket = house.admit()
    assert ticket.prefill is not None
    assert (ticket.target.id, ticket.attempt.predicted_tokens) == ("d/0", 16)
    house.core.settle_prefill(ticket, "ok", 200, Usage(40, 0, 1))
    house.first_byte(ticket, after_s=2.0)
    house.end(ticket, cached=39)
    target = house.target("d")
    assert (
        target.overlap_accuracy.trusted,
        target.overlap_accuracy.confirmed,
        target.overlap_accuracy.overestimated,
        target.overlap_accuracy.underestimated,
    ) == (True, 0, 0, 0)
    assert target.latency_model.samples == 0


def test_a_prefill_half_shows_its_engines_speed_and_keeps_its_promises() -> None:
    house = House()
    house.stored("q", IDS[:24])
    ticket = house.admit()
    house.clock.advance(0.3)
    house.core.settle_prefill(ticket, "ok", 200, Usage(40, 24, 1))
    target = house.target("q")
    assert target.overlap_accuracy.confirmed == 1
    assert target.latency_model.samples == 1
    house.end(ticket, "client_gone")


def test_both_ends_of_a_good_pair_are_expected_to_hold_the_prompt() -> None:
    house = House()
    ticket = house.admit()
    house.core.settle_prefill(ticket, "ok", 200, Usage(40, 0, 1))
    house.first_byte(ticket)
    half = ticket.prefill
    assert half is not None
    for target in (ticket.target, half.target):
        overlap = house.core.indexer.estimate_overlaps(KNOWN, {target.id: 4}, frozenset())[target.id].overlap
        assert overlap is not None
        assert overlap.expected_tokens == 36
    house.end(ticket)
    house.clock.advance(60.0)
    failed = house.admit()
    house.core.settle_prefill(failed, "died")
    house.end(failed, "prefill")
    assert failed.prefill is not None
    for target in (failed.target, failed.prefill.target):
        overlap = house.core.indexer.estimate_overlaps(KNOWN, {target.id: 4}, frozenset())[target.id].overlap
        assert overlap is not None
        assert overlap.expected_tokens == 0


ENDS = ["ok", "connect", "busy", "died", "broken", "client_gone", "deadline", "rejected", "prefill"]
HALVES = ["ok", "rejected", "connect", "busy", "died", "failed", "deadline"]
STEPS = ["admit", "first_byte", "leave", "join", *(f"half {end}" for end in HALVES), *(f"end {end}" for end in ENDS)]


@given(st.lists(st.sampled_from(STEPS), max_size=30), st.data())
def test_whatever_happens_everything_is_given_back_exactly_once(steps: Sequence[str], data: st.DataObject) -> None:
    house = House()
    targets: set[Target] = {house.target(name) for name in "pqcd"}
    open_: list[Ticket] = []
    for step in steps:
        house.clock.advance(0.1)
        word, _, end = step.partition(" ")
        if word == "admit" and (ticket := house.may_admit()) is not None:
            open_.append(ticket)
        elif word == "leave":
            house.core.remove_instance("p")
        elif word == "join" and house.core.fleet.get("p") is None:
            house.join("p", "prefill", {"protocol": "nixl"})
            targets.add(house.target("p"))
        elif open_:
            ticket = data.draw(st.sampled_from(open_))
            if word == "first_byte":
                house.first_byte(ticket)
            elif word == "half":
                house.core.settle_prefill(ticket, end, 200 if end == "ok" else None, Usage(40, 0, 1))
            elif word == "end":
                open_.remove(ticket)
                house.end(ticket, end)
    for ticket in open_:
        house.core.settle(ticket)
    for books in (target.load_book for target in targets):
        assert (books.requests, books.prefilling, books.prefill_tokens) == (0, 0, 0)
        assert (books.prompt_tokens, books.context_tokens, books.double_releases) == (0, 0, 0)
        assert books.prefill_attended == pytest.approx(0)
