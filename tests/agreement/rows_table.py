"""The table "it must agree with what others measured": measuring its rows one after the other, and showing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.errors import WarmrouteError
from tests.agreement.kept import Found, kept
from tests.agreement.measured import code_digest
from tests.agreement.row import Line, Row
from tests.suites.rows import in_turn


def run(rows: Sequence[Row], reduced: bool, resume: bool, console: Console, folder: Path) -> list[Found]:
    """Ctrl-C ends the measuring, not the report."""
    return in_turn(
        rows,
        lambda row: row.takes_s(reduced),
        lambda row: kept(row.name, reduced, folder) if resume else None,
        lambda row, say: _measured(row, reduced, say),
        folder,
        console,
    )


def _measured(row: Row, reduced: bool, say: Callable[[str], None]) -> Found:
    began = time.monotonic()
    lines: list[Line] = []
    left_out = None
    try:
        lines = row.measure(reduced, say)
    except WarmrouteError as why:
        left_out = str(why)
    return Found(row.name, row.title, reduced, code_digest(), round(time.monotonic() - began, 1), lines, left_out)


def show(all_found: Sequence[Found], console: Console) -> None:
    console.print(table(all_found))
    for found in all_found:
        if found.left_out:
            console.print(f"{found.row} is left out: {escape(found.left_out)}", highlight=False)
    for reason in dict.fromkeys(line.why for one in all_found for line in one.lines if line.within is False):
        if reason:
            console.print(f"missed: {escape(reason)}", highlight=False)
    judged = [line for found in all_found for line in found.lines if line.within is not None]
    console.print(f"{sum(line.within is True for line in judged)} of {len(judged)} bars held", highlight=False)


def table(all_found: Sequence[Found]) -> Table:
    shown = Table(title="what others measured, and the simulator", box=box.SIMPLE)
    shown.add_column("")
    for column in ("published", "simulated", "bar", ""):
        shown.add_column(column, justify="right", no_wrap=column != "published")
    for found in all_found:
        shown.add_row(f"[bold]{escape(found.title)}[/]")
        for line in found.lines:
            mark = {True: "[green]held[/]", False: "[red]missed[/]", None: ""}[line.within]
            name = f"  {escape(line.what)}" + (f", {line.unit}" if line.unit not in ("", "x", "yes/no") else "")
            shown.add_row(name, line.published, _value(line, line.ours), _bar(line), mark)
    return shown


def _value(line: Line, value: float | None) -> str:
    if value is None:
        return "-"
    if line.unit == "yes/no":
        return "yes" if value else "no"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text}x" if line.unit == "x" else text


def _bar(line: Line) -> str:
    if line.within is None or line.unit == "yes/no":
        return ""
    if line.high is None:
        return f"≥ {_value(line, line.low)}"
    if line.low is None:
        return f"≤ {_value(line, line.high)}"
    return f"{_value(line, line.low)} - {_value(line, line.high)}"
