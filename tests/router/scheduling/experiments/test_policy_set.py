"""Who decides for a unit, for ever the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.config.sections.admission import AdmissionConfig
from router.config.sections.experiment import ExperimentConfig
from router.scheduling.experiments.policy_set import PolicySet, draw_arm, slice_instances
from router.scheduling.policy.policy import build_policy
from scorers.contract import Needs

UNITS = [b"unit-%d" % i for i in range(20_000)]


def arms_of(shares: dict[str, float], seed: int = 7) -> list[str]:
    return [draw_arm(seed, shares, unit) for unit in UNITS]


def named(name: str, scorer: str = "random") -> schema.PolicyConfig:
    return schema.PolicyConfig.model_validate({"scorers": [{"name": scorer}]})


def a_regime(experiment: ExperimentConfig | None = None, rolled_back: frozenset[str] = frozenset()) -> PolicySet:
    scorers = {"one": "random", "two": "prefix_overlap", "three": "queue_depth"}
    policies = {name: build_policy(name, named(name, scorer)) for name, scorer in scorers.items()}
    return PolicySet(policies, "one", experiment, rolled_back)


@pytest.mark.parametrize("shares", [{"a": 90.0, "b": 10.0}, {"a": 50.0, "b": 30.0, "c": 20.0}])
def test_arms_get_their_shares(shares: dict[str, float]) -> None:
    counts = Counter(arms_of(shares))
    for arm, share in shares.items():
        p = share / 100
        assert abs(counts[arm] / len(UNITS) - p) < 5 * sqrt(p * (1 - p) / len(UNITS))


def test_the_draw_is_the_same_in_every_process_and_for_ever() -> None:
    """Written down: another release or replica must not move anybody."""
    shares = {"warm": 50.0, "other": 50.0}
    assert "".join(draw_arm(7, shares, b"session-%d" % i)[0] for i in range(20)) == "wwowwwwowwwwoowwooww"


def test_seeds_are_independent() -> None:
    shares = {"a": 50.0, "b": 50.0}
    equal = sum(one == other for one, other in zip(arms_of(shares, 1), arms_of(shares, 2), strict=True))
    assert abs(equal / len(UNITS) - 0.5) < 5 * sqrt(0.25 / len(UNITS))


def test_growing_a_share_moves_only_those_that_must() -> None:
    before, after = arms_of({"a": 90.0, "b": 10.0}), arms_of({"a": 80.0, "b": 20.0})
    moved = Counter((one, other) for one, other in zip(before, after, strict=True) if one != other)
    assert set(moved) == {("a", "b")}
    assert abs(moved["a", "b"] / len(UNITS) - 0.1) < 0.01


def test_with_more_arms_few_others_move() -> None:
    before, after = arms_of({"a": 80.0, "b": 10.0, "c": 10.0}), arms_of({"a": 70.0, "b": 20.0, "c": 10.0})
    moved = Counter((one, other) for one, other in zip(before, after, strict=True) if one != other)
    assert moved.total() / len(UNITS) < 2 * 0.1 / 1.1, "2 d / (1 + d)"
    assert not [way for way in moved if way[0] == "b" or way[1] == "a"], "none leaves what grew or joins what shrank"


@given(st.binary(), st.integers())
def test_one_arm_has_everybody(unit: bytes, seed: int) -> None:
    assert draw_arm(seed, {"only": 100.0}, unit) == "only"


def test_what_is_rolled_back_goes_to_the_first_arm_and_nobody_else_moves() -> None:
    experiment = ExperimentConfig(seed=7, arms={"one": 50, "two": 30, "three": 20})
    whole, rolled = a_regime(experiment), a_regime(experiment).with_rollback("two")
    assert rolled.live_arms == ["one", "three"]
    for unit in UNITS[:2000]:
        before, after = whole.assign(unit), rolled.assign(unit)
        assert after.arm == before.arm
        assert after.policy.name == ("one" if before.arm == "two" else before.arm)


def test_needs_are_those_of_all_in_use_and_of_no_other() -> None:
    assert a_regime().needs == Needs.NONE
    assert a_regime(ExperimentConfig(arms={"one": 100}, shadows=["two"])).needs == Needs.CACHE
    assert a_regime(ExperimentConfig(arms={"one": 50, "three": 50})).needs == Needs.LOAD


SHARES = (("a", 60.0), ("b", 30.0), ("c", 10.0))


@pytest.mark.parametrize(
    ("count", "runs"),
    [
        (1, {"a": 1}),
        (2, {"a": 1, "b": 1}),
        (3, {"a": 1, "b": 1, "c": 1}),
        (10, {"a": 6, "b": 3, "c": 1}),
        (5, {"a": 3, "b": 1, "c": 1}),  # 60/2 = 30, then 60/3 = 20 against 30/2 = 15
    ],
)
def test_slices_are_as_large_as_the_shares_and_never_empty(count: int, runs: dict[str, int]) -> None:
    instances = tuple(f"engine-{i}" for i in range(count))
    assert Counter(slice_instances(7, SHARES, instances).values()) == Counter(runs)


def test_an_instance_more_changes_at_most_one_more_per_arm() -> None:
    instances = tuple(f"engine-{i}" for i in range(20))
    for leaving in instances:
        rest = tuple(i for i in instances if i != leaving)
        with_it, without = slice_instances(7, SHARES, instances), slice_instances(7, SHARES, rest)
        assert sum(with_it[i] != without[i] for i in rest) <= len(SHARES)


def test_a_slice_that_was_rolled_back_is_the_first_arms() -> None:
    experiment = ExperimentConfig(seed=7, arms={"one": 50, "two": 50}, isolate="instances")
    instances = [f"engine-{i}" for i in range(4)]
    policy_set = a_regime(experiment)
    assert policy_set.instances_for("one", instances) | policy_set.instances_for("two", instances) == set(instances)
    assert not policy_set.instances_for("one", instances) & policy_set.instances_for("two", instances)
    rolled = policy_set.with_rollback("two")
    assert rolled.instances_for("one", instances) == rolled.instances_for("two", instances) == set(instances)


def test_a_window_has_the_admission_rule_of_its_arm_and_of_the_first_one_after_a_rollback() -> None:
    experiment = ExperimentConfig.model_validate(
        {
            "unit": "time",
            "seed": 7,
            "arms": {
                "one": 30,
                "cap": {"share": 40, "policy": "two", "admission": {"name": "concurrency", "per_target": 3}},
                "open": {"share": 30, "policy": "two", "admission": {"name": "none"}},
            },
        }
    )
    configured = AdmissionConfig(enabled=True, max_wait_s=7.0)
    policy_set = replace(a_regime(experiment), admission=configured)
    rules = {"one": "fit", "cap": "concurrency", "open": "none"}
    seen = set()
    for unit in UNITS[:100]:
        arm, policy = policy_set.assign(unit)
        found = policy_set.admission_of(unit)
        assert (found.rule.name, found.enabled, found.max_wait_s) == (rules[arm], True, 7.0)
        assert policy.name == ("one" if arm == "one" else "two")
        after = policy_set.with_rollback("cap").admission_of(unit)
        assert after.rule.name == ("fit" if arm == "cap" else rules[arm])
        seen.add(arm)
    assert seen == set(rules)
    assert policy_set.admission_of(None) == configured
    assert a_regime().admission_of(UNITS[0]) == AdmissionConfig()
