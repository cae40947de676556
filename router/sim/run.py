"""A fleet and its routers in virtual time (under construction: the signature is final)."""

from __future__ import annotations

from collections.abc import Callable

from router.config import schema
from router.sim.outcome import Outcome
from router.sim.scenario import Scenario
from router.sim.workloads import Workload


def simulate(
    scenario: Scenario,
    policy: schema.Policy,
    workload: Workload,
    *,
    seed: int = 0,
    at_once: int | None = None,
    until_s: float | None = None,
    stopwatch: Callable[[], float] | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Outcome:
    """Serves `workload` by `policy`. `at_once`: closed loop, so many sessions at a time, the next begins when one ends;
    None: each begins at its `start_s`. `until_s`: virtual time at which nothing more is sent; what runs is finished.
    `progress` is told virtual seconds and ended requests now and then.
    """
    raise NotImplementedError
