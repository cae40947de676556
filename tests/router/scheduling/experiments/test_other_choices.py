"""What others would have chosen: on the recorded view, by their own costs, with what speaks against it."""

from __future__ import annotations

from typing import Any

import pytest

from router.config import schema
from router.scheduling.experiments.other_choices import BLIND, LEARNS, PARTIAL, OtherChoice, decide_with
from router.scheduling.policy.decision import Regret
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from scorers.best import Best
from tests.suites.plugins import Fixed, Pupil
from tests.suites.views import a_load, a_row, a_view, an_overlap


def built(name: str, **spec: Any) -> Policy:
    return build_policy(name, schema.PolicyConfig.model_validate({"scorers": [{"name": name}], **spec}))


def by_hand(name: str, scorer: Any) -> Policy:
    return Policy(name, [], [WeightedScorer(name, 1.0, scorer)], NamedPicker("best", Best()))


LEAST, OVERLAP = built("least_requests"), built("prefix_overlap")
# 5 + 1000 * 0.125 + 0.5 = 130.5 ms at b; 200 tokens after 800 at a: 5 + 25 + 0.18
VIEW = a_view(a_row("a", an_overlap(800), a_load(requests=4, waiting=9)), a_row("b", an_overlap(0)), prompt_tokens=1000)


def test_another_choice_with_its_own_costs_and_the_difference() -> None:
    actual = LEAST.decide(VIEW)
    assert actual.target == "b/0"
    assert decide_with(OVERLAP, actual, LEAST) == OtherChoice(
        "prefix_overlap", OVERLAP.digest, "a/0",
        why="a/0: prefix_overlap costs 0.80 points less than at b/0, the runner-up",
        unit="points", cost=pytest.approx(0.2), actual_cost=1.0, difference=Regret(pytest.approx(30.18 - 130.5), 800),
    )  # fmt: skip


def test_the_same_choice_differs_by_nothing() -> None:
    other = decide_with(built("token_load"), OVERLAP.decide(VIEW._replace(rows=VIEW.rows[:1])), OVERLAP)
    assert (other.target, other.difference, other.actual_cost) == ("a/0", Regret(0.0, 0), other.cost)


def test_a_target_that_its_filters_drop_has_no_cost() -> None:
    strict = built("prefix_overlap", filters=[{"name": "max_waiting", "waiting": 4}])
    other = decide_with(strict, OVERLAP.decide(VIEW), OVERLAP)
    assert (other.target, other.actual_cost) == ("b/0", None)


def test_what_speaks_against_it() -> None:
    blind = a_view(a_row("a"), a_row("b"))
    assert decide_with(OVERLAP, LEAST.decide(blind), LEAST).notes == (BLIND,)
    part = VIEW._replace(others=97)
    assert decide_with(OVERLAP, LEAST.decide(part), LEAST).notes == (PARTIAL,)
    pupil = by_hand("pupil", Pupil())
    assert decide_with(pupil, LEAST.decide(VIEW), LEAST).notes == (LEARNS,)
    assert pupil.scorers[0].scorer.lessons == 0  # type: ignore[attr-defined]


def test_a_policy_that_fails_says_so() -> None:
    other = decide_with(by_hand("odd", Fixed()), LEAST.decide(VIEW), LEAST)
    assert other == OtherChoice("odd", "by hand", fault="policy odd: odd: RuntimeError: boom")
