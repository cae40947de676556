"""The core under an experiment: who decides for whom, what the trial hears of it, and what a swap leaves alone.

Fleet, knowledge, desk, policies and trial are real; only time is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.app import build_core
from router.blocks.events import TargetId
from router.clock import ManualClock
from router.config import schema
from router.config.experiment import Experiment
from router.core import Core
from router.decide.arms import Regime, drawn
from router.decide.findings import ArmReport
from router.decide.policy import Policy, build_policy
from router.decide.record import Decision, Record
from router.prompt.prompt import Endpoint, Prompt, Text
from router.ticket import Ticket
from scorers.contract import Ask, View
from tests.fakes.caches import RING
from tests.router.test_core import IDS, KNOWN, LORA, MODEL, House

SPECS = {
    "calm": {"scorers": [{"name": "least_requests"}]},
    "warm": {"scorers": [{"name": "prefix_overlap"}]},
    "turns": {"scorers": [{"name": "round_robin"}]},
    "sticky": {"scorers": [{"name": "session_affinity"}, {"name": "consistent_hash", "weight": 0.5}]},
}
HALVES = {"calm": 50.0, "warm": 50.0}


@cache
def policy(name: str, said: str = "") -> Policy:
    """`said`: another policy's text under this name."""
    return build_policy(name, schema.Policy.model_validate(SPECS[said or name]))


POLICIES: Mapping[str, Policy] = {name: policy(name) for name in ("calm", "warm", "turns")}


def experiment(**changed: Any) -> Experiment:
    return Experiment.model_validate({"unit": "request", "seed": 3, "arms": HALVES, **changed})


def units_of(arm: str, count: int, spec: Experiment | None = None) -> list[bytes]:
    """The first units that are drawn for an arm."""
    spec = spec or experiment()
    names = (b"unit-%d" % n for n in range(10_000))
    return [unit for unit in names if drawn(spec.seed, spec.arms, unit) == arm][:count]


class Trying(House):
    """A house whose policies share the requests, unless there is no experiment."""

    def __init__(self, spec: Experiment | None = None, *, count: int = 3, active: str = "turns") -> None:
        super().__init__(count=count)
        self.regime = Regime(POLICIES, active, spec)
        self.core.swap(self.regime)

    def open(self, unit: bytes | None, model: str = "m") -> Record:
        record = self.record(model)
        self.core.opened(record, unit)
        return record

    def whole(self, unit: bytes | None, *, cached: int = 0) -> Record:
        """One request from its opening to its closing, well answered."""
        record = self.open(unit)
        ticket = self.admit(record=record)
        self.answer(ticket, cached=cached)
        return self.close(record, 200)

    def close(self, record: Record, status: int | None) -> Record:
        record.status, record.duration_ms, record.done = status, 100.0, True
        record.ttft_ms = 50.0 if status == 200 else None
        self.core.closed(record)
        return record

    def report(self, arm: str) -> ArmReport:
        assert self.core.trial is not None
        return next(each for each in self.core.trial.report().arms if each.arm == arm)


# who decides


def test_outside_of_an_experiment_the_active_policy_decides_and_nothing_is_an_arm() -> None:
    house = Trying()
    record = house.whole(b"somebody")
    assert (record.policy, record.arm, record.unit) == (policy("turns"), None, None)
    assert record.attempts[0].decision.policy == "turns"
    assert house.core.trial is None


def test_what_stands_outside_of_the_running_experiment_goes_by_the_active_policy() -> None:
    house = Trying(experiment())
    record = house.whole(None)
    assert (record.policy, record.arm, record.unit) == (policy("turns"), None, None)
    assert [house.report(arm).requests for arm in HALVES] == [0, 0]


