import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from router.config import schema
from router.scheduling.experiments.shadow import Shadow, ShadowPolicy
from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from scorers.best import Best
from scorers.contract import Outcome, Row, Scorer, Unit, View
from tests.suites.views import a_load, a_row, a_view, an_overlap

ROWS = (a_row("a", load=a_load(requests=1)), a_row("b"), a_row("c", load=a_load(requests=2)))


def named(name: str) -> Policy:
    return build_policy(name, schema.PolicyConfig.model_validate({"scorers": [{"name": name}]}))


def of(scorer: Scorer) -> Policy:
    return Policy("mine", [], [WeightedScorer("it", 1.0, scorer)], NamedPicker("best", Best()))


@dataclass
class Fixed(Scorer):
    """Always the same target; every lesson is a mistake."""

    unit = Unit.RAW

    target: str = "a/0"

    def score(self, view: View) -> Sequence[float]:
        return [float(row.target != self.target) for row in view.rows]

    def picked(self, view: View, row: Row) -> None:
        raise AssertionError("a shadow's choice was never made")

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        raise AssertionError("a shadow's choice has no outcome")


@dataclass
class Breaking(Scorer):
    unit = Unit.RAW

    calls: int = 0

    def score(self, view: View) -> Sequence[float]:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("boom")
        return [0.0] * len(view.rows)


def made_at(target: str, **known: object) -> Decision:
    return of(Fixed(target)).decide(a_view(*ROWS, **known))


def test_a_shadow_tells_what_it_would_have_done_and_the_difference() -> None:
    shadow = Shadow(named("least_requests"))
    warm = a_row("a", an_overlap(800), a_load(requests=1))
    view = a_view(warm, a_row("b", an_overlap(0)), prompt_tokens=1000)
    looked = shadow.evaluate(of(Fixed("a/0")).decide(view))
    assert looked is not None
    assert (looked.policy, looked.target) == ("least_requests", "b/0")
    # a: 5 + 25 + 200 * 900 * 1e-6 = 30.18 ms; b: 5 + 125 + 1000 * 500 * 1e-6 = 130.5 ms
    assert looked.difference.ttft_ms == pytest.approx(130.5 - 30.18)
    assert looked.difference.overlap_tokens == -800
    assert shadow.regret.summary().moves == {("a/0", "b/0"): 1}


def test_a_shadow_sees_what_the_filters_of_the_live_policy_dropped() -> None:
    shadow = Shadow(named("least_requests"))
    made = made_at("a/0")
    looked = shadow.evaluate(made._replace(rows=made.rows[:1], costs=made.costs[:1], chosen=0))
    assert looked is not None
    assert looked.target == "b/0"


def test_a_shadow_neither_books_nor_learns() -> None:
    shadow = Shadow(of(Fixed("b/0")))
    made = made_at("a/0", session="s")
    before = made.view
    for _ in range(3):
        shadow.evaluate(made)  # a lesson would raise
    assert made.view == before
    assert shadow.regret.summary().decisions == 3


def test_it_keeps_sessions_where_it_would_have_sent_them() -> None:
    shadow = Shadow(named("session_affinity"))
    first = shadow.evaluate(made_at("a/0", session="s", last_target="b/0"))
    second = shadow.evaluate(made_at("c/0", session="s", last_target="a/0"))
    assert first is not None
    assert second is not None
    assert (first.target, second.target) == ("b/0", "b/0")  # the live policy's a/0 is not its history


def test_a_parent_is_where_the_shadow_would_have_sent_it() -> None:
    seen: list[str | None] = []

    class Looks(Fixed):
        def score(self, view: View) -> Sequence[float]:
            seen.append(view.parent_target)
            return super().score(view)

    shadow = Shadow(of(Looks("b/0")))
    shadow.evaluate(made_at("a/0", session="p"))
    shadow.evaluate(made_at("a/0", session="c", parent="p", parent_target="a/0"))
    shadow.evaluate(made_at("a/0", session="d", parent="other", parent_target="a/0"))
    assert seen == [None, "b/0", "a/0"]


def test_it_goes_along_with_a_session_as_long_as_it_agrees() -> None:
    shadow = Shadow(named("session_affinity"))
    shadow.evaluate(made_at("a/0", session="s", last_target="a/0"))
    # a/0 failed and the request was tried again at c/0: that would have happened to the shadow, too
    looked = shadow.evaluate(made_at("c/0", session="s", last_target="c/0"))
    assert looked is not None
    assert looked.target == "c/0"


def test_a_follower_that_came_back_to_what_was_made_follows_again() -> None:
    follower, keeps = ShadowPolicy(), named("session_affinity")

    def went(last: str, made: str) -> str:
        return follower.decide(keeps, a_view(*ROWS, session="s", last_target=last), "whole", made).target

    assert went("a/0", "b/0") == "a/0"  # parted
    assert went("b/0", "a/0") == "a/0"  # its own history; they meet
    assert went("c/0", "c/0") == "c/0"


def test_a_shadow_that_breaks_is_out_said_once_and_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    breaking = Breaking()
    shadow = Shadow(of(breaking))
    made = made_at("a/0")
    with caplog.at_level(logging.ERROR, "warmroute.decide"):
        assert shadow.evaluate(made) is not None
        assert [shadow.evaluate(made) for _ in range(5)] == [None] * 5
    assert shadow.fault == "policy mine: it: RuntimeError: boom"
    assert [record.getMessage() for record in caplog.records] == [
        "shadow mine is disabled: policy mine: it: RuntimeError: boom"
    ]
    assert breaking.calls == 2  # once well, once not, then nobody asked it again
    found = shadow.regret.summary()
    assert (found.decisions, found.failed) == (1, 1)
