from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given

from router.config import schema
from router.errors import ConfigError
from router.scheduling.policy.policy import (
    NamedFilter,
    NamedPicker,
    Policy,
    PolicyFault,
    WeightedScorer,
    build_policy,
    fallback_policy,
)
from scorers.best import Best
from scorers.contract import Filter, Needs, Picker, Row, Scorer, Unit, View
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_view, an_overlap, views


@dataclass
class Fixed(Scorer):
    """Answers whatever the test says."""

    unit = Unit.POINTS

    answer: Callable[[View], Any]

    def score(self, view: View) -> Sequence[float]:
        return self.answer(view)


@dataclass
class Only(Filter):
    answer: Callable[[View], Any]

    def keep(self, view: View) -> Sequence[bool]:
        return self.answer(view)


@dataclass
class Pick(Picker):
    answer: Any

    def pick(self, view: View, costs: Sequence[float]) -> int:
        return self.answer


def policy(*scorers: Scorer, filters: Sequence[Filter] = (), picker: Picker | None = None) -> Policy:
    return Policy(
        "test",
        [NamedFilter(f"filter{i}", f) for i, f in enumerate(filters)],
        [WeightedScorer(f"scorer{i}", i + 1.0, s) for i, s in enumerate(scorers)],
        NamedPicker("picker", picker or Best()),
    )


def read(**spec: Any) -> schema.PolicyConfig:
    return schema.PolicyConfig.model_validate(spec)


ROWS = (a_row("a"), a_row("b"), a_row("c"))

LLMD = read(
    scorers=[
        {"name": "queue_depth", "weight": 2},
        {"name": "kv_usage", "weight": 2},
        {"name": "prefix_overlap", "weight": 3},
    ]
)


def test_a_decision_worked_by_hand() -> None:
    # a: queue (8-2)/(8-2) = 1, memory 0.5, overlap 1 - 900/1000 = 0.1 -> 2*1 + 2*0.5 + 3*0.1 = 3.3
    # b: queue (2-2)/(8-2) = 0, memory 0.2, overlap 1 - 0/1000   = 1   -> 2*0 + 2*0.2 + 3*1   = 3.4
    # c: queue (5-2)/(8-2) = 0.5, memory 0.1, overlap 1 - 400/1000 = 0.6 -> 1 + 0.2 + 1.8      = 3.0
    view = a_view(
        a_row("a", an_overlap(900), a_load(requests=8, elsewhere=0, kv_usage=0.5)),
        a_row("b", an_overlap(0), a_load(requests=2, elsewhere=0, kv_usage=0.2)),
        a_row("c", an_overlap(400), a_load(requests=5, elsewhere=0, kv_usage=0.1)),
        prompt_tokens=1000,
    )
    decision = build_policy("default", LLMD).decide(view)
    assert decision.costs == pytest.approx((3.3, 3.4, 3.0))
    assert decision.target == "c/0"
    assert [(t.name, t.unit, t.weight) for t in decision.terms] == [
        ("queue_depth", "points", 2.0),
        ("kv_usage", "points", 2.0),
        ("prefix_overlap", "points", 3.0),
    ]
    assert decision.terms[2].costs == pytest.approx((0.1, 1.0, 0.6))
    assert (decision.policy, decision.view, decision.skipped_filters) == ("default", view, ())


@examples(60)
@given(views())
def test_terms_add_up_to_the_score(view: View) -> None:
    decision = build_policy("default", LLMD).decide(view)
    for i, cost in enumerate(decision.costs):
        assert sum(term.weight * term.costs[i] for term in decision.terms) == pytest.approx(cost)
    assert decision.costs[decision.chosen] == min(decision.costs)


def test_needs_are_those_of_all_parts() -> None:
    assert build_policy("p", LLMD).needs == Needs.CACHE | Needs.LOAD
    assert build_policy("p", read(scorers=[{"name": "random"}])).needs == Needs.NONE
    blind = read(filters=[{"name": "max_waiting"}], scorers=[{"name": "session_affinity"}])
    assert build_policy("p", blind).needs == Needs.LOAD | Needs.SESSION


def test_filters_narrow_the_view_one_after_the_other() -> None:
    seen: list[list[str]] = []

    def last_two(view: View) -> list[bool]:
        seen.append([row.instance for row in view.rows])
        return [row.instance != view.rows[0].instance for row in view.rows]

    zeros = Fixed(lambda view: [0.0] * len(view.rows))
    decision = policy(zeros, filters=[Only(last_two), Only(last_two)]).decide(a_view(*ROWS))
    assert seen == [["a", "b", "c"], ["b", "c"]]
    assert [row.instance for row in decision.rows] == ["c"]
    assert [row.instance for row in decision.view.rows] == ["a", "b", "c"], "who was asked about stays on record"
    assert decision.seen.rows == decision.rows
    assert (decision.target, decision.skipped_filters) == ("c/0", ())


