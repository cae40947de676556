"""`warmroute simulate`: policies on a fleet in virtual time, cells over the cores; then tables, JSON, charts, a page.

Ctrl-C ends the simulating, not the reporting: what is done by then is told, and marked as a part.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from router.cli.simulate import charts, fault_remarks, grids, page, plots
from router.cli.simulate.tables import printed
from router.cli.terminal import drawing
from router.clock import Clock, SystemClock
from router.errors import ConfigError, WarmrouteError
from router.testbed.sweep import results
from router.testbed.sweep.capacity import CapacityResult, CapacitySearch
from router.testbed.sweep.cells import CellFailure, CellResult, SweepCell
from router.testbed.sweep.comparison import compare, summarize_capacities
from router.testbed.sweep.parallel import run_parallel
from router.testbed.sweep.spec import SweepSpec, make_cells

NARROWEST = 150  # columns that a table of all figures needs; narrower terminals wrap it


class AllCellsFailed(WarmrouteError):
    """Every cell failed."""


class SweepResult(NamedTuple):
    """All that came back."""

    measured: list[CellResult]
    found: list[CapacityResult]
    failed: list[CellFailure]
    interrupted: bool


class SweepOutput(NamedTuple):
    """What becomes of the cells."""

    capacity_share: float | None = None  # not single cells: the highest load at which so many requests meet the limits
    jobs: int | None = None  # processes; None: one per core
    out: Path | None = None  # folder for JSON, charts and the page
    json: bool = False  # the JSON to the terminal, instead of tables
    chart: bool = True  # charts and the page; they need matplotlib
    said: str = "warmroute simulate"  # the command line, as the page quotes it


TABLES = SweepOutput()


def simulate(asked: SweepSpec, wanted: SweepOutput = TABLES, console: Console | None = None) -> bool:
    """False: interrupted, so a part.

    Raises ConfigError for what cannot be simulated, NothingDone where every cell failed.
    """
    console = console or _console()
    notes = Console(stderr=True, highlight=False) if wanted.json else console
    if wanted.out is not None and wanted.chart:
        drawing.require()
    asked_for = make_cells(asked, partial(notes.print, markup=False, soft_wrap=True))
    tasks = asked_for if wanted.capacity_share is None else _searches(asked_for, wanted.capacity_share)
    done = _run(tasks, wanted.jobs or os.cpu_count() or 1, notes)
    told = results.encode_results(
        asked, asked_for, done.measured, done.found, done.failed, complete=not done.interrupted
    )
    report = _report(wanted.said, asked, asked_for, done)
    if wanted.json:
        console.out(told.decode(), end="", highlight=False)
    else:
        _tell(report, console)
    if wanted.out is not None:
        _write(wanted.out, told, report, done if wanted.chart else None, notes)
    if done.failed and not done.measured and not done.found:
        raise AllCellsFailed(f"nothing was simulated: all {len(done.failed)} cells failed")
    return not done.interrupted


def _report(said: str, asked: SweepSpec, asked_for: Sequence[SweepCell], done: SweepResult) -> page.ResultPage:
    return page.ResultPage(
        said,
        tuple(grids.of_comparison(table) for table in compare(done.measured)),
        tuple(grids.of_capacities(summarize_capacities(done.found))),
        (
            *fault_remarks.remarks(asked_for, done.measured),
            *grids.remarks(done.failed, done.interrupted, asked.seeds),
        ),
    )


def _searches(tasks: Sequence[SweepCell], share: float) -> list[CapacitySearch]:
    if len({task.load for task in tasks}) > 1:
        raise ConfigError("--find-capacity searches for the load: give at most one, to begin with")
    return [CapacitySearch(task, share) for task in tasks]


def _run(tasks: Sequence[SweepCell | CapacitySearch], jobs: int, console: Console) -> SweepResult:
    clock: Clock = SystemClock()
    began_s = clock.now()
    with _progress(console) as progress, _interruptible() as interrupted:
        bar = progress.add_task("", total=len(tasks))

        def look(done: int, virtual_s: float) -> bool:
            speed = virtual_s / max(clock.now() - began_s, 1e-3)
            progress.update(bar, completed=done, description=f"{speed:,.0f} x real time")
            return interrupted()

        ended = run_parallel(tasks, jobs, look)
        return SweepResult(
            [one for one in ended if isinstance(one, CellResult)],
            [one for one in ended if isinstance(one, CapacityResult)],
            [one for one in ended if isinstance(one, CellFailure)],
            interrupted(),
        )


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Says whether Ctrl-C was pressed."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(report: page.ResultPage, console: Console) -> None:
    for grid in (*report.comparisons, *report.capacities):
        console.print(printed(grid))
    for line in report.remarks:
        console.print(line, markup=False, soft_wrap=True)


def _write(out: Path, told: bytes, report: page.ResultPage, drawn: SweepResult | None, console: Console) -> None:
    """`drawn`: what the charts show; None: no charts and no page."""
    files = {"simulate.json": told}
    if drawn is not None:
        figures = charts.all_of(compare(drawn.measured), summarize_capacities(drawn.found))
        files |= {f"{name}.png": plots.png(figure) for name, figure in figures.items()}
        files["simulate.html"] = page.html(report, [plots.svg(figure) for figure in figures.values()]).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)
    except OSError as failure:
        raise WarmrouteError(f"--out: {out}: {(failure.strerror or str(failure)).lower()}") from failure
    console.print(f"written: {', '.join(files)} in {out}", soft_wrap=True, markup=False)


def _console() -> Console:
    console = Console(highlight=False)
    return Console(highlight=False, width=max(console.width, NARROWEST))


def _progress(console: Console) -> Progress:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells  {task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)
