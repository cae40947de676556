"""The core under an experiment: who decides for whom, what the trial hears of it, and what a swap leaves alone.

Fleet, knowledge, desk, policies and trial are real; only time is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from router.config import schema
from router.config.sections.experiment import ExperimentConfig
from router.scheduling.experiments.policy_set import PolicySet, draw_arm
from router.scheduling.experiments.results import ArmReport
from router.scheduling.policy.policy import Policy, build_policy
from router.scheduling.policy.record import Record
from tests.router.scheduling.test_scheduler import LORA, MODEL, House

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
    return build_policy(name, schema.PolicyConfig.model_validate(SPECS[said or name]))


POLICIES: Mapping[str, Policy] = {name: policy(name) for name in ("calm", "warm", "turns")}


def experiment(**changed: Any) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"unit": "request", "seed": 3, "arms": HALVES, **changed})


def units_of(arm: str, count: int, spec: ExperimentConfig | None = None) -> list[bytes]:
    """The first units that are drawn for an arm."""
    spec = spec or experiment()
    names = (b"unit-%d" % n for n in range(10_000))
    return [unit for unit in names if draw_arm(spec.seed, spec.shares, unit) == arm][:count]


class Trying(House):
    """A house whose policies share the requests, unless there is no experiment."""

    def __init__(self, spec: ExperimentConfig | None = None, *, count: int = 3, active: str = "turns") -> None:
        super().__init__(count=count)
        self.regime = PolicySet(POLICIES, active, spec)
        self.core.swap(self.regime)

    def open(self, unit: bytes | None, model: str = "m") -> Record:
        record = self.record(model)
        self.core.assign_policy(record, unit)
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
        self.core.complete(record)
        return record

    def report(self, arm: str) -> ArmReport:
        assert self.core.experiment is not None
        return next(each for each in self.core.experiment.report().arms if each.arm == arm)


# who decides


def test_outside_of_an_experiment_the_active_policy_decides_and_nothing_is_an_arm() -> None:
    house = Trying()
    record = house.whole(b"somebody")
    assert (record.policy, record.arm, record.unit) == (policy("turns"), None, None)
    assert record.attempts[0].decision.policy == "turns"
    assert house.core.experiment is None


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
    house.core.swap(PolicySet(POLICIES, "calm"))  # the experiment ends meanwhile
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
    assert house.core.experiment is not None
    house.core.experiment.poll(house.clock.now())
    assert house.core.experiment.units == {"calm": 3, "warm": 2}


def test_a_request_that_nobody_could_take_is_a_failure_of_its_arm() -> None:
    house = Trying(experiment(), count=0)
    record = house.open(units_of("warm", 1)[0])
    assert house.may_admit(record=record) is None
    house.close(record, 503)
    assert (house.report("warm").requests, house.report("warm").failed) == (1, 1)
    assert (record.attempts, record.shadows) == ([], [])


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
    house.core.swap(house.regime.with_rollback("warm"))
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
    seen = {shadow.policy: shadow for shadow in record.shadows}
    assert set(seen) == {"warm", "turns"}
    assert seen["warm"].target == "c/0"
    assert record.target != "c/0", "least requests: all three are equal, and this one is drawn"
    assert seen["warm"].difference.overlap_tokens == 36  # all of the 40 but the last block of 4
    looked = [shadow.regret.summary().decisions for shadow in house.core.selector.shadows]
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
    before = house.core.experiment
    policies = {name: policy(name, said.get(name, "")) for name in POLICIES}
    house.core.swap(PolicySet(policies, "turns", experiment(**changed)))
    assert house.core.experiment is not None
    assert (house.core.experiment is before) == goes_on
    assert house.report("calm").requests == (1 if goes_on else 0)


def test_another_active_policy_leaves_the_trial_alone_and_the_end_of_the_experiment_ends_it() -> None:
    house = Trying(experiment())
    before = house.core.experiment
    house.core.swap(PolicySet(POLICIES, "calm", experiment()))
    assert house.core.experiment is before
    running = house.open(units_of("calm", 1)[0])
    house.core.swap(PolicySet(POLICIES, "calm"))
    assert house.core.experiment is None
    house.answer(house.admit(record=running))
    house.close(running, 200)  # of an experiment that is over: nobody counts it
    house.core.swap(PolicySet(POLICIES, "calm", experiment()))
    assert house.core.experiment is not before
    assert house.report("calm").requests == 0


def test_a_trial_that_begins_with_an_arm_rolled_back_does_not_count_it() -> None:
    house = Trying()
    house.core.swap(PolicySet(POLICIES, "turns", experiment(), frozenset({"warm"})))
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
    slices = {arm: house.core.selector.policy_set.instances_for(arm, ("a", "b", "c", "d", "z")) for arm in HALVES}
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
    (own,) = house.regime.instances_for("warm", ("a", "b"))
    (other,) = house.regime.instances_for("calm", ("a", "b"))
    (unit,) = units_of("warm", 1, spec)
    assert house.admit(record=house.open(unit)).target.instance.id == own
    assert house.admit(record=house.open(unit), excluding={f"{own}/0"}).target.instance.id == other
    house.core.fleet.drain(own)
    assert house.admit(record=house.open(unit)).target.instance.id == other
    house.core.fleet.drain(own, False)
    assert house.admit(record=house.open(unit)).target.instance.id == own


def test_what_is_outside_of_the_experiment_may_use_the_whole_fleet() -> None:
    house = Trying(experiment(isolate="instances"), count=4)
    assert {house.admit(record=house.open(None)).target.instance.id for _ in range(8)} == set("abcd")
