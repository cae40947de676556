"""`warmroute simulate`: simulate policies on a fleet in virtual time, cells in parallel; then write tables, JSON,
charts and a report.

Ctrl-C ends the simulation, not the report: the results so far are reported and marked as partial.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from router.cli.simulate import report
from router.cli.simulate.charts import make_charts, png, svg
from router.cli.terminal import drawing
from router.cli.terminal.console import PrintableConsole
from router.cli.terminal.failures import error_console
from router.cli.terminal.output import catch_interrupt, progress_bar, render, writing
from router.cli.workload.command import print_unusable
from router.clock import Clock, SystemClock
from router.errors import ConfigError, WarmrouteError
from router.lab.sweep.capacity import CapacityResult, CapacitySearch
from router.lab.sweep.cells import CellFailure, CellResult, SweepCell
from router.lab.sweep.comparison import SweepResult, compare, compare_sizes, encode_results, summarize_capacities
from router.lab.sweep.parallel import run_parallel
from router.lab.sweep.spec import SweepSpec, make_cells

NARROWEST = 150  # columns that a table of all figures needs; narrower terminals wrap it


class AllCellsFailed(WarmrouteError):
    """Every cell failed."""


class SweepOutput(NamedTuple):
    """Destination and form of the results."""

    find_capacity: bool = False  # search per cell for the highest load that is served well
    share: float = 0.9  # of requests within both limits that counts as served well
    jobs: int | None = None  # processes; None: one per core
    out: Path | None = None  # folder for JSON, charts and the page
    json: bool = False  # print JSON instead of tables
    chart: bool = True  # draw charts and write the page; needs matplotlib
    command_line: str = "warmroute simulate"  # quoted on the page


TABLES = SweepOutput()


def simulate(spec: SweepSpec, output: SweepOutput = TABLES, console: Console | None = None) -> bool:
    """Simulate all cells of `spec` and report them. Return False when interrupted: the report is partial.

    Raises ConfigError for what cannot be simulated, AllCellsFailed when every cell failed.
    """
    console = console or PrintableConsole(width=max(Console().width, NARROWEST))
    notes = error_console() if output.json else console
    if output.out is not None and output.chart:
        drawing.require()
    unusable: list[str] = []
    try:
        cells = make_cells(spec, unusable.append)
    finally:
        print_unusable(notes, spec.workload, unusable)
    tasks = _searches(cells, output.share) if output.find_capacity else cells
    done = _run(tasks, output.jobs or os.cpu_count() or 1, notes)
    encoded = encode_results(spec, cells, done)
    page = _report(output, spec, cells, done)
    if output.json:
        console.out(encoded.decode(), end="", highlight=False)
    else:
        _print_report(page, console)
    if output.out is not None:
        _write(output.out, encoded, page, done if output.chart else None, notes)
    if done.failed and not done.measured and not done.capacities:
        raise AllCellsFailed(f"nothing was simulated: all {len(done.failed)} cells failed")
    return not done.interrupted


def _report(output: SweepOutput, spec: SweepSpec, cells: Sequence[SweepCell], done: SweepResult) -> report.ResultPage:
    tables = compare(done.measured)
    return report.ResultPage(
        output.command_line,
        tuple(report.settings(spec, cells, output.find_capacity)),
        tuple(report.of_comparison(table) for table in tables),
        (
            *report.of_sizes(compare_sizes(tables), output.share, cells[0].limits),
            *report.of_capacities(summarize_capacities(done.capacities)),
        ),
        (*report.fault_remarks(cells, done.measured), *report.remarks(done.failed, done.interrupted, spec.seeds)),
    )


def _searches(cells: Sequence[SweepCell], share: float) -> list[CapacitySearch]:
    if len({cell.load for cell in cells}) > 1:
        raise ConfigError("--find-capacity searches for the load: give at most one, from which the search starts")
    return [CapacitySearch(cell, share) for cell in cells]


def _run(tasks: Sequence[SweepCell | CapacitySearch], jobs: int, console: Console) -> SweepResult:
    clock: Clock = SystemClock()
    began_s = clock.now()
    with progress_bar(console) as progress, catch_interrupt() as interrupted:
        bar = progress.add_task("", total=len(tasks))

        def look(done: int, virtual_s: float) -> bool:
            speed = virtual_s / max(clock.now() - began_s, 1e-3)
            progress.update(bar, completed=done, description=f"cells, {speed:,.0f} x real time")
            return interrupted()

        ended = run_parallel(tasks, jobs, look)
        return SweepResult(
            [one for one in ended if isinstance(one, CellResult)],
            [one for one in ended if isinstance(one, CapacityResult)],
            [one for one in ended if isinstance(one, CellFailure)],
            interrupted(),
        )


def _print_report(results: report.ResultPage, console: Console) -> None:
    for line in results.settings:
        console.print(line, markup=False, soft_wrap=True)
    for grid in (*results.comparisons, *results.capacities):
        console.print(render(grid))
    for line in results.remarks:
        console.print(line, markup=False, soft_wrap=True)


def _write(out: Path, encoded: bytes, results: report.ResultPage, drawn: SweepResult | None, console: Console) -> None:
    """Write the files. `drawn` has the results for the charts; None: write neither charts nor page."""
    files = {"simulate.json": encoded}
    if drawn is not None:
        figures = make_charts(compare(drawn.measured), summarize_capacities(drawn.capacities))
        files |= {f"{name}.png": png(figure) for name, figure in figures.items()}
        files["simulate.html"] = report.html(results, [svg(figure) for figure in figures.values()]).encode()
    for name, data in files.items():
        with writing(out / name, "--out"):
            (out / name).write_bytes(data)
    console.print(f"written: {', '.join(files)} in {out}", soft_wrap=True, markup=False)
