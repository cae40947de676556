"""Rows of a table that are measured one after the other, each kept as a JSON file from the moment it is there.

A run that is broken off keeps what it has, and the next goes on where it was. How a row is measured, and which earlier
outcome still counts, is the table's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def wide_console(*, highlight: bool = True) -> Console:
    """Return a console as wide as the terminal; 140 columns where the output goes elsewhere, so that tables fit."""
    return Console(highlight=highlight, width=None if Console().is_terminal else 140)


class Row(Protocol):
    @property
    def name(self) -> str: ...


class Found(Protocol):
    """A struct. `left_out`: why it could not be measured."""

    @property
    def took_s(self) -> float: ...

    @property
    def left_out(self) -> str | None: ...


R = TypeVar("R", bound=Row)
F = TypeVar("F", bound=Found)
T = TypeVar("T")


def in_turn(
    rows: Sequence[R],
    takes_s: Callable[[R], float],
    earlier: Callable[[R], F | None],
    measured: Callable[[R, Callable[[str], None]], F],
    folder: Path,
    console: Console,
) -> list[F]:
    """What `earlier` knows of a row, or else `measured`, which is given a function that tells what is going on.

    Ctrl-C ends the measuring, not the report: what is measured by then comes back.
    """
    found: list[F] = []
    shown = (TextColumn("{task.percentage:>3.0f} %"), BarColumn(24), TimeElapsedColumn(),
             TextColumn("{task.description}"))  # fmt: skip
    with Progress(*shown, console=console, transient=True) as progress:
        bar = progress.add_task("", total=sum(map(takes_s, rows)))

        def say(name: str, text: str) -> None:
            progress.update(bar, description=f"{name}: {text}")

        try:
            for row in rows:
                one = earlier(row)
                if one is None:
                    one = measured(row, partial(say, row.name))
                    keep(one, folder / f"{row.name}.json")
                found.append(one)
                progress.advance(bar, takes_s(row))
                how = "left out" if one.left_out else "measured"
                progress.console.print(f"{row.name}: {how} in {one.took_s:.0f} s", highlight=False)
        except KeyboardInterrupt:
            console.print(f"interrupted: {len(rows) - len(found)} rows are missing, --resume goes on")
    return found


def keep(found: object, file: Path) -> None:
    """As JSON, whole or not at all. Its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    unfinished.replace(file)


def kept(file: Path, kind: type[T]) -> T | None:
    """None: there is no such file, or it is of another version of `kind`, which says nothing."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
