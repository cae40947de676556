"""Parts of a decision's costs: from the view it has, by the policy that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given

from router.config import schema
from router.scheduling.policy.cost_parts import NO_PARTS, NO_SUM, split_costs
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy, fallback_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from router.scheduling.policy.record_view import describe_record
from scorers.best import Best
from scorers.contract import Outcome, Scorer, Unit, View
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

VIEW = a_view(
    a_row("a", an_overlap(320), a_load(queued_ms=50.0)), a_row("b", an_overlap(0)), prompt_tokens=1000, busy=0.5
)


def built(*names: str, **spec: object) -> Policy:
    described = {"scorers": [{"name": name} for name in names], **spec}
    return build_policy("tried", schema.PolicyConfig.model_validate(described))


def by_hand(scorer: Scorer) -> Policy:
    return Policy("tried", [], [WeightedScorer("odd", 2.0, scorer)], NamedPicker("best", Best()))


@dataclass
class Odd(Scorer):
    """Returns the parts that it is given."""

    unit = Unit.RAW

    given: Mapping[str, Sequence[float]] | Exception | None = None

    def score(self, view: View) -> Sequence[float]:
        return [3.0] * len(view.rows)

    def parts(self, view: View) -> Mapping[str, Sequence[float]] | None:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@examples(40)
@given(views())
def test_parts_are_those_of_the_rows_that_were_priced(view: View) -> None:
    policy = built("warm", filters=[{"name": "near_longest"}])
    decision = policy.decide(view)
    parts, missing = split_costs(decision, policy)
    assert not missing
    sums = [sum(values) for values in zip(*parts["warm"].values(), strict=True)]
    assert sums == pytest.approx(decision.terms[0].costs)


def test_terms_without_parts_have_none() -> None:
    policy = built("queue_depth", "prefix_overlap")
    assert split_costs(policy.decide(VIEW), policy) == NO_PARTS


def test_the_halves_of_a_pair_have_those_of_their_own_policies() -> None:
    policy = built("least_requests", prefill={"scorers": [{"name": "expected_ttft"}]})
    assert list(split_costs(policy.decide(VIEW, "prefill"), policy).by_term) == ["expected_ttft"]
    assert split_costs(policy.decide(VIEW), policy) == NO_PARTS


def test_a_fallback_has_none_and_neither_has_an_unknown_policy() -> None:
    assert split_costs(fallback_policy().decide(VIEW), built("warm")) == NO_PARTS
    assert split_costs(built("warm").decide(VIEW), None) == NO_PARTS


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"a": [1.0, 1.0], "b": [2.0, 1.9]}, f"ValueError: {NO_SUM}"),
        ({"a": [float("nan"), 3.0]}, f"ValueError: {NO_SUM}"),
        ({"a": [3.0]}, "ValueError: zip() argument 2 is shorter than argument 1"),
        (RuntimeError("boom"), "RuntimeError: boom"),
    ],
)
def test_what_a_plug_in_gets_wrong_is_said_and_harms_nothing(
    given: Mapping[str, Sequence[float]] | Exception, reason: str
) -> None:
    policy = by_hand(Odd(given))
    assert split_costs(policy.decide(VIEW), policy) == ({}, {"odd": reason})


def test_a_scorer_that_has_learned_since_no_longer_knows_the_parts() -> None:
    policy = built("lbgr")
    decision = policy.decide(VIEW)
    assert list(split_costs(decision, policy).by_term) == ["lbgr"]
    (learner,) = decision.learners
    learner.picked(VIEW, decision.row)
    learner.finished(VIEW, decision.row, Outcome(True, 200, 900.0, 900.0, 1000, 0, 1))
    assert split_costs(decision, policy) == ({}, {"lbgr": f"ValueError: {NO_SUM}"})


def test_a_record_names_them_by_candidate_unweighted_and_a_list_does_not() -> None:
    policy = built("warm")
    record = Record("run-7", 7, 1.0, 2.0, "/v1/completions", "m", True, "local", 40, Stages(), policy=policy)
    half = policy.decide(VIEW, "prefill")
    record.attempts = [Attempt(policy.decide(VIEW), 0, 0, prefill=PrefillRecord(half, 0, 0))]
    (attempt,) = describe_record(record)["attempts"]
    for choice in (attempt, attempt["prefill"]):
        for candidate in choice["candidates"]:
            term = candidate["terms"]["warm"]
            assert sum(term["parts"].values()) == pytest.approx(term["cost"])
        assert choice["parts_missing"] == {}
    # 5 + 0.125 * 680 + (680 * (320 + 340)) / 1e6 of its own, at busy 0.5 twice as much behind it
    assert attempt["candidates"][0]["terms"]["warm"]["parts"] == pytest.approx({
        "wait": 50.0, "compute": 90.4488, "answers_held_up": 0, "own_answer": 0, "memory_shortage": 0,
        "work_behind": 180.8976,
    })  # fmt: skip
    (brief,) = describe_record(record, in_full=False)["attempts"]
    assert "parts" not in brief["candidates"][0]["terms"]["warm"]


def test_a_decision_asks_for_no_parts() -> None:
    policy = by_hand(Odd(RuntimeError("asked")))
    assert policy.decide(VIEW).target in ("a/0", "b/0")
