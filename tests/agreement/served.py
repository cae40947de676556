"""One scenario served once by a policy named as in configs/policies: what every row of the table is made of."""

from __future__ import annotations

from functools import cache

from router.config.schema import PolicyConfig
from router.lab.simulator.outcome import SimulationFigures, SimulationOutcome, compute_figures
from router.lab.simulator.run import simulate
from router.lab.simulator.scenario import Scenario
from router.lab.sweep import options
from router.lab.workloads import source
from router.lab.workloads.arrivals import take_first
from router.lab.workloads.model import Workload
from tests.agreement import trace
from tests.agreement.windows import Window

SEED = 1


@cache
def policy(name: str) -> PolicyConfig:
    return options.load_policies([name])[name]


@cache
def conversation() -> Workload:
    """The public trace, as it is. Raises NoTrace."""
    return source.load_workload(str(trace.conversation()))


def part_of_it(reduced: bool, requests: int) -> Workload:
    """The trace, or its first `requests`."""
    return take_first(conversation(), requests) if reduced else conversation()


def outcome_of(scenario: Scenario, arm: str | PolicyConfig, served: Workload, at_once: int | None = None,
               until_s: float | None = None) -> SimulationOutcome:  # fmt: skip
    """Closed loops (`at_once`) are met in mid-session."""
    chosen = policy(arm) if isinstance(arm, str) else arm
    return simulate(scenario, chosen, served, seed=SEED, at_once=at_once, staggered=True, until_s=until_s)


def figures_of(scenario: Scenario, arm: str | PolicyConfig, served: Workload, at_once: int | None = None,
               window: Window | None = None) -> SimulationFigures:  # fmt: skip
    """Within the window; None: of everything."""
    if window is None:
        return compute_figures(outcome_of(scenario, arm, served, at_once))
    outcome = outcome_of(scenario, arm, served, at_once, window.until_s)
    return compute_figures(outcome, since_s=window.since_s, until_s=window.until_s)
