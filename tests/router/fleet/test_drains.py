"""Drains that several processes decide: all agree, in whatever order the decisions arrive."""

from __future__ import annotations

from itertools import permutations

from router.fleet.drains import MOST_DECISIONS, DrainDecision, DrainDecisions


def decide(by: str, instance: str, on: bool) -> DrainDecision:
    """A decision of a process that knows no other."""
    decisions = DrainDecisions(by)
    decisions.decide(instance, on)
    return decisions.latest(instance)


def test_the_later_decision_counts_whoever_made_it() -> None:
    a, b = DrainDecisions("a"), DrainDecisions("b")
    a.decide("engine", True)
    drain = a.latest("engine")
    assert b.accept(drain)
    b.decide("engine", False)
    assert a.accept(b.latest("engine"))
    assert not a.accept(drain)  # sent again, in a state
    assert [*a] == [*b] == [DrainDecision("engine", False, 2, "b")]


def test_decisions_made_at_once_end_the_same_everywhere() -> None:
    made = [decide("a", "engine", True), decide("b", "engine", False), decide("c", "other", True)]
    for order in permutations(made):
        decisions = DrainDecisions("d")
        for decided in order:
            decisions.accept(decided)
        assert {decided.instance: decided.by for decided in decisions} == {"engine": "b", "other": "c"}


def test_the_oldest_decisions_are_dropped() -> None:
    decisions = DrainDecisions("a")
    for number in range(MOST_DECISIONS + 2):
        decisions.decide(f"pod-{number}", True)
        decisions.decide("pod-0", True)
    assert len([*decisions]) == MOST_DECISIONS
    assert decisions.drains("pod-0")
    assert not decisions.drains("pod-1")
