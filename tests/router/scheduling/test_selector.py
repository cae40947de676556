import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from router.config import schema
from router.config.sections.experiment import ExperimentConfig
from router.scheduling import selector as selecting
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


def decide(selector: Selector, view: View, part: Part = "whole") -> Decision:
    return selector.decide(view, selector.policy_set.policy, part)


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
    selector = Selector(alone(named("random")), seed=1)
    assert [selector.next_number() for _ in range(3)] == [0, 1, 2]


def test_the_view_of_a_decision_holds_all_it_hangs_on() -> None:
    selector = Selector(alone(named("session_affinity")), seed=77)
    view = a_view(*ROWS, session="s", number=5, seed=0)
    first = decide(selector, view)
    selector.picked(first)
    again = decide(selector, view)
    assert (again.view.seed, again.view.number, again.view.turn, again.view.last_target) == (77, 5, 1, first.target)
    assert selector.policy_set.policy.decide(again.view) == again  # a replay of the recorded view chooses the same


def test_sessions_stay_where_they_were() -> None:
    selector = Selector(alone(named("session_affinity")), seed=1)
    for number in range(20):
        first = decide(selector, a_view(*ROWS, session=f"s{number}", number=number))
        selector.picked(first)
        later = decide(selector, a_view(*ROWS, session=f"s{number}", number=100 + number))
        assert later.target == first.target


def test_deciding_leaves_no_trace() -> None:
    selector = Selector(alone(named("round_robin")), seed=1)
    view = a_view(*ROWS, session="s")
    assert [decide(selector, view).target for _ in range(3)] == ["a/0"] * 3
    assert decide(selector, view).view.last_target is None


def test_turns_of_adapters_that_come_and_go_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "MAX_TURNS", 10)
    selector = Selector(alone(named("round_robin")), seed=1)
    for number in range(100):
        selector.picked(decide(selector, a_view(*ROWS, adapter=f"lora-{number}", number=number)))
        assert len(selector._turns) <= 10


def test_turns_are_taken_per_model_and_adapter() -> None:
    selector = Selector(alone(named("round_robin")), seed=1)
    targets: dict[str, list[str]] = {"big": [], "small": [], "lora": []}
    for number in range(9):
        name = ("big", "small", "lora")[number % 3]
        model, adapter = ("big", "lora") if name == "lora" else (name, None)
        decision = decide(selector, a_view(*ROWS, model=model, adapter=adapter, number=number))
        selector.picked(decision)
        targets[name].append(decision.target)
    assert targets == {name: ["a/0", "b/0", "c/0"] for name in targets}


def test_a_swap_changes_the_policy_and_keeps_the_sessions() -> None:
    selector = Selector(alone(named("round_robin")), seed=1)
    selector.picked(decide(selector, a_view(*ROWS)))
    selector.picked(decide(selector, a_view(*ROWS, session="s")))  # second turn: b
    assert selector.needs == Needs.NONE
    selector.swap(alone(named("session_affinity")))
    assert selector.needs == Needs.SESSION
    assert decide(selector, a_view(*ROWS, session="s", number=9)).target == "b/0"


def test_lessons_reach_the_scorers_that_decided_also_after_a_swap() -> None:
    old, new = Pupil(), Pupil()
    selector = Selector(alone(of(old)), seed=1)
    first = decide(selector, a_view(*ROWS))
    selector.picked(first)
    selector.swap(alone(of(new)))
    selector.finished(first, OK)
    assert old.heard == [("picked", first.target), ("finished", first.target, OK)]
    assert new.heard == []


def test_a_broken_policy_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    selector = Selector(alone(of(Broken(), name="bad")), seed=1)
    view = a_view(a_row("a", load=a_load(requests=4)), a_row("b", load=a_load(requests=1)), session="s")
    with caplog.at_level(logging.ERROR, logger="warmroute.decide"):
        decisions = [decide(selector, view) for _ in range(5)]
    assert [(d.policy, d.target) for d in decisions] == [("fallback", "b/0")] * 5
    assert selector.faults == {("bad", "scorer0"): 5}
    assert selector.fallbacks == 5
    # logged at the 1st, 2nd and 4th only, with the plug-in's name and its traceback
    assert [record.getMessage() for record in caplog.records] == [
        f"policy bad: scorer0: RuntimeError: boom (fault {times} of this plug-in)" for times in (1, 2, 4)
    ]
    assert "raise RuntimeError" in caplog.text
    selector.picked(decisions[-1])
    assert decide(selector, view).view.last_target == "b/0"


def test_a_scorer_that_cannot_learn_does_not_keep_others_from_it() -> None:
    pupil = Pupil()
    selector = Selector(alone(of(Unteachable(), pupil)), seed=1)
    decision = decide(selector, a_view(*ROWS))
    selector.picked(decision)
    assert pupil.heard == [("picked", decision.target)]
    assert selector.faults == {("mine", "Unteachable"): 1}
    assert selector.fallbacks == 0


