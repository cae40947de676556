"""Splits of an alias: who is on which arm, and what an arm's requests count as."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.config.sections.models import AliasConfig
from router.scheduling.experiments.model_split import ModelSplit
from router.scheduling.experiments.policy_set import draw_arm
from tests.router.scheduling.experiments.traffic import a_record, finish
from tests.suites.properties import examples

EVEN = {"stable": {"model": "llama", "share": 50}, "canary": {"model": "qwen", "share": 50}}


def a_split(arms: dict[str, Any] | None = None, name: str = "chat", **experiment: Any) -> ModelSplit:
    return ModelSplit(name, AliasConfig.model_validate({"split": arms or EVEN, "experiment": experiment}))


def units(count: int, seed: int = 0) -> list[bytes]:
    return [blake2b(b"%d %d" % (seed, n), digest_size=16).digest() for n in range(count)]


@examples(40)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), st.integers(0, 2**32))
def test_shares_hold_and_a_unit_stays(weights: list[int], seed: int) -> None:
    """5,000 units: four standard deviations of a share are at most 2.9 %."""
    shares = [weight * 100 / sum(weights) for weight in weights]
    arms = {f"arm-{n}": {"model": f"m{n}", "share": share} for n, share in enumerate(shares)}
    split, again = a_split(arms, seed=seed), a_split(arms, seed=seed)
    drawn = [split.assign(unit) for unit in units(5000)]
    assert drawn == [again.assign(unit) for unit in units(5000)]
    counts = Counter(each.arm for each in drawn)
    assert all(abs(counts[f"arm-{n}"] / 50 - share) < 3 for n, share in enumerate(shares))


@examples(20)
@given(st.integers(1, 98), st.integers(0, 1000))
def test_a_larger_share_moves_only_units_that_must_move(share: int, seed: int) -> None:
    def arms(canary: int) -> dict[str, Any]:
        return {"stable": {"model": "a", "share": 100 - canary}, "canary": {"model": "b", "share": canary}}

    before, after = a_split(arms(share), seed=seed), a_split(arms(share + 1), seed=seed)
    moves = {(before.assign(unit).arm, after.assign(unit).arm) for unit in units(2000)}
    assert ("canary", "stable") not in moves


def test_splits_and_experiments_with_the_same_arms_and_seed_are_independent() -> None:
    one, other = a_split(), a_split(name="code")
    both = Counter((one.assign(unit).arm, other.assign(unit).arm) for unit in units(4000))
    policies = Counter((one.assign(u).arm, draw_arm(0, {"stable": 50.0, "canary": 50.0}, u)) for u in units(4000))
    assert all(850 < counts < 1150 for found in (both, policies) for counts in found.values())


def test_a_rolled_back_arms_units_go_to_the_first_one_and_count_for_nothing() -> None:
    split = a_split()
    before = {unit: split.assign(unit) for unit in units(200)}
    assert split.roll_back("canary")
    for unit, (arm, drawn) in before.items():
        assert drawn
        assert split.assign(unit) == ("stable", arm == "stable")
    assert not split.roll_back("canary"), "it is out already"
    assert not split.roll_back("stable"), "nothing is known to be better"
    assert not split.roll_back("nobody")


def test_a_request_that_another_model_answers_has_failed_for_its_arm() -> None:
    split = a_split({"only": {"model": "llama", "share": 100}}, limits={"error_rate_max": 0.5})
    left, stayed = a_record(1, 0.0), a_record(2, 0.0)
    for record in (left, stayed):
        split.begin("only", b"unit", record)
    split.leave(left, 0.5)
    for record in (left, stayed):
        split.end(finish(record))
    split.experiment.poll(1000.0)
    (arm,) = split.experiment.report().arms
    assert (arm.requests, arm.failed, arm.model) == (2, 1, "llama")
    assert left.status == 200, "its own record says what the client got"
    limit = split.experiment.counts().arms[0].limits["error_rate_max"]
    assert (limit.requests, limit.bad) == (2, 1)


def test_lengths_of_answers_are_compared_in_both_directions() -> None:
    verdicts = {}
    for length in (50, 100, 200):
        split, dice = a_split(observe_s=1.0), Random(length)
        for number, unit in enumerate(units(1500, seed=length)):
            arm, _ = split.assign(unit)
            record = a_record(number, float(number))
            split.begin(arm, unit, record)
            mean = length if arm == "canary" else 100
            record.output_tokens = max(1, round(dice.gauss(mean, 10)))
            split.end(finish(record))
            split.experiment.poll(number + 5.0)
        stable, canary = split.experiment.report().arms
        assert [standing.metric for standing in stable.standings][-1] == "output_p50"
        verdicts[length] = canary.standings[-1].verdict
        assert canary.standings[-1].estimate is not None
        assert abs(canary.standings[-1].estimate - length) < 3
    assert verdicts == {50: "shorter", 100: "not yet known", 200: "longer"}


def test_other_settings_are_another_split() -> None:
    prints = {a_split().fingerprint, a_split(name="code").fingerprint, a_split(seed=1).fingerprint}
    moved = {"stable": EVEN["stable"], "canary": {"model": "gemma", "share": 50}}
    assert len(prints | {a_split(moved).fingerprint}) == 4
    assert a_split().fingerprint == a_split().fingerprint
