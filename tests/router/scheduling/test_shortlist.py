"""Whom a large fleet is narrowed down to: never at the cost of the choice, and never always the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from router.config import schema
from router.fleet.instance import Target
from router.kvcache.overlap_estimate import NO_OVERLAP
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy, build_policy
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.shortlist import EQUALS, SMALL, AlikeGroup, ShortlistRequest, all_but, shortlist
from scorers.contract import PoolHit
from tests.fakes.caches import prompt_of
from tests.router.scheduling.test_scheduler import IDS, KNOWN, House, page
from tests.suites.properties import examples

PROMPT = Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"", Text("", True), True)
MANY = SMALL + 6
WARM = {"filters": [{"name": "near_longest"}], "scorers": [{"name": "warm"}]}
NAMED = {
    "warm": WARM,
    "warm, pool left out": WARM | {"scorers": [{"name": "warm", "pool": False}]},
    "expected_ttft": {"scorers": [{"name": "expected_ttft"}]},
    "least_work_left": {"scorers": [{"name": "least_work_left"}]},
    "least_requests": {"scorers": [{"name": "least_requests"}]},
    "two prices": {"scorers": [{"name": "expected_ttft"}, {"name": "least_work_left", "weight": 0.5}]},
    "two filters": WARM | {"filters": [{"name": "near_longest"}, {"name": "near_longest", "share": 0.4}]},
}
POLICIES = {name: build_policy(name, schema.PolicyConfig.model_validate(spec)) for name, spec in NAMED.items()}


def large(deciding: str = "expected_ttft", count: int = MANY) -> House:
    house = House(deciding, count=0)
    for number in range(count):
        house.join(f"e{number:02}")
    return house


def target(house: House, number: int) -> Target:
    return house.target(f"e{number:02}/0")


def request_at(house: House, known: TokenizedPrompt | None, pool: PoolHit | None = None) -> SchedulingRequest:
    return SchedulingRequest(house.record(), PROMPT, house.core.fleet.resolve("m"), known, pool)


def narrowed(house: House, policy: Policy, pool: PoolHit | None = None, number: int = 0) -> list[Target] | None:
    assert policy.orders is not None
    core, request = house.core, request_at(house, KNOWN, pool)
    request.record.number = number
    now = core._clock.now()
    candidates = core.fleet.candidates("m", (), now)
    return core.view_builder.shortlist(policy.orders, candidates, request, now)


def decided(house: House, policy: Policy, targets: Sequence[Target], pool: PoolHit | None) -> Decision:
    core, now = house.core, house.clock.now()
    overlaps = {id: estimate.overlap for id, estimate in core.view_builder.estimates(KNOWN, targets).items()}
    rows = core.fleet.row_cache.rows(targets, overlaps, now, core.view_builder.held_tokens)
    return policy.decide(core.view_builder.build(request_at(house, KNOWN, pool), rows, now))


# never at the cost of the choice

steps = st.one_of(
    st.tuples(st.just("book"), st.integers(1, 40), st.integers(0, 40)),
    st.tuples(st.just("first byte"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("store"), st.integers(1, 10), st.just(0)),
    st.tuples(st.just("send"), st.integers(1, 10), st.just(0)),
    st.tuples(st.just("show"), st.integers(1, 40), st.integers(1, 90)),
    st.tuples(st.just("memory"), st.integers(1, 60), st.just(0)),
    st.tuples(st.just("distrust"), st.just(0), st.just(0)),
    st.tuples(st.just("rejoin without a stream"), st.just(0), st.just(0)),
    st.tuples(st.just("drain"), st.just(0), st.just(0)),
    st.tuples(st.just("fail"), st.just(0), st.just(0)),
)
pools = st.none() | st.builds(PoolHit, st.integers(0, 39), st.just(0.0), st.none() | st.integers(0, 39))


def done(house: House, number: int, what: str, one: int, other: int) -> None:
    there = target(house, number)
    if what == "book":
        there.book(min(one, other), max(one, other))
    elif what == "first byte":
        booking = there.book(one, one + 5)
        booking.on_first_byte()
    elif what == "store" and there.id in house.caches:
        house.stored(there.id, IDS[: 4 * one])
    elif what == "send":
        ids = prompt_of(IDS[: 4 * one])
        estimate = house.core.view_builder.estimates(ids, [there])[there.id]
        house.core.indexer.add_sent(there.id, ids, estimate)
    elif what == "show":
        there.observe_prefill(there.book(one, one), one, 0, float(other), house.clock.now())
    elif what == "memory":  # less than a prompt takes: it must wait for answers to end
        house.core.apply_metrics(there.instance.id, {0: page(capacity_tokens=one)}, house.clock.now())
    elif what == "distrust":
        for _ in range(3):
            there.overlap_accuracy.observe(40, 0, 4)
        there.book(0, 0).release()  # trust hangs on answers, and an answer gives its booking back
    elif what == "rejoin without a stream":
        house.join(there.instance.id, ranks=[])
    elif what == "drain":
        house.core.drain(there.instance.id, on=True)
    elif what == "fail":
        for _ in range(3):
            there.breaker.on_request_end("failure", house.clock.now())


@pytest.mark.parametrize("name", POLICIES)
@examples(40)
@given(
    story=st.lists(st.tuples(st.integers(0, MANY - 1), steps), max_size=60),
    everywhere=st.integers(0, 10),
    busy=st.none() | st.floats(0, 1),
    pool=pools,
    answer_tokens=st.none() | st.integers(1, 500),
)
def test_the_choice_costs_no_more_than_the_best_of_all(
    name: str,
    story: list[tuple[int, tuple[str, int, int]]],
    everywhere: int,
    busy: float | None,
    pool: PoolHit | None,
    answer_tokens: int | None,
) -> None:
    house, policy = large(), POLICIES[name]
    if answer_tokens is not None:
        house.core.fleet.answer_lengths.observe("m", answer_tokens)
    for number in range(MANY * (everywhere > 0)):
        house.stored(target(house, number).id, IDS[: 4 * everywhere])
    for i, (number, (what, one, other)) in enumerate(story):
        if i == len(story) // 2:  # what is kept between looks must not be old at the next
            narrowed(house, policy)
        done(house, number, what, one, other)
    house.core.fleet.occupancy.busy = busy
    few = narrowed(house, policy, pool)
    assume(few is not None)
    assert few is not None
    candidates = house.core.fleet.candidates("m", (), house.clock.now())
    best, chosen = decided(house, policy, candidates, pool), decided(house, policy, few, pool)
    assert set(few) <= set(candidates)
    assert chosen.costs[chosen.chosen] == pytest.approx(best.costs[best.chosen], rel=1e-9, abs=1e-9)
    assert dict(zip([row.target for row in best.rows], best.costs, strict=True))[chosen.target] == pytest.approx(
        min(best.costs), rel=1e-9, abs=1e-9
    )


def test_who_broke_promises_is_not_taken_at_its_word() -> None:
    """All promise the whole prompt, and of one that is to be believed: so it is the cheapest."""
    house = large()
    for number in range(MANY):
        house.stored(target(house, number).id)
        if number != 17:
            done(house, number, "distrust", 0, 0)
    assert target(house, 17) in (narrowed(house, POLICIES["warm"]) or [])
    assert house.admit().target.id == "e17/0"


def test_full_targets_are_priced_by_what_they_can_keep() -> None:
    """All hold the whole prompt, and one has room to keep it until the prompt begins: so it is the cheapest."""
    house = large()
    for number in range(MANY):
        house.stored(target(house, number).id)
        if number != 17:
            done(house, number, "memory", 1, 0)
    assert target(house, 17) in (narrowed(house, POLICIES["warm"]) or [])
    decision = house.admit().attempt.decision
    assert decision.target == "e17/0"
    kept = {row.target: row.overlap.expected_tokens for row in decision.view.rows if row.overlap is not None}
    assert kept.pop("e17/0") == len(IDS) - 4
    assert set(kept.values()) == {1}  # one token of memory


# never always the same


def test_equals_have_equal_chances() -> None:
    """An idle fleet of 70: 3,500 requests are 50 each, with a standard deviation of 7: five of them are 35."""
    house = large()
    for number in range(MANY):
        house.stored(target(house, number).id, IDS[:8])
    went = Counter()
    for _ in range(3500):
        ticket = house.admit()
        assert len(ticket.attempt.decision.view.rows) == EQUALS
        went[ticket.target.id] += 1
        ticket.end = "client_gone"
        house.core.settle(ticket)
    assert len(went) == MANY
    assert max(went.values()) < 85
    assert min(went.values()) > 15


# what it looks like


def test_the_view_says_how_many_were_left_out() -> None:
    house = large()
    house.stored("e03/0")
    view = house.admit().attempt.decision.view
    assert view.others == MANY - len(view.rows)
    assert "e03/0" in [row.target for row in view.rows]
    assert len(view.rows) == EQUALS + 1


def test_small_fleets_are_shown_whole() -> None:
    view = large(count=SMALL).admit().attempt.decision.view
    assert (len(view.rows), view.others) == (SMALL, 0)


def test_policies_without_the_promise_see_everybody() -> None:
    assert policy_of("round_robin").orders is None
    view = large("round_robin").admit().attempt.decision.view
    assert (len(view.rows), view.others) == (MANY, 0)


def test_so_does_everyone_where_a_shadow_has_not_given_it() -> None:
    house = large()
    promising, other = policy_of("expected_ttft"), policy_of("round_robin")
    shadows = schema.ExperimentConfig(arms={"expected_ttft": 100.0}, shadows=["round_robin"])
    house.core.swap(PolicySet({p.name: p for p in (promising, other)}, "expected_ttft", shadows))
    assert len(house.admit().attempt.decision.view.rows) == MANY


def test_who_was_tried_or_is_broken_is_not_on_the_list() -> None:
    house = large()
    for number in (4, 5):
        house.stored(target(house, number).id)
    assert {house.admit().target.id for _ in range(2)} == {"e04/0", "e05/0"}
    ticket = house.admit(excluding=["e04/0"])
    assert "e04/0" not in [row.target for row in ticket.attempt.decision.view.rows]
    for _ in range(3):
        target(house, 5).breaker.on_request_end("failure", house.clock.now())
    assert "e05/0" not in [row.target for row in house.admit().attempt.decision.view.rows]


# where it cannot be told


def test_requests_of_others_that_wait_make_every_price_hang_on_all() -> None:
    house = large()
    house.core.apply_metrics("e07", {0: page(running=2, waiting=3)}, house.clock.now())
    assert narrowed(house, POLICIES["warm"]) is None
    house.core.apply_metrics("e07", {0: page()}, house.clock.now())
    assert narrowed(house, POLICIES["warm"]) is not None


def test_one_target_of_which_nothing_can_be_known_shows_all() -> None:
    house = large()
    house.join("new", ranks=[])
    house.target("new/0").reset()  # no stream, and no block size: unknown
    assert narrowed(house, POLICIES["warm"]) is None


def test_a_block_size_that_the_prompt_has_no_keys_for_shows_all() -> None:
    house = large()
    target(house, 2).set_block_tokens(16)
    assert narrowed(house, POLICIES["warm"]) is None


def test_where_no_prompt_is_known_all_hold_as_little() -> None:
    house = large()
    target(house, 2).book(10, 10)
    orders, candidates = POLICIES["warm"].orders or frozenset(), house.core.fleet.candidates("m", (), 0.0)
    few = house.core.view_builder.shortlist(orders, candidates, request_at(house, None), 1000.0)
    assert few is not None
    assert len(few) == EQUALS
    assert target(house, 2) not in few


# parts


def policy_of(name: str) -> Policy:
    return build_policy(name, schema.PolicyConfig.model_validate({"scorers": [{"name": name}]}))


def test_all_but_some() -> None:
    assert all_but(20, ()) == AlikeGroup(range(20), ())
    assert all_but(20, {0, 3}) == AlikeGroup(range(20), {0, 3})  # few, so they are looked at and then left out
    assert all_but(5, {0, 3}) == AlikeGroup([1, 2, 4])


@pytest.mark.parametrize("name", POLICIES)
def test_those_left_out_of_the_largest_group_never_win(name: str) -> None:
    """70 idle targets that hold nothing, six of which may not be chosen; all others wait or compute more."""
    house = large()
    others = {1, 9, 18, 33, 40, 69}
    for number in range(MANY):
        if number not in others:
            target(house, number).book(30, 30)
    columns = house.core.fleet.columns("m", house.clock.now())
    orders = POLICIES[name].orders
    assert orders is not None
    few = shortlist(columns, {NO_OVERLAP: all_but(MANY, others)}, orders, ShortlistRequest(1, 7, 40, None, 100.0))
    assert len(few) == EQUALS
    assert not others.intersection(few)


@pytest.mark.parametrize(
    "spec",
    [
        {"scorers": [{"name": "expected_ttft"}], "picker": {"name": "softmax"}},
        {"scorers": [{"name": "expected_ttft"}, {"name": "warm", "pool": False}]},
        {"filters": [{"name": "max_waiting"}], "scorers": [{"name": "warm"}]},
        {"scorers": [{"name": "mooncake_alg1"}]},
        {"scorers": [{"name": "prefix_overlap"}, {"name": "queue_depth"}]},
        {"scorers": [{"name": "warm"}], "prefill": {"scorers": [{"name": "least_requests"}]}},
    ],
)
def test_whoever_looks_at_more_has_no_orders(spec: dict[str, object]) -> None:
    assert build_policy("p", schema.PolicyConfig.model_validate(spec)).orders is None
