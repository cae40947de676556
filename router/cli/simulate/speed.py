"""`warmroute simulate --speed`: how many decisions a second a policy makes, by fleet size.

A decision is all that the router does between a tokenized prompt and a chosen target: overlaps, the view, filters,
scorers, the picker, the booking. Decisions are timed within a simulation, with the caches and loads that arise
there, in this process, one fleet after the other; each figure is printed at once. CPU time is measured, so that
other processes matter little. Unlike all other results of a simulation, decision speed depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from time import process_time
from typing import NamedTuple

from rich.console import Console

from router.cli.terminal.console import PrintableConsole
from router.cli.terminal.output import Grid, make_grid, render
from router.errors import ConfigError
from router.lab.simulator.run import simulate
from router.lab.sweep.cells import SweepCell
from router.lab.sweep.spec import SweepSpec, make_cells
from router.lab.workloads.arrivals import speed_up, take_first
from router.lab.workloads.model import Workload
from router.lab.workloads.offered_load import workload_speed_factor

SIZES = "8,64,250,1000"
RHO = 0.6  # loaded, but queues do not grow
PER_INSTANCE = 5  # requests, so that caches are not empty
LEAST = 2_000


class DecisionSpeed(NamedTuple):
    policy: str
    instances: int
    decisions: int
    deciding_s: float  # CPU time

    @property
    def per_s(self) -> float:
        return self.decisions / self.deciding_s


def measure(spec: SweepSpec, console: Console | None = None) -> None:
    """Print decisions per second by fleet size, `SIZES` unless `spec` names some. Raises ConfigError for a closed
    loop.
    """
    console = console or PrintableConsole()
    if spec.instances == SweepSpec().instances:
        spec = replace(spec, instances=SIZES)
    cells = make_cells(spec, console.print)
    workload = cells[0].source.workload(spec.first_seed, console.print)
    if workload.is_closed:
        raise ConfigError(f"--speed: {spec.workload} is a closed loop; give an open one, as --workload tools")
    speeds = []
    for cell in cells:
        speeds.append(one := time_decisions(cell, workload, process_time))
        console.print(f"{one.policy}, {one.instances:,} instances: {one.per_s:,.0f} decisions/s")
    console.print(render(of_speeds(speeds, spec.workload)))


def time_decisions(cell: SweepCell, workload: Workload, stopwatch: Callable[[], float]) -> DecisionSpeed:
    """Simulate the first requests of an open workload at a moderate load, and time the decisions by `stopwatch`."""
    instances = cell.scenario.instances
    workload = take_first(workload, max(LEAST, PER_INSTANCE * instances))
    workload = speed_up(workload, workload_speed_factor(workload, cell.scenario.profile, instances, RHO))
    outcome = simulate(cell.scenario, cell.rules, workload, seed=cell.seed, stopwatch=stopwatch)
    return DecisionSpeed(cell.policy, instances, outcome.decisions, outcome.deciding_s)


def of_speeds(speeds: Sequence[DecisionSpeed], workload: str) -> Grid:
    """Return a row per fleet size and a column per policy."""
    sizes = [(size, list(own)) for size, own in groupby(speeds, lambda one: one.instances)]
    policies = [one.policy for one in sizes[0][1]]
    rows = [[f"{size:,}", *(f"{one.per_s:,.0f}" for one in own)] for size, own in sizes]
    return make_grid(f"Decisions per second, {workload}, one core", ("instances", *policies), rows)