def test_a_units_arm_decides_and_retries_keep_it_through_a_swap() -> None:
    house = Trying(experiment())
    (unit,) = units_of("warm", 1)
    house.stored("b/0")
    record = house.open(unit)
    first = house.admit(record=record)
    first.end = "connect"
    house.core.settle(first)
    house.core.swap(Regime(POLICIES, "calm"))  # the experiment ends meanwhile
    second = house.admit(record=record, excluding={first.target.id})
    assert (record.arm, record.unit) == ("warm", unit)
    assert [attempt.decision.policy for attempt in record.attempts] == ["warm", "warm"]
    assert (first.target.id, second.target.id != "b/0") == ("b/0", True)


def test_without_a_policy_of_its_own_a_request_goes_by_the_active_one() -> None:
    house = Trying(experiment())
    assert house.admit(record=house.record()).attempt.decision.policy == "turns"


# what the trial hears


def test_requests_are_counted_on_their_arms_when_they_are_over() -> None:
    house = Trying(experiment())
    calm, warm = units_of("calm", 3), units_of("warm", 2)
    running = [house.open(unit) for unit in [*calm, *warm]]
    assert [house.report(arm).requests for arm in HALVES] == [0, 0]
    assert [house.report(arm).units_open for arm in HALVES] == [3, 2]
    for record in running:
        house.answer(house.admit(record=record))
        house.close(record, 200)
    assert [house.report(arm).requests for arm in HALVES] == [3, 2]
    assert house.core.trial is not None
    house.core.trial.look(house.clock.now())
    assert house.core.trial.units == {"calm": 3, "warm": 2}


def test_a_request_that_nobody_could_take_is_a_failure_of_its_arm() -> None:
    house = Trying(experiment(), count=0)
    record = house.open(units_of("warm", 1)[0])
    assert house.may_admit(record=record) is None
    house.close(record, 503)
    assert (house.report("warm").requests, house.report("warm").failed) == (1, 1)
    assert (record.attempts, record.onlookers) == ([], [])


def test_a_policy_that_was_asked_for_by_name_is_nobodys_arm() -> None:
    house = Trying(experiment())
    record = house.record()
    record.policy, record.asked_by = policy("warm"), "ops"  # as the request's line places it: never opened
    house.answer(house.admit(record=record))
    house.close(record, 200)
    assert record.attempts[0].decision.policy == "warm"
    assert [house.report(arm).requests for arm in HALVES] == [0, 0]


def test_the_units_of_an_arm_that_was_rolled_back_are_the_first_arms_and_do_not_count() -> None:
    house = Trying(experiment())
    unit, later = units_of("warm", 2)
    running = house.open(unit)
    house.core.swap(house.regime.without("warm"))
    moved = house.whole(later)
    assert (moved.arm, moved.policy) == ("warm", policy("calm"))
    assert moved.attempts[0].decision.policy == "calm"
    house.answer(house.admit(record=running))
    house.close(running, 200)
    assert running.attempts[0].decision.policy == "warm", "what was under way ends as it began"
    house.whole(units_of("calm", 1)[0])
    assert house.report("warm").out == "it was rolled back"
    assert house.report("warm").requests == 1, "the one under way: its arm decided for it"
    assert (house.report("calm").requests, house.report("calm").units_open) == (1, 1)


def test_shadows_look_on_from_the_choice_that_was_made() -> None:
    house = Trying(experiment(arms={"calm": 100.0}, shadows=["warm", "turns"]))
    house.stored("c/0")
    record = house.whole(b"u")
    seen = {onlooker.policy: onlooker for onlooker in record.onlookers}
    assert set(seen) == {"warm", "turns"}
    assert seen["warm"].target == "c/0"
    assert record.target == "a/0"
    assert seen["warm"].difference.overlap_tokens == 36  # all of the 40 but the last block of 4
    looked = [shadow.differences.summary().decisions for shadow in house.core.desk.shadows]
    assert looked == [1, 1]


# swaps


