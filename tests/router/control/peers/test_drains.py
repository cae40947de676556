"""Drains that several processes decide: all agree, in whatever order the decisions arrive."""

from __future__ import annotations

from itertools import permutations

from router.control.peers.drains import DrainDecisions
from router.control.peers.messages import DrainMessage


def test_the_later_decision_counts_whoever_made_it() -> None:
    a, b = DrainDecisions("a"), DrainDecisions("b")
    drain = a.decide("engine", True)
    assert b.accept(drain)
    undrain = b.decide("engine", False)
    assert a.accept(undrain)
    assert not a.accept(drain)  # sent again, in a state
    assert [*a] == [*b] == [DrainMessage("engine", False, 2, "b")]


def test_decisions_made_at_once_end_the_same_everywhere() -> None:
    made = [
        DrainDecisions("a").decide("engine", True),
        DrainDecisions("b").decide("engine", False),
        DrainDecisions("c").decide("other", True),
    ]
    for order in permutations(made):
        decisions = DrainDecisions("d")
        for message in order:
            decisions.accept(message)
        assert {message.instance: message.by for message in decisions} == {"engine": "b", "other": "c"}
