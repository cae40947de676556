"""One cell of a comparison: a policy on a fleet under a load, from one seed; what it comes to, or why it failed.

Values that go to worker processes and come back. The load says what "more" means for a workload: an open one is played
faster, a closed loop has more sessions at work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from router.config.schema import PolicyConfig
from router.testbed.simulator.outcome import ServiceLimits, SimulationFigures, SimulationOutcome, compute_figures
from router.testbed.simulator.scenario import Scenario
from router.testbed.sweep.fleets import FleetOption
from router.testbed.workloads import Workload
from router.testbed.workloads.source import WorkloadSpec as Size
from router.testbed.workloads.source import load_workload


class WorkloadSource(NamedTuple):
    """Where a workload comes from: a preset or a file, and how big it is to be."""

    name: str
    size: Size = Size()

    def workload(self, seed: int, told: Callable[[str], None]) -> Workload:
        """`told` hears of lines that cannot be used."""
        return load_workload(self.name, seed=seed, told=told, **self.size._asdict())


class LoadLevel(NamedTuple):
    """How much of a workload comes at once."""

    kind: Literal["rate", "rho", "sessions"]
    value: float  # requests per second | as testbed/workloads/offered_load.py has it | sessions per instance

    def __str__(self) -> str:
        match self.kind:
            case "rate":
                return f"{self.value:,.4g} requests/s"
            case "rho":
                return f"rho {self.value:.3g}"
            case "sessions":
                return f"{self.value:,.4g} sessions per instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    policy: str
    rules: PolicyConfig
    fleet: FleetOption
    scenario: Scenario  # what follows from it
    source: WorkloadSource
    load: LoadLevel
    seed: int
    limits: ServiceLimits
    staggered: bool = True  # closed loop: the first sessions begin somewhere in their course
    since_s: float = 0.0  # virtual time before which nothing is counted
    until_s: float | None = None  # and after which nothing is sent or counted; None: to the end

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.fleet}, {self.load}, seed {self.seed}"


class CellResult(NamedTuple):
    """What a cell came to. Nothing in it depends on the machine that computed it."""

    cell: SweepCell
    requests_per_s: float | None  # that came, where the load says it; None: a closed loop
    figures: SimulationFigures
    took_s: float  # virtual
    decisions: int
    preemptions: int
    double_bookings: int


class CellFailure(NamedTuple):
    what: str
    reason: str


def measure_cell(
    cell: SweepCell, outcome: SimulationOutcome, requests_per_s: float | None, last_s: float | None
) -> CellResult:
    """`last_s`: when the last request of an open workload came. What ends after it would say how long the fleet takes
    to become empty, not how much it serves, so that is the end of the window if the cell says none.
    """
    until_s = last_s if cell.until_s is None else cell.until_s
    counted = compute_figures(outcome, cell.limits, cell.since_s, until_s)
    return CellResult(
        cell,
        requests_per_s,
        counted,
        outcome.took_s,
        outcome.decisions,
        outcome.preemptions,
        outcome.double_bookings,
    )