@pytest.mark.parametrize(
    ("changed", "said", "goes_on"),
    [
        ({}, {}, True),
        ({}, {"turns": "sticky"}, True),  # no arm's
        ({}, {"warm": "turns"}, False),  # the arm says something else now
        ({"seed": 4}, {}, False),
        ({"arms": {"calm": 60.0, "warm": 40.0}}, {}, False),
        ({"guard": {"worse_by": 0.1}}, {}, False),
        ({"shadows": ["turns"]}, {}, False),
    ],
)
def test_a_swap_keeps_the_trial_while_the_experiment_is_the_same(
    changed: dict[str, Any], said: dict[str, str], goes_on: bool
) -> None:
    house = Trying(experiment())
    house.whole(units_of("calm", 1)[0])
    before = house.core.trial
    policies = {name: policy(name, said.get(name, "")) for name in POLICIES}
    house.core.swap(Regime(policies, "turns", experiment(**changed)))
    assert house.core.trial is not None
    assert (house.core.trial is before) == goes_on
    assert house.report("calm").requests == (1 if goes_on else 0)


def test_another_active_policy_leaves_the_trial_alone_and_the_end_of_the_experiment_ends_it() -> None:
    house = Trying(experiment())
    before = house.core.trial
    house.core.swap(Regime(POLICIES, "calm", experiment()))
    assert house.core.trial is before
    running = house.open(units_of("calm", 1)[0])
    house.core.swap(Regime(POLICIES, "calm"))
    assert house.core.trial is None
    house.answer(house.admit(record=running))
    house.close(running, 200)  # of an experiment that is over: nobody counts it
    house.core.swap(Regime(POLICIES, "calm", experiment()))
    assert house.core.trial is not before
    assert house.report("calm").requests == 0


def test_a_trial_that_begins_with_an_arm_rolled_back_does_not_count_it() -> None:
    house = Trying()
    house.core.swap(Regime(POLICIES, "turns", experiment(), frozenset({"warm"})))
    assert house.report("warm").out is not None
    assert house.whole(units_of("warm", 1)[0]).policy is policy("calm")
    assert house.report("warm").requests == 0


# isolated arms


def test_isolated_arms_stay_in_their_slices_of_the_models_instances() -> None:
    spec = experiment(isolate="instances")
    house = Trying(spec, count=4)
    house.join("z", cards=[MODEL, LORA])
    went: dict[str, set[str]] = {
        arm: {house.admit(record=house.open(unit)).target.instance.id for unit in units_of(arm, 40, spec)}
        for arm in HALVES
    }
    slices = {arm: house.core.desk.regime.instances_of(arm, ("a", "b", "c", "d", "z")) for arm in HALVES}
    assert not slices["calm"] & slices["warm"]
    assert slices["calm"] | slices["warm"] == set("abcdz")
    assert went["calm"] == slices["calm"], "calm spreads by load over all that it may use"
    assert went["warm"] <= slices["warm"]
    for arm in HALVES:  # of the adapter's one instance, nobody can be kept apart
        record = house.open(units_of(arm, 1, spec)[0], "lora")
        assert house.admit(None, model="lora", record=record).target.instance.id == "z"


def test_an_isolated_arm_without_a_healthy_instance_goes_elsewhere() -> None:
    spec = experiment(isolate="instances")
    house = Trying(spec, count=2)
    (own,) = house.regime.instances_of("warm", ("a", "b"))
    (other,) = house.regime.instances_of("calm", ("a", "b"))
    (unit,) = units_of("warm", 1, spec)
    assert house.admit(record=house.open(unit)).target.instance.id == own
    assert house.admit(record=house.open(unit), excluding={f"{own}/0"}).target.instance.id == other
    house.core.fleet.drain(own)
    assert house.admit(record=house.open(unit)).target.instance.id == other
    house.core.fleet.undrain(own)
    assert house.admit(record=house.open(unit)).target.instance.id == own


def test_what_is_outside_of_the_experiment_may_use_the_whole_fleet() -> None:
    house = Trying(experiment(isolate="instances"), count=4)
    assert {house.admit(record=house.open(None)).target.instance.id for _ in range(8)} == set("abcd")


# what the view holds


def view_of(house: House, prompt: Prompt, record: Record) -> View:
    ticket = house.core.admit(record, prompt, house.core.fleet.resolve("m"), KNOWN)
    assert ticket is not None
    return ticket.attempt.decision.view


