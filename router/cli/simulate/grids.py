"""What was found as rows of text, the best of each column known: once for the terminal and once for the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from router.testbed.sweep.cells import CellFailure
from router.testbed.sweep.columns import (
    MISSING,
    FigureColumn,
    FigureValue,
    average_over_seeds,
    find_best,
    select_columns,
)
from router.testbed.sweep.comparison import CapacityTable, ComparisonTable

LOAD = {"rate": "requests/s come", "sessions": "sessions per instance"}


class GridEntry(NamedTuple):
    text: str
    best: bool = False


class Grid(NamedTuple):
    """The first column names the rows, the others are figures."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[GridEntry, ...], ...]


def of_comparison(table: ComparisonTable) -> Grid:
    columns = select_columns([own for row in table.rows for own in row.seeds])
    values = [[average_over_seeds([column.of(own) for own in row.seeds]) for row in table.rows] for column in columns]
    told = [_entries(column, own) for column, own in zip(columns, values, strict=True)]
    names = [GridEntry(row.policy) for row in table.rows]
    return _grid(str(table.situation), ["policy", *(column.head for column in columns)], [names, *told])


def of_capacities(found: Sequence[CapacityTable]) -> list[Grid]:
    """A grid per fleet."""
    grids = []
    for fleet, group in groupby(found, lambda one: one.fleet):
        some = list(group)
        loads = [one.load for one in some]
        most = max((value.mean for value in loads if value is not None), default=0.0)
        told = [
            GridEntry(
                f"{'' if one.bounded else 'at least '}{_shown(one.load, 2)}", _is(one.load, most) and len(some) > 1
            )
            for one in some
        ]
        ended = [GridEntry(_shown(one.requests_per_s, 2)) for one in some]
        shares = [GridEntry(MISSING if one.share is None else f"{one.share.mean:.1%}") for one in some]
        heads = ["policy", LOAD[some[0].kind], "requests/s end", "within limits"]
        columns = [[GridEntry(one.policy) for one in some], told, ended, shares]
        grids.append(_grid(f"Capacity of {fleet}", heads, columns))
    return grids


def remarks(failed: Sequence[CellFailure], interrupted: bool, seeds: int) -> list[str]:
    """Of the run as a whole."""
    lines = [f"{one.what} failed: {one.reason}" for one in failed]
    if seeds > 1:
        lines.append(f"Means over {seeds} seeds; ±: half of what lies between the lowest and the highest.")
    if interrupted:
        lines.append("Interrupted: this is what was done by then.")
    return lines


def _grid(title: str, heads: Sequence[str], columns: Sequence[Sequence[GridEntry]]) -> Grid:
    return Grid(title, tuple(heads), tuple(zip(*columns, strict=True)))


def _entries(column: FigureColumn, values: Sequence[FigureValue | None]) -> list[GridEntry]:
    best = find_best(column, values)
    return [
        GridEntry(MISSING if value is None else value.shown(column.digits, column.spread), row in best)
        for row, value in enumerate(values)
    ]


def _shown(value: FigureValue | None, digits: int) -> str:
    return "none" if value is None else value.shown(digits)


def _is(value: FigureValue | None, most: float) -> bool:
    return value is not None and value.mean == most