def test_a_filter_that_would_leave_nobody_is_skipped() -> None:
    nobody = Only(lambda view: [False] * len(view.rows))
    decision = policy(Fixed(lambda view: [0.2, 0.1, 0.3]), filters=[nobody]).decide(a_view(*ROWS))
    assert (decision.target, decision.skipped_filters) == ("b/0", ("filter0",))


def broken(_: Any) -> Any:
    raise KeyError("oops")


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (broken, "policy test: scorer1: KeyError: 'oops'"),
        (lambda view: [0.5], "policy test: scorer1: ValueError: 1 costs for 3 rows"),
        (lambda view: [0.5] * 4, "policy test: scorer1: ValueError: 4 costs for 3 rows"),
        (lambda view: [0.5, NAN, 0.5], "policy test: scorer1: ValueError: a cost is not finite: (0.5, nan, 0.5)"),
        (lambda view: [0.5, INF, -INF], "policy test: scorer1: ValueError: a cost is not finite: (0.5, inf, -inf)"),
        (
            lambda view: [0, 0, 1.1],
            "policy test: scorer1: ValueError: costs in points lie between 0 and 1, not 0 to",
        ),
        (lambda view: [0, 0, -1], "policy test: scorer1: ValueError: costs in points lie between 0 and 1, not -1 to 0"),
        (lambda view: None, "policy test: scorer1: TypeError: "),
        (lambda view: ["a", "b", "c"], "policy test: scorer1: TypeError: "),
        (lambda view: [0.1, None, 0.1], "policy test: scorer1: TypeError: "),
    ],
)
def test_a_scorer_at_fault_is_named(answer: Any, complaint: str) -> None:
    fine = Fixed(lambda view: [0.5] * 3)
    with pytest.raises(PolicyFault) as fault:
        policy(fine, Fixed(answer)).decide(a_view(*ROWS))
    assert str(fault.value).startswith(complaint)
    assert (fault.value.policy, fault.value.plugin) == ("test", "scorer1")


def test_rounding_is_not_a_fault() -> None:
    assert policy(Fixed(lambda view: [0.1 * 3 + 0.7, 1.0, 1.0])).decide(a_view(*ROWS))


def test_filters_and_pickers_at_fault_are_named() -> None:
    zeros = Fixed(lambda view: [0.0] * 3)
    with pytest.raises(PolicyFault, match="policy test: filter0: ValueError: 1 answers for 3 rows"):
        policy(zeros, filters=[Only(lambda view: [True])]).decide(a_view(*ROWS))
    with pytest.raises(PolicyFault, match="policy test: filter0: KeyError"):
        policy(zeros, filters=[Only(broken)]).decide(a_view(*ROWS))
    with pytest.raises(PolicyFault, match="policy test: picker: ValueError: picked row 3 of 3"):
        policy(zeros, picker=Pick(3)).decide(a_view(*ROWS))
    with pytest.raises(PolicyFault, match="policy test: picker: TypeError"):
        policy(zeros, picker=Pick(None)).decide(a_view(*ROWS))


def test_a_sum_beyond_all_numbers_is_a_fault() -> None:
    huge = Fixed(lambda view: [1e308] * len(view.rows))
    huge.unit = Unit.RAW  # type: ignore[misc]
    with pytest.raises(PolicyFault, match="weights: the weighted costs add up to more than a number can hold"):
        Policy("test", [], [WeightedScorer("huge", 1e10, huge)], NamedPicker("best", Best())).decide(a_view(ROWS[0]))