def a_prompt(**known: Any) -> Prompt:
    return Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"", Text("", True), True, **known)


def core_with(secret: int) -> Core:
    regime = Regime({"calm": policy("calm")}, "calm")
    return build_core(schema.Config(seed=1), regime, RING, ManualClock(1000.0, wall=1000.0), secret=secret)


class Keyed(House):
    """A house of a deployment with this secret."""

    def __init__(self, secret: int) -> None:
        super().__init__(count=0)
        self.core = core_with(secret)
        self.join("a")


def test_sessions_are_seen_under_a_pseudonym_that_hangs_on_the_secret() -> None:
    def seen(secret: int, session: str | None) -> str | None:
        house = Keyed(secret)
        return view_of(house, a_prompt(session=session), house.record()).session

    name = "maria.muster@example.org"
    assert seen(1, name) == seen(1, name)
    assert seen(1, name) != seen(2, name)
    assert seen(1, name) != seen(1, "somebody else")
    assert seen(1, None) is None
    assert seen(1, "\ud800") not in (None, seen(1, "")), "names may be no valid text"
    told = seen(1, name)
    assert told is not None
    assert (len(told), int(told, 16) >= 0) == (16, True)


def test_the_raw_session_is_nowhere_in_the_record() -> None:
    house = Trying(experiment())
    record = house.open(units_of("warm", 1)[0])
    view_of(house, a_prompt(session="maria.muster@example.org"), record)
    assert "maria" not in repr(record)


def test_what_the_request_asks_for_is_in_the_view() -> None:
    house = House()
    prompt = a_prompt(priority=-2, ttft_ms=250.0, tpot_ms=20.0, output_tokens=64)
    assert view_of(house, prompt, house.record()).ask == Ask(None, -2, 250.0, 20.0, 64)
    assert view_of(house, a_prompt(), house.record()).ask == Ask()


def test_whoever_holds_the_key_is_seen_under_a_pseudonym_too() -> None:
    def seen(secret: int, client: str) -> str | None:
        house = Keyed(secret)
        record = house.record()
        record.client = client
        return view_of(house, a_prompt(), record).ask.tenant

    assert seen(1, "team") == seen(1, "team") != "team"
    assert len({seen(1, "team"), seen(2, "team"), seen(1, "other")}) == 3


def test_the_typical_instances_speed_is_in_the_view() -> None:
    house = House(count=3)
    view = view_of(house, a_prompt(), house.record())
    assert view.nominal is not None
    assert view.nominal.us_per_token == view.rows[0].speed.us_per_token == 100.0  # the prior: nobody has shown any
    house.answer(house.admit(only="b/0"), cached=0, after_s=0.5)
    house.clock.advance(10.0)
    view = view_of(house, a_prompt(), house.record())
    assert view.nominal is not None
    shown = next(row.speed for row in view.rows if row.target == "b/0")
    assert (view.nominal.us_per_token, view.nominal.samples) == (shown.us_per_token, 1)


@pytest.mark.parametrize("order", [("calm", "warm"), ("warm", "calm")])
def test_how_much_targets_hold_is_in_every_view_where_one_arm_looks_at_caches(order: Sequence[str]) -> None:
    """Whoever was first: rows are kept between decisions."""
    house = Trying(experiment(), active="calm")
    house.stored("b/0", IDS[:32])
    for arm in order:
        record = house.open(units_of(arm, 1)[0])
        assert [row.held_tokens for row in view_of(house, a_prompt(), record).rows] == [0, 32, 0]


def test_shadows_that_look_at_caches_see_how_much_targets_hold() -> None:
    house = Trying(experiment(arms={"calm": 100.0}, shadows=["warm"]), active="calm")
    house.stored("b/0", IDS[:32])
    assert [row.held_tokens for row in view_of(house, a_prompt(), house.open(b"u")).rows] == [0, 32, 0]


def test_how_much_targets_hold_is_not_counted_for_nobody() -> None:
    house = Trying(active="calm")
    assert [row.held_tokens for row in view_of(house, a_prompt(), house.open(None)).rows] == [None] * 3


