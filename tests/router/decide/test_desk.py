import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from router.config import schema
from router.decide.desk import Desk, Sessions
from router.decide.policy import NamedPicker, Policy, WeightedScorer, build_policy
from scorers.best import Best
from scorers.contract import Needs, Outcome, Row, Scorer, Unit, View
from tests.suites.views import a_load, a_row, a_view

ROWS = (a_row("a"), a_row("b"), a_row("c"))
OK = Outcome(True, 200, 12.0, 80.0, 100, 64, 20)


def named(*names: str) -> Policy:
    return build_policy("p", schema.Policy.model_validate({"scorers": [{"name": name} for name in names]}))


def of(*scorers: Scorer, name: str = "mine") -> Policy:
    weighted = [WeightedScorer(f"scorer{i}", 1.0, scorer) for i, scorer in enumerate(scorers)]
    return Policy(name, [], weighted, NamedPicker("best", Best()))


@dataclass
class Pupil(Scorer):
    """Remembers its lessons."""

    unit = Unit.RAW

    heard: list[Any] = field(default_factory=list)

    def score(self, view: View) -> Sequence[float]:
        return [0.0] * len(view.rows)

    def picked(self, view: View, row: Row) -> None:
        self.heard.append(("picked", row.target))

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        self.heard.append(("finished", row.target, outcome))


@dataclass
class Broken(Scorer):
    unit = Unit.RAW

    def score(self, view: View) -> Sequence[float]:
        raise RuntimeError("boom")


@dataclass
class Unteachable(Pupil):
    def picked(self, view: View, row: Row) -> None:
        raise RuntimeError("no")


def test_numbers_count_requests() -> None:
    desk = Desk(named("random"), seed=1)
    assert [desk.next_number() for _ in range(3)] == [0, 1, 2]


def test_the_view_of_a_decision_holds_all_it_hangs_on() -> None:
    desk = Desk(named("session_affinity"), seed=77)
    view = a_view(*ROWS, session="s", number=5, seed=0)
    first = desk.decide(view)
    desk.picked(first)
    again = desk.decide(view)
    assert (again.view.seed, again.view.number, again.view.turn, again.view.last_target) == (77, 5, 1, first.target)
    assert desk.policy.decide(again.view) == again  # a replay of the recorded view chooses the same


def test_sessions_stay_where_they_were() -> None:
    desk = Desk(named("session_affinity"), seed=1)
    for number in range(20):
        first = desk.decide(a_view(*ROWS, session=f"s{number}", number=number))
        desk.picked(first)
        later = desk.decide(a_view(*ROWS, session=f"s{number}", number=100 + number))
        assert later.target == first.target


def test_deciding_leaves_no_trace() -> None:
    desk = Desk(named("round_robin"), seed=1)
    view = a_view(*ROWS, session="s")
    assert [desk.decide(view).target for _ in range(3)] == ["a/0"] * 3
    assert desk.decide(view).view.last_target is None


def test_turns_are_taken_per_model_and_adapter() -> None:
    desk = Desk(named("round_robin"), seed=1)
    targets: dict[str, list[str]] = {"big": [], "small": [], "lora": []}
    for number in range(9):
        name = ("big", "small", "lora")[number % 3]
        model, adapter = ("big", "lora") if name == "lora" else (name, None)
        decision = desk.decide(a_view(*ROWS, model=model, adapter=adapter, number=number))
        desk.picked(decision)
        targets[name].append(decision.target)
    assert targets == {name: ["a/0", "b/0", "c/0"] for name in targets}


def test_a_swap_changes_the_policy_and_keeps_the_sessions() -> None:
    desk = Desk(named("round_robin"), seed=1)
    desk.picked(desk.decide(a_view(*ROWS)))
    desk.picked(desk.decide(a_view(*ROWS, session="s")))  # second turn: b
    assert desk.needs == Needs.NONE
    desk.swap(named("session_affinity"))
    assert desk.needs == Needs.SESSION
    assert desk.decide(a_view(*ROWS, session="s", number=9)).target == "b/0"


def test_lessons_reach_the_scorers_that_decided_also_after_a_swap() -> None:
    old, new = Pupil(), Pupil()
    desk = Desk(of(old), seed=1)
    first = desk.decide(a_view(*ROWS))
    desk.picked(first)
    desk.swap(of(new))
    desk.finished(first, OK)
    assert old.heard == [("picked", first.target), ("finished", first.target, OK)]
    assert new.heard == []


