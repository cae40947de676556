"""`warmroute replay`: show progress while the log is read, then tables, and on request write a JSON file and a
chart; or show one record of the log.

Ctrl-C ends the reading, not the report: the choices decided again so far are reported and marked as partial.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn

from router.cli.replay.record_report import describe_logged, show_logged
from router.cli.replay.report import contended_table, draw, remarks, reproduced_table
from router.cli.terminal.drawing import require_for
from router.cli.terminal.output import (
    catch_interrupt,
    progress_bar,
    readable_console,
    render,
    report_written,
    write_json,
)
from router.errors import ConfigError, WarmrouteError, quote_name
from router.features.decision_log.format import LoggedPolicy, LoggedRecord
from router.features.decision_log.reader import UnreadableLine, find_files, read
from router.lab.replay.contender import load_contenders
from router.lab.replay.replay import Replay, ReplayReport
from scorers.registry import PluginError, load_registry

NAMED_LINES = 5


class NotReproduced(WarmrouteError):
    """A policy of the log does not reproduce all its logged choices, although it has no scorer that learns."""


class LogReading:
    """Counts of the records that were read from the log, and of the lines that could not be read."""

    def __init__(self) -> None:
        self.records = self.bad = 0
        self.first_bad: list[str] = []
        self.torn: list[str] = []  # files whose last line is unfinished
        self.interrupted = False

    def skip(self, line: UnreadableLine) -> None:
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
    """Replay `logs` (files and folders), and compare `policies` (names in `folder`, or files) with their choices.

    Return False when interrupted: the report is partial. Raises ConfigError for policies that cannot be loaded,
    DecisionLogError for logs, NotReproduced after the report.
    """
    console = console or readable_console()
    try:
        registry = load_registry()
    except PluginError as duplicate:
        raise ConfigError(str(duplicate)) from duplicate
    contenders = load_contenders(policies, folder, registry)
    if chart is not None:
        require_for(chart)
        if not contenders:
            raise ConfigError("--chart compares other policies with the log: name some with --policy")
    again, reading = Replay(contenders, registry), LogReading()
    _run(again, logs, limit, reading, console)
    report = again.report()
    _print_report(report, reading, console)
    if out_json is not None:
        _write(report, reading, out_json, console)
    if chart is not None and any(one.choices for one in report.contended):
        draw(report, chart)
        report_written(console, chart)
    if not reading.interrupted and any(not one.whole and not one.learns for one in report.reproduced):
        raise NotReproduced(f"{report.choices - report.same:,} of {report.choices:,} choices were not reproduced")
    return not reading.interrupted


def inspect(
    logs: Sequence[Path],
    record: str,
    policies: Sequence[str] = (),
    folder: Path | None = None,
    out_json: Path | None = None,
    console: Console | None = None,
) -> None:
    """Print the record with this id, its choices decided again, and what `policies` would have chosen.

    Raises WarmrouteError if no log has the record, ConfigError for policies that cannot be loaded,
    DecisionLogError for logs.
    """
    console = console or readable_console(160)
    try:
        registry = load_registry()
    except PluginError as duplicate:
        raise ConfigError(str(duplicate)) from duplicate
    again = Replay(load_contenders(policies, folder, registry), registry)
    for entry in read(logs):
        if isinstance(entry, LoggedPolicy):
            again.add_policy(entry)
        elif isinstance(entry, LoggedRecord) and entry.id == record:
            choices = list(again.inspect(entry))
            console.print(show_logged(entry, choices))
            if out_json is not None:
                write_json(console, out_json, describe_logged(entry, choices))
            return
    raise WarmrouteError(f"--record: {quote_name(record)}: the log has no such record")


def _run(again: Replay, logs: Sequence[Path], limit: int | None, reading: LogReading, console: Console) -> None:
    """Read until the end of the logs, `limit` records or Ctrl-C."""
    total = sum(map(_size, find_files(logs)))
    with progress_bar(console, DownloadColumn()) as progress, catch_interrupt() as interrupted:
        bar = progress.add_task("0 records", total=total)

        def passed(size: int) -> None:
            progress.update(bar, advance=size, description=f"{reading.records:,} records")

        for entry in read(logs, passed):
            if isinstance(entry, UnreadableLine):
                reading.skip(entry)
            elif isinstance(entry, LoggedPolicy):
                again.add_policy(entry)
            else:
                again.add(entry)
                reading.records += 1
            reading.interrupted = interrupted()  # between records: half a record would look like a different choice
            if reading.interrupted or reading.records == limit:
                break


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # the writer has compressed it since
        return file.stat().st_size
    return 0


def _print_report(report: ReplayReport, reading: LogReading, console: Console) -> None:
    if report.reproduced:
        console.print(render(reproduced_table(report)))
    if report.contended:
        console.print(render(contended_table(report)))
    lines = remarks(report)
    if reading.bad:
        lines.append(f"[red]{reading.bad:,} lines could not be read and were skipped:[/]")
        lines += [f"  {escape(line)}" for line in reading.first_bad]
    lines += [f"{escape(file)}: its last line is unfinished (a crash, or it is being written)" for file in reading.torn]
    if reading.interrupted:
        lines.append("Interrupted: the report holds what was decided again before.")
    console.print("\n".join(lines), soft_wrap=True)


def _write(report: ReplayReport, reading: LogReading, file: Path, console: Console) -> None:
    figures = {
        "warmroute": version("warmroute"),
        "complete": not reading.interrupted,
        "bad_lines": reading.bad,
        "torn_files": reading.torn,
        "choices": report.choices,
        "same": report.same,
        **msgspec.to_builtins(report),
    }
    write_json(console, file, figures)