@pytest.mark.parametrize(
    ("spec", "complaints"),
    [
        (
            {"scorers": [{"name": "queue_deph"}]},
            ["policies.mine: scorers[0]: unknown scorer 'queue_deph' (did you mean 'queue_depth'?)"],
        ),
        (
            {"scorers": [{"name": "kv_usage", "stale": 3}]},
            [
                "policies.mine: scorers[0].stale: scorer kv_usage: unknown parameter 'stale' (did you mean 'stale_s'?)",
            ],
        ),
        (
            {"filters": [{"name": "nope"}], "scorers": [{"name": "kv_usage"}], "picker": {"name": "bets"}},
            [
                "policies.mine: filters[0]: unknown filter 'nope'; known names: adapter_room, affinity_gate, ",
                "policies.mine: picker: unknown picker 'bets' (did you mean 'best'?)",
            ],
        ),
        (
            {"scorers": [{"name": "kv_usage"}, {"name": "random"}]},
            [
                "policies.mine: scorers: scorers of different units cannot be added up: kv_usage in points, "
                "random in raw; keep those of one unit",
            ],
        ),
        (
            {"scorers": [{"name": "random"}, {"name": "least_requests"}]},
            [
                "policies.mine: scorers: a scorer whose unit is raw must be the only one: random in raw, "
                "least_requests in raw; keep one of them",
            ],
        ),
        (
            {"scorers": [{"name": "kv_usage"}, {"name": "kv_usage", "weight": 2}]},
            ["policies.mine: scorers[1]: scorer kv_usage is listed already, as scorers[0]: remove one of the two"],
        ),
        (
            {"scorers": [{"name": "kv_usage", "weight": 0}]},
            ["policies.mine: scorers: at least one scorer needs a weight above 0"],
        ),
    ],
)
def test_what_does_not_fit_is_refused(spec: dict[str, Any], complaints: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        build_policy("mine", read(**spec))
    lines = str(refusal.value).splitlines()
    assert len(lines) == len(complaints)
    for line, complaint in zip(lines, complaints, strict=True):
        assert line.startswith(complaint)


def test_the_name_of_the_fallback_is_taken() -> None:
    with pytest.raises(
        ConfigError, match=r"policies\.fallback: found the name of the policy that decides when another fails"
    ):
        build_policy("fallback", LLMD)


@examples(40)
@given(views())
def test_the_fallback_takes_the_fewest_own_requests_whatever_the_view(view: View) -> None:
    decision = fallback_policy().decide(view)
    assert decision.policy == "fallback"
    assert decision.row.load.requests == min(row.load.requests for row in view.rows)


def test_the_halves_of_a_pair_have_profiles_of_their_own_or_the_policys() -> None:
    whole = build_policy("mine", read(scorers=[{"name": "round_robin"}], decode={"scorers": [{"name": "kv_usage"}]}))
    decisions = {part: whole.decide(a_view(*ROWS), part) for part in ("whole", "prefill", "decode")}
    assert {part: decision.policy for part, decision in decisions.items()} == {
        "whole": "mine", "prefill": "mine", "decode": "mine.decode",
    }  # fmt: skip
    assert [decision.part for decision in decisions.values()] == ["whole", "prefill", "decode"]
    assert whole.needs == Needs.LOAD, "all that any part reads"
    assert whole.prefill_from_tokens == 0
    measuring = build_policy("mine", read(scorers=[{"name": "round_robin"}], prefill_from_tokens=100))
    assert (measuring.prefill_from_tokens, measuring.needs) == (100, Needs.CACHE), "a prompt must be counted first"


def test_what_is_wrong_with_a_profile_is_said_with_its_place() -> None:
    spec = read(
        scorers=[{"name": "round_robin"}],
        prefill={"scorers": [{"name": "nope"}], "filters": [{"name": "none"}]},
        decode={"scorers": [{"name": "kv_usage", "weight": 0}], "picker": {"name": "wurst"}},
    )
    with pytest.raises(ConfigError) as refusal:
        build_policy("mine", spec)
    begins = ["prefill.filters[0]: ", "prefill.scorers[0]: ", "decode.picker: ", "decode.scorers: at least one scorer"]
    lines = str(refusal.value).splitlines()
    assert len(lines) == len(begins)
    assert [line.startswith(f"policies.mine: {begin}") for line, begin in zip(lines, begins, strict=True)] == [True] * 4


@dataclass
class Learner(Scorer):
    """Has a parameter, and something learned."""

    unit = Unit.POINTS

    share: float = 0.5
    lessons: list[str] = field(default_factory=list, init=False)

    def score(self, view: View) -> Sequence[float]:
        return [self.share] * len(view.rows)

    def picked(self, view: View, row: Row) -> None:
        self.lessons.append(row.target)


def learning(share: float, weight: float = 1.0, *, prefill: Policy | None = None) -> Policy:
    return Policy(
        "p", [], [WeightedScorer("learner", weight, Learner(share))], NamedPicker("best", Best()), prefill=prefill
    )


def test_what_was_learned_goes_on_where_name_and_parameters_are_equal() -> None:
    before = learning(0.5, prefill=learning(0.1))
    same = learning(0.5, weight=2.0, prefill=learning(0.1)).with_plugins_of(
        before
    )  # a weight is the policy's, not the scorer's
    assert same.scorers[0].scorer is before.scorers[0].scorer
    assert same.scorers[0].weight == 2.0
    assert same.decide(a_view(*ROWS), "prefill").learners == before.decide(a_view(*ROWS), "prefill").learners
    assert learning(0.6).with_plugins_of(before).scorers[0].scorer is not before.scorers[0].scorer
    renamed = Policy(
        "p", [], [WeightedScorer("pupil", 1.0, Learner(0.5))], NamedPicker("best", Best())
    ).with_plugins_of(before)
    assert renamed.scorers[0].scorer is not before.scorers[0].scorer


def test_a_digest_names_what_a_policy_says() -> None:
    one, same = (
        build_policy("a", read(scorers=[{"name": "random"}])),
        build_policy("b", read(scorers=[{"name": "random"}])),
    )
    other = build_policy("a", read(scorers=[{"name": "random", "weight": 2}]))
    assert one.digest == same.digest != other.digest
    assert learning(0.5).digest == "by hand"


def test_the_margin_is_to_the_next_best() -> None:
    decision = policy(Fixed(lambda view: [0.9, 0.25, 0.5])).decide(a_view(*ROWS))
    assert (decision.target, decision.margin) == ("b/0", 0.25)
    assert policy(Fixed(lambda view: [0.9])).decide(a_view(ROWS[0])).margin is None
