"""`warmroute simulate --speed`: how many decisions a second a policy makes, over the size of the fleet.

A decision is all that the router does between a known prompt and a chosen target: overlaps, the view, filters, scorers,
the picker, the booking. It is timed where it happens, in the simulator, with the caches and loads that come about, in
this process and one fleet after the other, each told as soon as it is known. What is timed is CPU: who else is on the
machine should not matter. Unlike all else that a simulation says, this depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from time import process_time
from typing import NamedTuple

from rich.console import Console

from router.cli.simulate.grids import Grid, GridEntry
from router.cli.simulate.tables import printed
from router.errors import ConfigError
from router.testbed.simulator.run import simulate
from router.testbed.sweep.cells import SweepCell
from router.testbed.sweep.spec import SweepSpec, make_cells
from router.testbed.workloads import Workload, speed_up, take_first
from router.testbed.workloads.offered_load import workload_speed_factor

SIZES = "8,64,250,1000"
RHO = 0.6  # loaded, but not so that queues grow
PER_INSTANCE = 5  # requests, so that caches have something in them
LEAST = 2_000


class DecisionSpeed(NamedTuple):
    policy: str
    instances: int
    decisions: int
    deciding_s: float  # of CPU

    @property
    def per_s(self) -> float:
        return self.decisions / self.deciding_s


def measure(asked: SweepSpec, console: Console | None = None) -> None:
    """Prints the table, over `SIZES` where only the default fleet is asked for. Raises ConfigError for a closed
    loop.
    """
    console = console or Console(highlight=False)
    if asked.instances == SweepSpec().instances:
        asked = replace(asked, instances=SIZES)
    all_cells = make_cells(asked, console.print)
    workload = all_cells[0].source.workload(asked.first_seed, console.print)
    if workload.is_closed:
        raise ConfigError(f"--speed: {asked.workload} is a closed loop; give an open one, as --workload tools")
    speeds = []
    for cell in all_cells:
        speeds.append(one := timed(cell, workload, process_time))
        console.print(f"{one.policy}, {one.instances:,} instances: {one.per_s:,.0f} decisions/s")
    console.print(printed(of_speeds(speeds, asked.workload)))


def timed(cell: SweepCell, workload: Workload, stopwatch: Callable[[], float]) -> DecisionSpeed:
    """Over the first requests of an open workload, at a moderate load."""
    instances = cell.scenario.instances
    workload = take_first(workload, max(LEAST, PER_INSTANCE * instances))
    workload = speed_up(workload, workload_speed_factor(workload, cell.scenario.profile, instances, RHO))
    outcome = simulate(cell.scenario, cell.rules, workload, seed=cell.seed, stopwatch=stopwatch)
    return DecisionSpeed(cell.policy, instances, outcome.decisions, outcome.deciding_s)


def of_speeds(speeds: Sequence[DecisionSpeed], workload: str) -> Grid:
    """A row per size of the fleet, a column per policy."""
    sizes = [(size, list(own)) for size, own in groupby(speeds, lambda one: one.instances)]
    policies = [one.policy for one in sizes[0][1]]
    rows = [[GridEntry(f"{size:,}"), *(GridEntry(f"{one.per_s:,.0f}") for one in own)] for size, own in sizes]
    return Grid(f"Decisions per second, {workload}, one core", ("instances", *policies), tuple(map(tuple, rows)))
