"""A comparison as charts: TTFT over load, hits over the fleet's size, and requests that are served well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from router.cli.simulate.plots import Bars, Lines, PlotBar, PlotLine, bar_chart, line_chart
from router.testbed.simulator.outcome import SimulationFigures
from router.testbed.sweep.comparison import CapacityTable, ComparisonTable, FigureValue, average_over_seeds, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOADS = {
    "rate": "arriving requests per second",
    "rho": "rho: arriving requests / capacity of the fleet without caches",
    "sessions": "sessions per instance",
}
SHORT = {"rate": "requests per second", "rho": "rho", "sessions": "sessions per instance"}
HITS = "% of prompt tokens from a cache"

Panel = Callable[[ComparisonTable], str]
Of = Callable[[SimulationFigures], float | None]


def make_charts(tables: Sequence[ComparisonTable], capacities: Sequence[CapacityTable]) -> dict[str, Figure]:
    """Return charts by file name without suffix; empty when there are no results."""
    if tables:
        return {"ttft": _ttft(tables), "hits": _hits(tables), "capacity": _good(tables)}
    return {"capacity": _capacities(capacities)} if capacities else {}


def _ttft(tables: Sequence[ComparisonTable]) -> Figure:
    def p90(own: SimulationFigures) -> float | None:
        return own.ttft_p90_s

    title, loads = "Time to first token, 90th percentile", {table.situation.load for table in tables}
    if len(loads) > 1:
        lines = _lines(tables, _fleet, lambda table: table.situation.load.value, p90)
        across = LOADS[tables[0].situation.load.kind]
        return line_chart(title, "seconds", across, lines, logarithmic=True)
    return bar_chart(f"{title}, {loads.pop()}", "seconds", _bars(tables, _fleet, p90, 2))


def _hits(tables: Sequence[ComparisonTable]) -> Figure:
    def hit(own: SimulationFigures) -> float | None:
        return percent(own.hit_share)

    if len({table.situation.fleet.instances for table in tables}) > 1:
        lines = _lines(tables, _all_but_size, lambda table: float(table.situation.fleet.instances), hit)
        return line_chart("Hits over the fleet's size", HITS, "instances", lines)
    return bar_chart("Hits", HITS, _bars(tables, lambda table: str(table.situation), hit, 1))


def _good(tables: Sequence[ComparisonTable]) -> Figure:
    """Return a chart of each policy at the load at which it serves most requests well."""
    several = len({table.situation.load for table in tables}) > 1
    best: dict[str, dict[str, PlotBar]] = {}
    for table in tables:
        panel = best.setdefault(_fleet(table), {})
        at = f" at {table.situation.load.value:,.3g}" if several else ""
        for bar in _of_table(table, lambda own: own.good_per_s, 2):
            before = panel.get(bar.policy)
            if before is None or _mean(bar) > _mean(before):
                panel[bar.policy] = bar._replace(text=bar.text + at)
    title = "Requests within both limits"
    if several:
        title += f", at the best load ({SHORT[tables[0].situation.load.kind]})"
    return bar_chart(title, "requests per second", {name: list(bars.values()) for name, bars in best.items()})


def _capacities(capacities: Sequence[CapacityTable]) -> Figure:
    bars: dict[str, list[PlotBar]] = {}
    for one in capacities:
        text = "none" if one.load is None else f"{'' if one.bounded else 'at least '}{one.load.format(2)}"
        bars.setdefault(str(one.fleet), []).append(PlotBar(one.policy, one.load, text))
    return bar_chart("Capacity: the highest load that is served well", SHORT[capacities[0].kind], bars)


def _lines(tables: Iterable[ComparisonTable], panel: Panel, at: Callable[[ComparisonTable], float], of: Of) -> Lines:
    """Return a line per policy in each panel; a point that a seed lacks is left out."""
    found: dict[str, dict[str, list[tuple[float, FigureValue]]]] = {}
    for table in tables:
        for bar in _of_table(table, of, 0):
            if bar.value is not None:
                found.setdefault(panel(table), {}).setdefault(bar.policy, []).append((at(table), bar.value))
    return {
        name: [PlotLine(policy, tuple(sorted(points))) for policy, points in policies.items()]
        for name, policies in found.items()
    }


def _bars(tables: Iterable[ComparisonTable], panel: Panel, of: Of, digits: int) -> Bars:
    return {panel(table): _of_table(table, of, digits) for table in tables}


def _of_table(table: ComparisonTable, of: Of, digits: int) -> list[PlotBar]:
    values = [(row.policy, average_over_seeds([of(own) for own in row.seeds])) for row in table.rows]
    return [PlotBar(policy, value, "none" if value is None else value.format(digits)) for policy, value in values]


def _mean(bar: PlotBar) -> float:
    return -1.0 if bar.value is None else bar.value.mean


def _fleet(table: ComparisonTable) -> str:
    return str(table.situation.fleet)


def _all_but_size(table: ComparisonTable) -> str:
    return f"{table.situation.fleet.beside}, {table.situation.load}"
