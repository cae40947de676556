"""One cell of a comparison: a policy on a fleet under a load with one seed; its result, or why it failed.

These values go to worker processes and come back. A load says what "more" means for a workload: an open one is played
faster, a closed loop has more concurrent sessions.
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
from router.testbed.workloads.source import WorkloadSpec, load_workload


class WorkloadSource(NamedTuple):
    """A workload before it is built: a preset or a file, and its size."""

    name: str
    size: WorkloadSpec = WorkloadSpec()

    def workload(self, seed: int, on_unusable: Callable[[str], None]) -> Workload:
        """Build the workload; `on_unusable` is called with each line of a file that cannot be used."""
        return load_workload(self.name, seed=seed, on_unusable=on_unusable, **self.size._asdict())


class LoadLevel(NamedTuple):
    """The amount of a workload that arrives at once."""

    kind: Literal["rate", "rho", "sessions"]
    value: float  # requests per second | rho of testbed/workloads/offered_load.py | sessions per instance

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
    scenario: Scenario  # made from `fleet`
    source: WorkloadSource
    load: LoadLevel
    seed: int
    limits: ServiceLimits
    staggered: bool = True  # closed loop: the first sessions begin at a random turn
    since_s: float = 0.0  # virtual time before which nothing is counted
    until_s: float | None = None  # virtual time after which nothing is sent or counted; None: to the end

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.fleet}, {self.load}, seed {self.seed}"


class CellResult(NamedTuple):
    """The result of a cell. Nothing in it depends on the machine that computed it."""

    cell: SweepCell
    requests_per_s: float | None  # arriving, for an open loop; None: a closed loop
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
    """Return the result of `cell`; `last_s` is when the last request of an open workload came.

    It ends the window if the cell does not: what ends later would show how long the fleet takes to become empty, not
    how much it serves.
    """
    until_s = last_s if cell.until_s is None else cell.until_s
    return CellResult(
        cell,
        requests_per_s,
        compute_figures(outcome, cell.limits, cell.since_s, until_s),
        outcome.took_s,
        outcome.decisions,
        outcome.preemptions,
        outcome.double_bookings,
    )
