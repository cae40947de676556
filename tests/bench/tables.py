"""The benchmark as a table: a line per measurement with its bar and whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.bench.figures import Bar, Line, spread
from tests.bench.results import Outcome

BUSY_CORES = 0.2


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    console.print(table(outcomes))
    if not any(outcome.compiled for outcome in outcomes):
        console.print("nothing is compiled: all figures are of the pure build", highlight=False)
    for outcome in outcomes:
        if outcome.left_out is not None:
            console.print(f"{outcome.row} is left out: {escape(short(outcome.left_out))}", highlight=False)
        if outcome.others_cores > BUSY_CORES:
            busy = f"{outcome.others_cores:.1f} cores were busy before it began"
            console.print(f"{outcome.row}: {busy}", highlight=False)
        for note in outcome.notes:
            console.print(f"{outcome.row}: {escape(short(note))}", highlight=False)
    console.print(verdict(outcomes), highlight=False)


def short(reason: str) -> str:
    """Return the first and the last line of a text: a failed start has many between them, which the JSON keeps."""
    lines = reason.strip().splitlines() or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1].strip()}"


def table(outcomes: Sequence[Outcome]) -> Table:
    shown = Table(title="median (lowest-highest) of the repetitions", box=box.SIMPLE)
    shown.add_column("")
    builds = ("compiled", "pure") if any(outcome.compiled for outcome in outcomes) else ("pure",)
    for column in (*builds, "peer", "ratio", "bar", ""):
        shown.add_column(column, justify="right", no_wrap=column != "peer")
    for outcome in outcomes:
        if outcome.lines:
            shown.add_row(f"[bold]{escape(outcome.title)}[/]")
        for line in outcome.lines:
            theirs = f"{spread(line.theirs)} {line.peer}" if line.theirs else ""
            ratio = f"{spread(line.ratios)}x" if line.ratios else ""
            name = f"  {escape(line.what)}, {line.unit}" if line.unit else f"  {escape(line.what)}"
            ours = [by_build(outcome, line, build) for build in builds]
            shown.add_row(name, *ours, theirs, ratio, bar_text(line), judgement(line))
    return shown


def by_build(outcome: Outcome, line: Line, build: str) -> str:
    """Return our figure of a build, the pure one's beside a compiled one with its own ratio; empty if not measured."""
    if outcome.compiled == (build == "compiled"):
        return spread(line.ours)
    if build == "compiled" or not (line.pure or line.pure_ratios):
        return ""
    ratio = f"{statistics.median(line.pure_ratios):.2f}x" if line.pure_ratios else ""
    return f"{spread(line.pure)} {ratio}".strip() if line.pure else ratio


def bar_text(line: Line) -> str:
    if line.bar is None:
        return ""
    unit = "x" if line.bar.of == "ratio" else f" {line.unit}" if line.unit in ("%", "ms", "us") else ""
    return f"{sign(line.bar)} {line.bar.limit:g}{unit}"


def sign(bar: Bar) -> str:
    return "≤" if bar.sense == "<=" else "≥"


def judgement(line: Line) -> str:
    return {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[line.met]


def verdict(outcomes: Sequence[Outcome]) -> str:
    judged = [line for outcome in outcomes for line in outcome.lines if line.met is not None]
    met = sum(line.met is True for line in judged)
    minutes = sum(outcome.took_s for outcome in outcomes) / 60
    return f"{met} of {len(judged)} bars met; {len(outcomes)} rows in {minutes:.1f} minutes"
