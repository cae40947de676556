"""Results of a run as tables and remarks, for the terminal, and as one self-contained HTML page.

The page has the command that made it and charts as inline SVG. It looks the same opened from a disk or sent by
mail: no scripts, no fonts, no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from math import inf
from pathlib import Path
from typing import NamedTuple

from router.cli.terminal.output import MISSING, Grid, GridEntry, make_grid
from router.config.lookup import YAML_SUFFIXES
from router.lab.simulator.outcome import ServiceLimits
from router.lab.simulator.scenario import InstanceFailure, Trouble
from router.lab.sweep import comparison
from router.lab.sweep.cells import CellFailure, CellResult, SweepCell
from router.lab.sweep.options import OFF
from router.lab.sweep.spec import SweepSpec, given_loads

LOAD = {"rate": "requests/s come", "sessions": "sessions per instance"}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22272e; max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem }
pre { background: #f3f4f6; padding: .7rem 1rem; overflow-x: auto; border-radius: .3rem; white-space: pre-wrap }
.wide { overflow-x: auto } svg { max-width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
thead th { border-bottom: 1px solid #9aa3af; color: #6b7280; font-weight: 500 }
tbody tr:nth-child(even) { background: #f8f9fa } .best { font-weight: 700; color: #2f6f9f }
""".strip()


def of_comparison(table: comparison.ComparisonTable) -> Grid:
    """Return a row per policy and a column per figure."""
    columns = comparison.select_columns([own for row in table.rows for own in row.seeds])
    values = [
        [comparison.average_over_seeds([column.of(own) for own in row.seeds]) for row in table.rows]
        for column in columns
    ]
    entries = [_entries(column, own) for column, own in zip(columns, values, strict=True)]
    policies = [row.policy for row in table.rows]
    heads = ["policy", *(column.head for column in columns)]
    return make_grid(str(table.situation), heads, zip(policies, *entries, strict=True))


def of_capacities(found: Sequence[comparison.CapacityTable]) -> list[Grid]:
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


def of_sizes(found: Sequence[comparison.FleetSizes], share: float, limits: ServiceLimits) -> list[Grid]:
    """Return a table, or none without `found`: per policy, fleet and load the share of requests that each size serves
    well, and the smallest size that serves `share` of them well, as all larger ones do.
    """
    sizes = sorted({size for one in found for shares in one.shares.values() for size in shares})
    rows = [
        (policy, one.beside, *(_percent(shares.get(size)) for size in sizes), _needed(shares, sizes, share))
        for one in found
        for policy, shares in one.shares.items()
    ]
    title = (
        f"Requests within {limits.ttft_s:g} s to the first token and {limits.tpot_s:g} s per later one, by instances"
    )
    heads = ("policy", "fleet and load", *(f"{size:,}" for size in sizes), f"instances for {share:.0%}")
    return [make_grid(title, heads, rows, labels=2)] if rows else []


def _needed(shares: Mapping[int, comparison.FigureValue | None], sizes: Sequence[int], share: float) -> str:
    well = [(own := shares.get(size)) is not None and own.mean >= share for size in sizes]
    if not well[-1]:
        return f"over {sizes[-1]:,}"
    first = max((number + 1 for number, enough in enumerate(well) if not enough), default=0)
    return f"{sizes[first]:,}" if first else f"at most {sizes[0]:,}"


def _percent(value: comparison.FigureValue | None) -> str:
    return MISSING if value is None else f"{value.mean:.1%}"


def settings(spec: SweepSpec, cells: Sequence[SweepCell], search: bool = False) -> list[str]:
    """Return the lines above the tables: which load the fleets get and why that one, and what the engines are.
    `search`: the load is only the one at which a search begins.
    """
    loads = list(dict.fromkeys(cell.load for cell in cells))
    given = given_loads(spec)
    named = f"{', '.join(map(str, loads))}, set by {given[0].option if given else 'default'}"
    match loads[0].kind:
        case "recorded":
            load = f"{loads[0]} in {spec.workload}, the same for every fleet (others: --rate, --rho)"
        case "rate":
            load = f"{named}, the same for every fleet"
        case "rho":
            load = f"{named}: a share of what each fleet serves without caches, so more instances get more requests"
        case "sessions":
            load = f"{named}: more instances get more sessions"
    engines = f"profile {spec.profile}, a KV cache of {cells[0].scenario.profile.kv_tokens:,} tokens each"
    hint = "" if Path(spec.profile).suffix in YAML_SUFFIXES else "; `warmroute profile` writes that of a running fleet"
    return [f"{'First load of the search' if search else 'Load'}: {load}.", f"Engines: {engines}{hint}."]


