"""A comparison as charts: TTFT over load, hits over the fleet's size, and requests that are served well.

A chart has lines or bars, with a panel per situation. The same figures give the same bytes, as PNG and as SVG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO, StringIO
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from router.cli.terminal.drawing import LINE, bare, canvas, draw_bars, label, plain_numbers, write_heading
from router.lab.simulator.outcome import SimulationFigures
from router.lab.sweep.comparison import CapacityTable, ComparisonTable, FigureValue, average_over_seeds, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOADS = {
    "rate": "arriving requests per second",
    "rho": "rho: arriving requests / capacity of the fleet without caches",
    "sessions": "sessions per instance",
}
SHORT = {"rate": "requests per second", "rho": "rho", "sessions": "sessions per instance"}
HITS = "% of prompt tokens from a cache"
COLOURS = ("#2f6f9f", "#e8963a", "#2f8f5b", "#c0392b", "#7d5ba6", "#8c6d46", "#d16ba5", "#4aa3a2")
MARKS = "osD^vP*X"
OTHER = ("#b6bcc6", ".")  # for all further policies
ACROSS = 3  # panels side by side
TITLE = 64  # characters per line of a panel's title

Panel = Callable[[ComparisonTable], str]
Of = Callable[[SimulationFigures], float | None]


def make_charts(tables: Sequence[ComparisonTable], capacities: Sequence[CapacityTable]) -> dict[str, Figure]:
    """Return charts by file name without suffix; empty when there are no results."""
    if tables:
        return {"ttft": _ttft(tables), "hits": _hits(tables), "capacity": _good(tables)}
    return {"capacity": _capacities(capacities)} if capacities else {}


def _ttft(tables: Sequence[ComparisonTable]) -> Figure:
    title, loads = "Time to first token, 90th percentile", {table.situation.load for table in tables}
    if len(loads) > 1:
        lines = _lines(tables, _fleet, lambda table: table.situation.load.value, lambda own: own.ttft_p90_s)
        across = LOADS[tables[0].situation.load.kind]
        return line_chart(title, "seconds", across, lines, logarithmic=True)
    return bar_chart(f"{title}, {loads.pop()}", "seconds", _bars(tables, _fleet, lambda own: own.ttft_p90_s, 2))


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


class PlotLine(NamedTuple):
    policy: str
    points: tuple[tuple[float, FigureValue], ...]  # from left to right


class PlotBar(NamedTuple):
    policy: str
    value: FigureValue | None
    text: str  # drawn at the end of the bar


Lines = Mapping[str, Sequence[PlotLine]]
"""Lines by panel."""
Bars = Mapping[str, Sequence[PlotBar]]
"""Bars by panel."""


def line_chart(title: str, unit: str, across: str, panels: Lines, *, logarithmic: bool = False) -> Figure:
    """Return a chart of lines over the axis `across`; with several seeds a band shows their spread."""
    figure, all_axes = _panels(title, list(panels), 4.4, 3.5, share_y=True)
    styles = _styles(line.policy for lines in panels.values() for line in lines)
    for axes, lines in zip(all_axes, panels.values(), strict=True):
        for line in reversed(lines):  # so that the first policy is drawn on top
            _draw(axes, line, styles[line.policy])
        _ticks(axes, sorted({at for line in lines for at, _ in line.points}))
        if logarithmic:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
        label(axes, x=across, y=unit, size=9)
        axes.grid(axis="y", color=LINE, lw=0.7)
    drawn = {handle.get_label(): handle for axes in all_axes for handle in axes.get_lines()}
    names = [name for name in styles if name in drawn]
    figure.legend([drawn[name] for name in names], names, loc="outside right upper", frameon=False, fontsize=8.5)
    return figure


def bar_chart(title: str, unit: str, panels: Bars) -> Figure:
    """Return a chart of horizontal bars along the axis `unit`, the first policy at the top."""
    rows = max((len(bars) for bars in panels.values()), default=1)
    figure, all_axes = _panels(title, list(panels), 4.6, 1.0 + 0.3 * rows)
    every = [bar for bars in panels.values() for bar in bars]
    styles = _styles(bar.policy for bar in every)
    longest = max((bar.value.mean for bar in every if bar.value is not None), default=0.0)
    for axes, bars in zip(all_axes, panels.values(), strict=True):
        lengths = [0.0 if bar.value is None else bar.value.mean for bar in bars]
        names = [bar.policy for bar in bars]
        draw_bars(axes, names, lengths, [styles[name][0] for name in names], [bar.text for bar in bars])
        axes.margins(x=0.02)
        axes.set_xlim(0, longest * 1.6 or 1.0)  # with room for the texts
        axes.locator_params(axis="x", nbins=5)
        axes.invert_yaxis()
        label(axes, x=unit, size=9)
    return figure


def png(figure: Figure) -> bytes:
    """Return `figure` as PNG, without the version of the program that drew it."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """Return `figure` as SVG, without a date and with ids that are not random."""
    from matplotlib import rc_context

    buffer = StringIO()
    with rc_context({"svg.hashsalt": "warmroute"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _panels(
    title: str, names: Sequence[str], width: float, height: float, *, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, one for each name."""
    across = 2 if len(names) == 4 else min(ACROSS, len(names))
    down = ceil(len(names) / across)
    figure = canvas(1.6 + width * across, 0.6 + height * down)
    places = figure.subplots(down, across, squeeze=False, sharey=share_y).flat
    all_axes = []
    for place, axes in enumerate(places):
        if place >= len(names):
            axes.set_visible(False)
            continue
        label(axes, fill(names[place], TITLE, break_on_hyphens=False), size=9)
        bare(axes, 8)
        all_axes.append(axes)
    write_heading(figure, title)
    return figure, all_axes


def _draw(axes: Axes, line: PlotLine, style: tuple[str, str]) -> None:
    colour, mark = style
    xs = [at for at, _ in line.points]
    ys = [value.mean for _, value in line.points]
    axes.plot(xs, ys, color=colour, marker=mark, ms=5, lw=1.8, label=line.policy)
    around = [(value.mean, value.spread) for _, value in line.points if value.spread is not None]
    if len(around) == len(xs):
        low, high = [y - by for y, by in around], [y + by for y, by in around]
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, lw=0)


def _styles(policies: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and mark of each policy: the same in all panels."""
    names = list(dict.fromkeys(policies))
    own = dict(zip(names, zip(COLOURS, MARKS, strict=True), strict=False))
    return {name: own.get(name, OTHER) for name in names}


def _ticks(axes: Axes, at: Sequence[float]) -> None:
    """Put ticks at the points; the axis is logarithmic if the points are far apart."""
    if at[-1] > 6 * at[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
    if len(at) <= 8:
        axes.set_xticks(at, [f"{value:,.4g}" for value in at])
        axes.set_xticks([], minor=True)
