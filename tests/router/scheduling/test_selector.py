import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from router.config import schema
from router.config.sections.experiment import ExperimentConfig
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.decision import Decision, Part
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from router.scheduling.selector import Selector
from scorers.best import Best
from scorers.contract import Needs, Outcome, Row, Scorer, Unit, View
from tests.suites.plugins import BROKEN, Fixed
from tests.suites.views import a_load, a_row, a_view

ROWS = (a_row("a"), a_row("b"), a_row("c"))
OK = Outcome(True, 200, 12.0, 80.0, 100, 64, 20)


def alone(policy: Policy) -> PolicySet:
    return PolicySet({policy.name: policy}, policy.name)


def decide(desk: Selector, view: View, part: Part = "whole") -> Decision:
    return desk.decide(view, desk.policy_set.policy, part)


def named(*names: str) -> Policy:
    return build_policy("p", schema.PolicyConfig.model_validate({"scorers": [{"name": name} for name in names]}))


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
    desk = Selector(alone(named("random")), seed=1)
    assert [desk.next_number() for _ in range(3)] == [0, 1, 2]


def test_the_view_of_a_decision_holds_all_it_hangs_on() -> None:
    desk = Selector(alone(named("session_affinity")), seed=77)
    view = a_view(*ROWS, session="s", number=5, seed=0)
    first = decide(desk, view)
    desk.picked(first)
    again = decide(desk, view)
    assert (again.view.seed, again.view.number, again.view.turn, again.view.last_target) == (77, 5, 1, first.target)
    assert desk.policy_set.policy.decide(again.view) == again  # a replay of the recorded view chooses the same


def test_sessions_stay_where_they_were() -> None:
    desk = Selector(alone(named("session_affinity")), seed=1)
    for number in range(20):
        first = decide(desk, a_view(*ROWS, session=f"s{number}", number=number))
        desk.picked(first)
        later = decide(desk, a_view(*ROWS, session=f"s{number}", number=100 + number))
        assert later.target == first.target


def test_deciding_leaves_no_trace() -> None:
    desk = Selector(alone(named("round_robin")), seed=1)
    view = a_view(*ROWS, session="s")
    assert [decide(desk, view).target for _ in range(3)] == ["a/0"] * 3
    assert decide(desk, view).view.last_target is None


def test_turns_are_taken_per_model_and_adapter() -> None:
    desk = Selector(alone(named("round_robin")), seed=1)
    targets: dict[str, list[str]] = {"big": [], "small": [], "lora": []}
    for number in range(9):
        name = ("big", "small", "lora")[number % 3]
        model, adapter = ("big", "lora") if name == "lora" else (name, None)
        decision = decide(desk, a_view(*ROWS, model=model, adapter=adapter, number=number))
        desk.picked(decision)
        targets[name].append(decision.target)
    assert targets == {name: ["a/0", "b/0", "c/0"] for name in targets}


def test_a_swap_changes_the_policy_and_keeps_the_sessions() -> None:
    desk = Selector(alone(named("round_robin")), seed=1)
    desk.picked(decide(desk, a_view(*ROWS)))
    desk.picked(decide(desk, a_view(*ROWS, session="s")))  # second turn: b
    assert desk.needs == Needs.NONE
    desk.swap(alone(named("session_affinity")))
    assert desk.needs == Needs.SESSION
    assert decide(desk, a_view(*ROWS, session="s", number=9)).target == "b/0"


def test_lessons_reach_the_scorers_that_decided_also_after_a_swap() -> None:
    old, new = Pupil(), Pupil()
    desk = Selector(alone(of(old)), seed=1)
    first = decide(desk, a_view(*ROWS))
    desk.picked(first)
    desk.swap(alone(of(new)))
    desk.finished(first, OK)
    assert old.heard == [("picked", first.target), ("finished", first.target, OK)]
    assert new.heard == []


def test_a_broken_policy_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    desk = Selector(alone(of(Broken(), name="bad")), seed=1)
    view = a_view(a_row("a", load=a_load(requests=4)), a_row("b", load=a_load(requests=1)), session="s")
    with caplog.at_level(logging.ERROR, logger="warmroute.decide"):
        decisions = [decide(desk, view) for _ in range(5)]
    assert [(d.policy, d.target) for d in decisions] == [("fallback", "b/0")] * 5
    assert desk.faults == {("bad", "scorer0"): 5}
    assert desk.fallbacks == 5
    # logged at the 1st, 2nd and 4th only, with the plug-in's name and its traceback
    assert [record.getMessage() for record in caplog.records] == [
        f"policy bad: scorer0: RuntimeError: boom (fault {times} of this plug-in)" for times in (1, 2, 4)
    ]
    assert "raise RuntimeError" in caplog.text
    desk.picked(decisions[-1])
    assert decide(desk, view).view.last_target == "b/0"