def test_each_part_is_placed_by_its_profile_and_the_whole_one_stands_in() -> None:
    spec = {"scorers": [{"name": "round_robin"}], "prefill": {"scorers": [{"name": "least_requests"}]}}
    selector = Selector(alone(build_policy("p", schema.PolicyConfig.model_validate(spec))), seed=1)
    view = a_view(a_row("a", load=a_load(requests=4)), a_row("b", load=a_load(requests=1)))
    parts = {
        "whole": decide(selector, view),
        "decode": decide(selector, view, "decode"),
        "prefill": decide(selector, view, "prefill"),
    }
    assert {part: decision.policy for part, decision in parts.items()} == {
        "whole": "p", "decode": "p", "prefill": "p.prefill",
    }  # fmt: skip
    assert {part: decision.target for part, decision in parts.items()} == {
        "whole": "a/0", "decode": "a/0", "prefill": "b/0",
    }  # fmt: skip


def test_prefill_halves_have_turns_and_sessions_of_their_own() -> None:
    selector = Selector(alone(named("round_robin")), seed=1)
    selector.picked(decide(selector, a_view(*ROWS, session="s"), "decode"))
    selector.picked(decide(selector, a_view(*ROWS[1:], session="s"), "prefill"))
    selector.picked(decide(selector, a_view(*ROWS, session="s")))
    answers, prefills = (
        decide(selector, a_view(*ROWS, session="s")).view,
        decide(selector, a_view(*ROWS, session="s"), "prefill"),
    )
    assert (answers.turn, answers.last_target) == (2, "b/0")
    assert (prefills.view.turn, prefills.view.last_target) == (1, "b/0")
    selector.picked(prefills)
    assert decide(selector, a_view(*ROWS, session="s"), "prefill").view.last_target == "b/0"


def test_a_broken_profile_is_stood_in_for() -> None:
    bad = of(Broken(), name="p.prefill")
    good = of(Pupil(), name="p")
    whole = Policy("p", good.filters, good.scorers, good.picker, prefill=bad)
    selector = Selector(alone(whole), seed=1)
    assert decide(selector, a_view(*ROWS), "prefill").policy == "fallback"
    assert decide(selector, a_view(*ROWS), "decode").policy == "p"
    assert selector.faults == {("p.prefill", "scorer0"): 1}


def with_shadows(*targets: str) -> PolicySet:
    policies = {"live": of(Fixed("a/0"), name="live")}
    policies |= {target: of(Fixed(BROKEN if target == "boom" else target), name=target) for target in targets}
    experiment = ExperimentConfig(arms={"live": 100}, shadows=list(targets))
    return PolicySet(policies, "live", experiment)


def test_shadows_look_on_and_change_nothing() -> None:
    selector = Selector(with_shadows("b/0", "a/0"), seed=1)
    made = decide(selector, a_view(*ROWS, session="s"))
    selector.picked(made)
    looked = selector.evaluate_shadows(made)
    assert [(one.policy, one.target) for one in looked] == [("b/0", "b/0"), ("a/0", "a/0")]
    again = decide(selector, a_view(*ROWS, session="s"))
    assert (again.view.turn, again.view.last_target) == (1, "a/0"), "history is of what was chosen"


def test_a_shadow_that_breaks_is_out_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    selector = Selector(with_shadows("boom", "c/0"), seed=1)
    made = decide(selector, a_view(*ROWS))
    with caplog.at_level(logging.ERROR):
        looked = [selector.evaluate_shadows(made) for _ in range(3)]
    assert [[one.policy for one in each] for each in looked] == [["c/0"]] * 3
    assert [shadow.fault for shadow in selector.shadows] == ["policy boom: scorer0: RuntimeError: boom", None]
    assert caplog.text.count("shadow boom is disabled") == 1
    assert not selector.faults, "nobody's request was decided by it"


def test_a_shadow_that_stays_through_a_swap_keeps_what_it_has_seen() -> None:
    selector = Selector(with_shadows("b/0"), seed=1)
    selector.evaluate_shadows(decide(selector, a_view(*ROWS)))
    selector.swap(with_shadows("b/0", "c/0"))
    selector.evaluate_shadows(decide(selector, a_view(*ROWS)))
    assert [shadow.regret.summary().decisions for shadow in selector.shadows] == [2, 1]


def test_explaining_counts_nothing() -> None:
    selector = Selector(alone(of(Broken(), name="bad")), seed=1)
    decision = selector.explain(a_view(*ROWS), selector.policy_set.policy)
    assert decision.policy == "fallback"
    assert (selector.faults, selector.fallbacks) == ({}, 0)
    assert decide(selector, a_view(*ROWS)).view.turn == 0
