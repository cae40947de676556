"""Output of commands: consoles, tables, progress bars, versions, written files, and interruption by Ctrl-C.

Ctrl-C ends a measurement, not its report: the results so far are reported and marked as partial.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from router.cli.terminal.console import PrintableConsole
from router.clock import Clock
from router.config.private_files import open_private
from router.errors import WarmrouteError

NARROWEST = 120
MISSING = "-"


class GridEntry(NamedTuple):
    text: str
    best: bool = False  # of its column
    colour: str | None = None


class Grid(NamedTuple):
    """A table as plain text, for the terminal and for the HTML page."""

    title: str
    heads: tuple[str, ...]  # all texts empty: no head line
    rows: tuple[tuple[GridEntry, ...], ...]
    labels: int = 1  # leading columns of text; the others are figures


def make_grid(title: str, heads: Sequence[str], rows: Iterable[Iterable[str | GridEntry]], *, labels: int = 1) -> Grid:
    """Return a grid; entries that are plain text become `GridEntry`."""
    entries = ((GridEntry(one) if isinstance(one, str) else one for one in row) for row in rows)
    return Grid(title, tuple(heads), tuple(map(tuple, entries)), labels)


def render(grid: Grid) -> Table:
    """Return the grid as a table for the terminal. The best of a column gets a star, which survives being
    copied.
    """
    starred = any(entry.best for row in grid.rows for entry in row)
    table = Table(
        title=escape(grid.title) or None,
        box=box.SIMPLE,
        title_justify="left",
        padding=(0, 1, 0, 0),
        show_header=any(grid.heads),
    )
    for number, head in enumerate(grid.heads):
        figure = number >= grid.labels
        table.add_column(
            escape(head) + " " * (starred and figure), justify="right" if figure else "left", no_wrap=not number
        )
    for row in grid.rows:
        table.add_row(*(_markup(entry, starred and number >= grid.labels) for number, entry in enumerate(row)))
    return table


def _markup(entry: GridEntry, starred: bool) -> str:
    text = escape(entry.text)
    if entry.best:
        return f"[bold]{text}*[/]"
    text += " " * starred
    return text if entry.colour is None else f"[{entry.colour}]{text}[/]"


def readable_console(narrowest: int = NARROWEST) -> Console:
    """Return a console for standard output, `narrowest` columns wide if that is a file or a pipe."""
    console = PrintableConsole()
    return console if console.is_terminal else PrintableConsole(width=narrowest)


def progress_bar(console: Console, count: ProgressColumn | None = None) -> Progress:
    """Return a progress bar that disappears at its end; `count` replaces the column "12/100"."""
    count = count or MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def versions() -> str:
    """Return the name and version of this program."""
    return f"warmroute {importlib.metadata.version('warmroute')}"


def format_now(clock: Clock) -> str:
    """Return the wall clock's time in UTC, to the minute."""
    return datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y-%m-%d %H:%M UTC")


@contextmanager
def writing(file: Path, option: str | None = None) -> Iterator[None]:
    """Make the folder of `file` for the block that writes it. Raises WarmrouteError when the system refuses."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as failure:
        reason = (failure.strerror or str(failure)).lower()
        raise WarmrouteError(f"{option}: {file}: {reason}" if option else f"{file}: {reason}") from failure


def report_written(console: Console, file: Path) -> None:
    """Print the name of a file that was written."""
    console.print(f"written: {file}", soft_wrap=True, markup=False)


def write_json(console: Console, file: Path, report: object) -> None:
    """Write `report` as indented JSON; missing folders are made. Raises WarmrouteError."""
    with writing(file), open(file, "wb", opener=open_private) as opened:
        opened.write(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    report_written(console, file)


class Interruptible(Protocol):
    interrupted: bool


@contextmanager
def cancellable(report: Interruptible) -> Iterator[None]:
    """Treat a cancellation of the current task as the end of the block, and set `report.interrupted`."""
    try:
        yield
    except asyncio.CancelledError:
        report.interrupted = True
        if (task := asyncio.current_task()) is not None:
            task.uncancel()


@contextmanager
def catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C within the block. Yields a function that returns whether Ctrl-C was pressed."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