def remarks(failed: Sequence[CellFailure], interrupted: bool, seeds: int) -> list[str]:
    """Return remarks on the run as a whole: failed cells, what ± means, an interruption."""
    lines = [f"{one.what} failed: {one.reason}" for one in failed]
    if seeds > 1:
        lines.append(f"Means over {seeds} seeds; ±: half the distance between the lowest and the highest.")
    if interrupted:
        lines.append("Interrupted: the report holds what was done before.")
    return lines


def _entries(column: comparison.FigureColumn, values: Sequence[comparison.FigureValue | None]) -> list[GridEntry]:
    best = comparison.find_best(column, values)
    return [
        GridEntry(MISSING if value is None else value.format(column.digits, column.spread), row in best)
        for row, value in enumerate(values)
    ]


def _format(value: comparison.FigureValue | None, digits: int) -> str:
    return "none" if value is None else value.format(digits)


class FaultRemark(NamedTuple):
    """One fault, and when it begins in virtual time."""

    from_s: float
    text: str


def fault_remarks(cells: Sequence[SweepCell], measured: Sequence[CellResult]) -> list[str]:
    """Return a line per trouble, and a line per fault that begins only after some of the trouble's cells ended."""
    lines = []
    troubles = {cell.fleet.trouble: cell.scenario.trouble for cell in cells}
    for name, trouble in troubles.items():
        if name == OFF:
            continue
        faults = describe_trouble(trouble)
        lines.append(f"Trouble {name}: {'; '.join(fault.text for fault in faults)}.")
        ends_s = [one.took_s for one in measured if one.cell.fleet.trouble == name]
        for fault in faults:
            if missed := sum(end_s <= fault.from_s for end_s in ends_s):
                lines.append(f"Too late for {missed} of its {len(ends_s)} cells: {fault.text}.")
    return lines


def describe_trouble(trouble: Trouble) -> list[FaultRemark]:
    """Return a remark per fault of `trouble`."""
    found = [_failure(failure) for failure in trouble.failures]
    if trouble.events_lost:
        found.append(FaultRemark(0.0, f"{trouble.events_lost * 100:.3g} % of all event batches are lost"))
    found += [
        FaultRemark(from_s, f"the pool is away {_when(from_s, until_s)}") for from_s, until_s in trouble.pool_away
    ]
    if trouble.router_starts_s:
        text = f"the router starts at {trouble.router_starts_s:g} s, before that requests go round robin"
        found.append(FaultRemark(0.0, text))
    return found


def _failure(failure: InstanceFailure) -> FaultRemark:
    what = "is down" if failure.kind == "down" else f"takes {failure.factor:g} times as long per step"
    return FaultRemark(failure.at_s, f"instance {failure.instance} {what} {_when(failure.at_s, failure.until_s)}")


def _when(from_s: float, until_s: float) -> str:
    if until_s < inf:
        return f"from {from_s:g} s to {until_s:g} s"
    return f"from {from_s:g} s on" if from_s else "all the time"


class ResultPage(NamedTuple):
    """The results of a run, for the terminal and for the page."""

    command_line: str
    settings: tuple[str, ...]
    comparisons: tuple[Grid, ...]
    capacities: tuple[Grid, ...]
    remarks: tuple[str, ...]


def html(page: ResultPage, charts: Sequence[str]) -> str:
    """Return the page; `charts` are SVG documents."""
    parts = [f"<h1>Policies in virtual time</h1>\n<pre>{escape(page.command_line)}</pre>"]
    parts += [f"<p>{escape(line)}</p>" for line in (*page.settings, *page.remarks)]
    parts += [f'<div class="chart">{chart[chart.index("<svg") :]}</div>' for chart in charts]
    parts += [_table(grid) for grid in (*page.comparisons, *page.capacities)]
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>warmroute simulate</title>\n'
        f"<style>\n{STYLE}\n</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(grid: Grid) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in grid.heads)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in grid.rows)
    return (
        f'<h2>{escape(grid.title)}</h2>\n<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _cell(entry: GridEntry) -> str:
    return f'<td class="best">{escape(entry.text)}</td>' if entry.best else f"<td>{escape(entry.text)}</td>"
