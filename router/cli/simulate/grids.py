"""Results of a run as tables of text, with the best of each column marked, for the terminal and for the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from router.cli.terminal.output import MISSING, Grid, GridEntry, make_grid
from router.testbed.sweep.cells import CellFailure
from router.testbed.sweep.comparison import (
    CapacityTable,
    ComparisonTable,
    FigureColumn,
    FigureValue,
    average_over_seeds,
    find_best,
    select_columns,
)

LOAD = {"rate": "requests/s come", "sessions": "sessions per instance"}


def of_comparison(table: ComparisonTable) -> Grid:
    """Return a row per policy and a column per figure."""
    columns = select_columns([own for row in table.rows for own in row.seeds])
    values = [[average_over_seeds([column.of(own) for own in row.seeds]) for row in table.rows] for column in columns]
    entries = [_entries(column, own) for column, own in zip(columns, values, strict=True)]
    policies = [row.policy for row in table.rows]
    heads = ["policy", *(column.head for column in columns)]
    return make_grid(str(table.situation), heads, zip(policies, *entries, strict=True))


def of_capacities(found: Sequence[CapacityTable]) -> list[Grid]:
    """Return a table per fleet, with a row per policy."""
    grids = []
    for fleet, group in groupby(found, lambda one: one.fleet):
        some = list(group)
        most = max((one.load.mean for one in some if one.load is not None), default=0.0)
        rows = [
            (
                one.policy,
                GridEntry(
                    f"{'' if one.bounded else 'at least '}{_format(one.load, 2)}",
                    len(some) > 1 and one.load is not None and one.load.mean == most,
                ),
                _format(one.requests_per_s, 2),
                MISSING if one.share is None else f"{one.share.mean:.1%}",
            )
            for one in some
        ]
        heads = ("policy", LOAD[some[0].kind], "requests/s end", "within limits")
        grids.append(make_grid(f"Capacity of {fleet}", heads, rows))
    return grids


def remarks(failed: Sequence[CellFailure], interrupted: bool, seeds: int) -> list[str]:
    """Return remarks on the run as a whole: failed cells, what ± means, an interruption."""
    lines = [f"{one.what} failed: {one.reason}" for one in failed]
    if seeds > 1:
        lines.append(f"Means over {seeds} seeds; ±: half the distance between the lowest and the highest.")
    if interrupted:
        lines.append("Interrupted: the report holds what was done before.")
    return lines


def _entries(column: FigureColumn, values: Sequence[FigureValue | None]) -> list[GridEntry]:
    best = find_best(column, values)
    return [
        GridEntry(MISSING if value is None else value.format(column.digits, column.spread), row in best)
        for row, value in enumerate(values)
    ]


def _format(value: FigureValue | None, digits: int) -> str:
    return "none" if value is None else value.format(digits)
