"""What commands share that show what they found: a console, progress, versions, and all figures as a JSON file."""

from __future__ import annotations

import importlib.metadata
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from router.clock import Clock
from router.errors import WarmrouteError

NARROWEST = 120


def readable_console() -> Console:
    """Wide enough for a table where nobody looks, as in a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=NARROWEST)


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def versions() -> str:
    return f"warmroute {importlib.metadata.version('warmroute')}"


def when_of(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y-%m-%d %H:%M UTC")


def write_json(console: Console, file: Path, report: object) -> None:
    """Its folder is made. Raises WarmrouteError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    except OSError as failure:
        raise WarmrouteError(f"{file}: {(failure.strerror or str(failure)).lower()}") from failure
    console.print(f"written: {file}", soft_wrap=True, markup=False)