def test_a_broken_policy_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(of(Broken(), name="bad"), seed=1)
    view = a_view(a_row("a", load=a_load(requests=4)), a_row("b", load=a_load(requests=1)), session="s")
    with caplog.at_level(logging.ERROR, logger="warmroute.decide"):
        decisions = [desk.decide(view) for _ in range(5)]
    assert [(d.policy, d.target) for d in decisions] == [("fallback", "b/0")] * 5
    assert desk.faults == {("bad", "scorer0"): 5}
    assert desk.fallbacks == 5
    # logged at the 1st, 2nd and 4th only, with the plug-in's name and its traceback
    assert [record.getMessage() for record in caplog.records] == [
        f"policy bad: scorer0: RuntimeError: boom ({times} times so far)" for times in (1, 2, 4)
    ]
    assert "raise RuntimeError" in caplog.text
    desk.picked(decisions[-1])
    assert desk.decide(view).view.last_target == "b/0"


def test_a_scorer_that_cannot_learn_does_not_keep_others_from_it() -> None:
    pupil = Pupil()
    desk = Desk(of(Unteachable(), pupil), seed=1)
    decision = desk.decide(a_view(*ROWS))
    desk.picked(decision)
    assert pupil.heard == [("picked", decision.target)]
    assert desk.faults == {("mine", "Unteachable"): 1}
    assert desk.fallbacks == 0


def test_session_memory_is_bounded_and_forgets_the_longest_away() -> None:
    sessions = Sessions(size=2)
    sessions.went("m", "one", "a/0")
    sessions.went("m", "two", "b/0")
    sessions.went("m", "one", "c/0")  # back again: now "two" is longest away
    sessions.went("m", "three", "a/0")
    assert len(sessions) == 2
    assert [sessions.last("m", name) for name in ("one", "two", "three")] == ["c/0", None, "a/0"]


def test_a_session_is_remembered_per_model_and_none_is_none() -> None:
    sessions = Sessions(size=10)
    sessions.went("m", "one", "a/0")
    sessions.went("m", None, "b/0")
    assert (sessions.last("other", "one"), sessions.last("m", None), len(sessions)) == (None, None, 1)


def test_any_text_names_a_session() -> None:
    sessions = Sessions(size=10)
    for name in ("", "\ud800", "x" * 100_000, "a\0b"):
        sessions.went("m", name, "a/0")
        assert sessions.last("m", name) == "a/0"


def test_each_part_is_placed_by_its_profile_and_the_whole_one_stands_in() -> None:
    spec = {"scorers": [{"name": "round_robin"}], "prefill": {"scorers": [{"name": "least_requests"}]}}
    desk = Desk(build_policy("p", schema.Policy.model_validate(spec)), seed=1)
    view = a_view(a_row("a", load=a_load(requests=4)), a_row("b", load=a_load(requests=1)))
    parts = {"whole": desk.decide(view), "decode": desk.decide(view, "decode"), "prefill": desk.decide(view, "prefill")}
    assert {part: decision.policy for part, decision in parts.items()} == {
        "whole": "p", "decode": "p", "prefill": "p.prefill",
    }  # fmt: skip
    assert {part: decision.target for part, decision in parts.items()} == {
        "whole": "a/0", "decode": "a/0", "prefill": "b/0",
    }  # fmt: skip


def test_prefill_halves_have_turns_and_sessions_of_their_own() -> None:
    desk = Desk(named("round_robin"), seed=1)
    desk.picked(desk.decide(a_view(*ROWS, session="s"), "decode"))
    desk.picked(desk.decide(a_view(*ROWS[1:], session="s"), "prefill"), "prefill")
    desk.picked(desk.decide(a_view(*ROWS, session="s")))
    answers, prefills = desk.decide(a_view(*ROWS, session="s")).view, desk.decide(a_view(*ROWS, session="s"), "prefill")
    assert (answers.turn, answers.last_target) == (2, "b/0")
    assert (prefills.view.turn, prefills.view.last_target) == (1, "b/0")
    desk.picked(prefills, "prefill")
    assert desk.decide(a_view(*ROWS, session="s"), "prefill").view.last_target == "b/0"


def test_a_broken_profile_is_stood_in_for() -> None:
    bad = of(Broken(), name="p.prefill")
    good = of(Pupil(), name="p")
    whole = Policy("p", good.filters, good.scorers, good.picker, prefill=bad)
    desk = Desk(whole, seed=1)
    assert desk.decide(a_view(*ROWS), "prefill").policy == "fallback"
    assert desk.decide(a_view(*ROWS), "decode").policy == "p"
    assert desk.faults == {("p.prefill", "scorer0"): 1}