# what answers teach


def stream(house: House, ticket: Ticket, output_tokens: int | None, *, end: str = "ok") -> None:
    """First byte after 100 ms, the end 1 s after it."""
    house.clock.advance(0.1)
    ticket.status = 200
    house.core.first_byte(ticket)
    house.clock.advance(1.0)
    ticket.record.prompt_tokens, ticket.record.cached_tokens = len(IDS), 0
    ticket.record.output_tokens = output_tokens
    ticket.end = end
    house.core.settle(ticket)


def steps_seen(house: House) -> int:
    """Samples of the time between two tokens."""
    decode = house.target("a/0").speed.speed(house.clock.now()).decode
    assert decode is not None
    return decode.samples


@pytest.mark.parametrize(
    ("streams", "output_tokens", "end", "samples"),
    [
        (True, 101, "ok", 1),
        (False, 101, "ok", 0),  # the first byte is the last token's
        (True, None, "ok", 0),
        (True, 2, "ok", 0),
        (True, 101, "broken", 0),
    ],
)
def test_a_whole_stream_teaches_the_time_between_tokens(
    streams: bool, output_tokens: int | None, end: str, samples: int
) -> None:
    house = House(count=1)
    stream(house, house.admit(record=house.record(stream=streams)), output_tokens, end=end)
    assert steps_seen(house) == samples


# explaining


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["turns", "warm", "sticky", "calm"]), st.sampled_from("xyz"))),
    st.integers(0, 3),
)
def test_explaining_changes_nothing(steps: Sequence[tuple[bool, str, str]], asked: int) -> None:
    """Two houses live through the same requests; in one of them somebody asks all the time."""

    def live(questions: int) -> list[tuple[Any, ...]]:
        house = Trying(experiment(shadows=["turns"]))
        house.stored("b/0")
        served = house.core.fleet.resolve("m")
        seen: list[tuple[Any, ...]] = []
        for ends, name, session in steps:
            for _ in range(questions):
                told = house.core.explain(record_for(house, name), a_prompt(session=session), served, KNOWN)
                assert told is not None
            ticket = house.core.admit(record := record_for(house, name), a_prompt(session=session), served, KNOWN)
            assert ticket is not None
            seen.append(told_of(ticket.attempt.decision))
            if ends:
                house.answer(ticket, cached=0)
                house.close(record, 200)
        books = [(t.books.requests, t.books.prefill_tokens) for i in house.core.fleet for t in i.targets.values()]
        looked = [shadow.differences.summary() for shadow in house.core.desk.shadows]
        return [*seen, (books, looked, house.core.trial and house.core.trial.report())]

    assert live(asked) == live(0)


def record_for(house: House, name: str) -> Record:
    """Asked for by name, and all with one number: asking must not need one."""
    record = Record("r", 7, 0.0, 0.0, "/v1/completions", "m", True, "local", None, house.record().stages)
    record.policy = policy(name)
    return record


def told_of(decision: Decision) -> tuple[Any, ...]:
    return decision.target, decision.costs, decision.view._replace(now_s=0.0)


def test_what_is_explained_is_what_then_happens() -> None:
    house = Trying(experiment())
    house.stored("c/0")
    for arm in HALVES:
        record = house.open(units_of(arm, 1)[0])
        prompt = a_prompt(session="s")
        told = house.core.explain(record, prompt, house.core.fleet.resolve("m"), KNOWN)
        ticket = house.core.admit(record, prompt, house.core.fleet.resolve("m"), KNOWN)
        assert told is not None
        assert ticket is not None
        assert (told.policy, told.target) == (arm, ticket.target.id)


def test_explaining_needs_somebody_who_could_serve() -> None:
    house = Trying(count=0)
    assert house.core.explain(house.record(), a_prompt(), None, None) is None
    house.join("a")
    served = house.core.fleet.resolve("m")
    assert house.core.explain(house.record(), a_prompt(), served, None, TargetId("gone/0")) is None
