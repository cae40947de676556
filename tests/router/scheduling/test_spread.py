"""Where prompts go that share nothing, in an idle fleet: evenly over all instances, whichever was measured first."""

from __future__ import annotations

from collections import Counter

from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import Scenario
from router.lab.workloads.model import Session, Span, Turn, Workload
from tests.suites.simulation import PROFILE, WARM

REQUESTS, INSTANCES = 40, 4


def test_unrelated_prompts_spread_over_idle_twins() -> None:
    sessions = tuple(
        Session(number, 5.0 * number, (Turn(0, (Span(number, 4000),), 10, 0.0),)) for number in range(REQUESTS)
    )
    outcome = simulate(Scenario(profile=PROFILE, instances=INSTANCES), WARM, Workload("unrelated", 0, sessions))
    went = Counter(outcome.instance)
    assert len(went) == INSTANCES
    assert all(8 <= count <= 12 for count in went.values()), went