def test_a_scorer_that_cannot_learn_does_not_keep_others_from_it() -> None:
    pupil = Pupil()
    desk = Selector(alone(of(Unteachable(), pupil)), seed=1)
    decision = decide(desk, a_view(*ROWS))
    desk.picked(decision)
    assert pupil.heard == [("picked", decision.target)]
    assert desk.faults == {("mine", "Unteachable"): 1}
    assert desk.fallbacks == 0


def test_each_part_is_placed_by_its_profile_and_the_whole_one_stands_in() -> None:
    spec = {"scorers": [{"name": "round_robin"}], "prefill": {"scorers": [{"name": "least_requests"}]}}
    desk = Selector(alone(build_policy("p", schema.PolicyConfig.model_validate(spec))), seed=1)
    view = a_view(a_row("a", load=a_load(requests=4)), a_row("b", load=a_load(requests=1)))
    parts = {
        "whole": decide(desk, view),
        "decode": decide(desk, view, "decode"),
        "prefill": decide(desk, view, "prefill"),
    }
    assert {part: decision.policy for part, decision in parts.items()} == {
        "whole": "p", "decode": "p", "prefill": "p.prefill",
    }  # fmt: skip
    assert {part: decision.target for part, decision in parts.items()} == {
        "whole": "a/0", "decode": "a/0", "prefill": "b/0",
    }  # fmt: skip


def test_prefill_halves_have_turns_and_sessions_of_their_own() -> None:
    desk = Selector(alone(named("round_robin")), seed=1)
    desk.picked(decide(desk, a_view(*ROWS, session="s"), "decode"))
    desk.picked(decide(desk, a_view(*ROWS[1:], session="s"), "prefill"))
    desk.picked(decide(desk, a_view(*ROWS, session="s")))
    answers, prefills = (
        decide(desk, a_view(*ROWS, session="s")).view,
        decide(desk, a_view(*ROWS, session="s"), "prefill"),
    )
    assert (answers.turn, answers.last_target) == (2, "b/0")
    assert (prefills.view.turn, prefills.view.last_target) == (1, "b/0")
    desk.picked(prefills)
    assert decide(desk, a_view(*ROWS, session="s"), "prefill").view.last_target == "b/0"


def test_a_broken_profile_is_stood_in_for() -> None:
    bad = of(Broken(), name="p.prefill")
    good = of(Pupil(), name="p")
    whole = Policy("p", good.filters, good.scorers, good.picker, prefill=bad)
    desk = Selector(alone(whole), seed=1)
    assert decide(desk, a_view(*ROWS), "prefill").policy == "fallback"
    assert decide(desk, a_view(*ROWS), "decode").policy == "p"
    assert desk.faults == {("p.prefill", "scorer0"): 1}


def with_shadows(*targets: str) -> PolicySet:
    policies = {"live": of(Fixed("a/0"), name="live")}
    policies |= {target: of(Fixed(BROKEN if target == "boom" else target), name=target) for target in targets}
    experiment = ExperimentConfig(arms={"live": 100}, shadows=list(targets))
    return PolicySet(policies, "live", experiment)


def test_shadows_look_on_and_change_nothing() -> None:
    desk = Selector(with_shadows("b/0", "a/0"), seed=1)
    made = decide(desk, a_view(*ROWS, session="s"))
    desk.picked(made)
    looked = desk.evaluate_shadows(made)
    assert [(one.policy, one.target) for one in looked] == [("b/0", "b/0"), ("a/0", "a/0")]
    again = decide(desk, a_view(*ROWS, session="s"))
    assert (again.view.turn, again.view.last_target) == (1, "a/0"), "history is of what was chosen"


def test_a_shadow_that_breaks_is_out_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    desk = Selector(with_shadows("boom", "c/0"), seed=1)
    made = decide(desk, a_view(*ROWS))
    with caplog.at_level(logging.ERROR):
        looked = [desk.evaluate_shadows(made) for _ in range(3)]
    assert [[one.policy for one in each] for each in looked] == [["c/0"]] * 3
    assert [shadow.fault for shadow in desk.shadows] == ["policy boom: scorer0: RuntimeError: boom", None]
    assert caplog.text.count("shadow boom is out") == 1
    assert not desk.faults, "nobody's request was decided by it"


def test_a_shadow_that_stays_through_a_swap_keeps_what_it_has_seen() -> None:
    desk = Selector(with_shadows("b/0"), seed=1)
    desk.evaluate_shadows(decide(desk, a_view(*ROWS)))
    desk.swap(with_shadows("b/0", "c/0"))
    desk.evaluate_shadows(decide(desk, a_view(*ROWS)))
    assert [shadow.regret.summary().decisions for shadow in desk.shadows] == [2, 1]


def test_explaining_counts_nothing() -> None:
    desk = Selector(alone(of(Broken(), name="bad")), seed=1)
    decision = desk.explain(a_view(*ROWS), desk.policy_set.policy)
    assert decision.policy == "fallback"
    assert (desk.faults, desk.fallbacks) == ({}, 0)
    assert decide(desk, a_view(*ROWS)).view.turn == 0
