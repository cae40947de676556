"""`warmroute replay`: progress while it reads, then tables, and where wanted a JSON file and a chart.

Ctrl-C ends the reading, not the reporting: what was decided again by then is told, and marked as a part.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from router.cli.replay import charts, tables
from router.cli.terminal.drawing import require_for
from router.cli.terminal.output import readable_console, write_json
from router.errors import ConfigError, WarmrouteError
from router.telemetry.decision_log.format import LoggedPolicy
from router.telemetry.decision_log.reader import UnreadableLine, find_files, read
from router.testbed.replay import policies as named
from router.testbed.replay.replay import Replay, ReplayReport
from scorers.registry import PluginError, Registry, load_registry

NAMED_LINES = 5


class NotReproduced(WarmrouteError):
    """A policy of the log decides otherwise than it did, and does not say that it learns."""


class LogReading:
    """What became of the log's lines."""

    def __init__(self) -> None:
        self.records = self.bad = 0
        self.first_bad: list[str] = []
        self.torn: list[str] = []  # files whose last line is unfinished
        self.interrupted = False

    def skipped(self, line: UnreadableLine) -> None:
        if line.torn:
            self.torn.append(str(line.path))
            return
        self.bad += 1
        if len(self.first_bad) < NAMED_LINES:
            self.first_bad.append(str(line))


def replay(
    logs: Sequence[Path],
    policies: Sequence[str] = (),
    folder: Path | None = None,
    out_json: Path | None = None,
    chart: Path | None = None,
    limit: int | None = None,
    console: Console | None = None,
) -> bool:
    """`logs` are files and folders; `policies` names in `folder`, or files. False: interrupted, so a part.

    Raises ConfigError for policies that cannot be had, DecisionLogError for logs, NotReproduced once all is told.
    """
    console = console or readable_console()
    registry = _registry()
    contenders = named.policies(policies, folder, registry)
    if chart is not None:
        require_for(chart)
        if not contenders:
            raise ConfigError("--chart shows how other policies compare: name some with --policy")
    again, reading = Replay(contenders, registry), LogReading()
    _run(again, logs, limit, reading, console)
    report = again.report()
    _tell(report, reading, console)
    if out_json is not None:
        _write(report, reading, out_json, console)
    if chart is not None and any(one.choices for one in report.contended):
        charts.draw(report, chart)
        console.print(f"written: {chart}", soft_wrap=True, markup=False)
    if not reading.interrupted and any(not one.whole and not one.learns for one in report.reproduced):
        raise NotReproduced(f"{report.choices - report.same:,} of {report.choices:,} choices were not reproduced")
    return not reading.interrupted


def _run(again: Replay, logs: Sequence[Path], limit: int | None, reading: LogReading, console: Console) -> None:
    """Until the end of the logs, `limit` records or Ctrl-C."""
    total = sum(map(_size, find_files(logs)))
    with _progress(console) as progress, _stoppable(reading):
        bar = progress.add_task("0 records", total=total)

        def passed(size: int) -> None:
            progress.update(bar, advance=size, description=f"{reading.records:,} records")

        for entry in read(logs, passed):
            if isinstance(entry, UnreadableLine):
                reading.skipped(entry)
            elif isinstance(entry, LoggedPolicy):
                again.met(entry)
            else:
                again.add(entry)
                reading.records += 1
            if reading.interrupted or reading.records == limit:
                break


@contextmanager
def _stoppable(reading: LogReading) -> Iterator[None]:
    """Ctrl-C ends the reading between two records: half of one would look like a choice that came out otherwise."""

    def stop(*_: object) -> None:
        reading.interrupted = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # compressed since
        return file.stat().st_size
    return 0


def _tell(report: ReplayReport, reading: LogReading, console: Console) -> None:
    if report.reproduced:
        console.print(tables.reproduced_table(report))
    if report.contended:
        console.print(tables.contended_table(report))
    lines = tables.remarks(report)
    if reading.bad:
        lines.append(f"[red]{reading.bad:,} lines could not be read and were passed over:[/]")
        lines += [f"  {escape(line)}" for line in reading.first_bad]
    lines += [f"{escape(file)}: its last line is unfinished (a crash, or it is being written)" for file in reading.torn]
    if reading.interrupted:
        lines.append("Interrupted: this is what was decided again by then.")
    console.print("\n".join(lines), soft_wrap=True)


def _write(report: ReplayReport, reading: LogReading, file: Path, console: Console) -> None:
    told = {
        "warmroute": version("warmroute"),
        "complete": not reading.interrupted,
        "bad_lines": reading.bad,
        "torn_files": reading.torn,
        "choices": report.choices,
        "same": report.same,
        **msgspec.to_builtins(report),
    }
    write_json(console, file, told)


def _registry() -> Registry:
    try:
        return load_registry()
    except PluginError as twice:
        raise ConfigError(str(twice)) from twice


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)
