"""Fleets of two speeds, and instances that join and leave while requests come."""

from __future__ import annotations

from dataclasses import replace

from router.lab.simulator.outcome import RequestEnd
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import Presence, Scenario, Trouble
from router.lab.workloads.model import Session, Span, Turn, Workload
from tests.suites.simulation import LEAST, PROFILE, WARM

FLEET = Scenario(profile=PROFILE, instances=3)


def asked(requests: int, per_s: float, answer: int) -> Workload:
    """Requests of 4,000 tokens, each of its own text."""
    turns = (Turn(0, (Span(number, 4000),), answer, 0.0) for number in range(requests))
    return Workload("asked", 0, tuple(Session(at, at / per_s, (turn,)) for at, turn in enumerate(turns)))


def test_an_instance_gets_requests_only_while_it_is_in_the_fleet() -> None:
    scenario = replace(FLEET, presences=(Presence(1, joins_s=10.0), Presence(2, leaves_s=20.0)))
    outcome = simulate(scenario, LEAST, asked(120, per_s=4.0, answer=100))
    assert set(outcome.end) == {RequestEnd.OK}
    assert outcome.double_bookings == 0
    sent_s = {number: [at for at, to in zip(outcome.arrived_s, outcome.instance, strict=True) if to == number]
              for number in range(3)}  # fmt: skip
    assert min(sent_s[0]) < 1.0
    assert max(sent_s[0]) > 28.0
    assert 10.0 <= min(sent_s[1]) < 12.0
    assert max(sent_s[1]) > 28.0
    assert min(sent_s[2]) < 1.0
    assert 18.0 < max(sent_s[2]) < 20.0


def test_an_instance_that_leaves_finishes_what_it_has() -> None:
    scenario = replace(FLEET, instances=2, presences=(Presence(0, leaves_s=1.0),))
    outcome = simulate(scenario, LEAST, asked(2, per_s=100.0, answer=300))
    assert sorted(outcome.instance) == [0, 1]
    assert set(outcome.end) == {RequestEnd.OK}
    assert min(outcome.duration_s) > 3.0  # 300 tokens of 12 ms and more: it left long before


def test_a_router_that_starts_late_knows_who_is_there_by_then() -> None:
    presences = (Presence(1, joins_s=5.0), Presence(2, leaves_s=5.0))
    scenario = replace(FLEET, presences=presences, trouble=Trouble(router_starts_s=10.0))
    outcome = simulate(scenario, WARM, asked(80, per_s=4.0, answer=20))
    assert set(outcome.end) == {RequestEnd.OK}
    late = {to for at, to in zip(outcome.arrived_s, outcome.instance, strict=True) if at >= 10.0}
    assert late == {0, 1}


def test_faster_instances_of_a_fleet_get_more_by_their_queues() -> None:
    slow = replace(PROFILE, us_per_token=240.0)
    outcome = simulate(replace(FLEET, profiles=(PROFILE, slow, slow)), LEAST, asked(200, per_s=6.0, answer=20))
    counts = [list(outcome.instance).count(number) for number in range(3)]
    assert counts[0] > 1.2 * max(counts[1:])
