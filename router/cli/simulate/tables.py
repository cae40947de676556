"""Grids on the terminal: the best of each column carries a star, so that it survives being copied as text."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table

from router.cli.simulate.grids import Grid, GridEntry


def printed(grid: Grid) -> Table:
    table = Table(title=escape(grid.title), box=box.SIMPLE, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column(grid.heads[0], no_wrap=True)
    for head in grid.heads[1:]:
        table.add_column(f"{head} ", justify="right", no_wrap=True)
    for name, *figures in grid.rows:
        table.add_row(escape(name.text), *map(_starred, figures))
    return table


def _starred(entry: GridEntry) -> str:
    return f"[bold]{escape(entry.text)}*[/]" if entry.best else f"{escape(entry.text)} "
