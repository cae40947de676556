"""How the charts are drawn: lines over an axis or bars, a panel for each of what is no axis; and their bytes.

It knows policies by name and colour only; what is drawn says `charts.py`. The same figures give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO, StringIO
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from router.cli.terminal.drawing import FAINT, INK, LINE, bare, canvas, plain_numbers
from router.testbed.sweep.columns import FigureValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f6f9f", "#e8963a", "#2f8f5b", "#c0392b", "#7d5ba6", "#8c6d46", "#d16ba5", "#4aa3a2")
MARKS = "osD^vP*X"
OTHER = ("#b6bcc6", ".")  # for as many policies as there are beyond the colours
ACROSS = 3  # panels side by side
TITLE = 64  # characters that a panel's width has room for


class PlotLine(NamedTuple):
    policy: str
    points: tuple[tuple[float, FigureValue], ...]  # from left to right


class PlotBar(NamedTuple):
    policy: str
    value: FigureValue | None
    said: str


Lines = Mapping[str, Sequence[PlotLine]]
"""By panel."""
Bars = Mapping[str, Sequence[PlotBar]]
"""By panel."""


def line_chart(title: str, unit: str, across: str, panels: Lines, *, logarithmic: bool = False) -> Figure:
    """With seeds, a band shows their spread."""
    figure, all_axes = _panels(title, list(panels), 4.4, 3.5, share_y=True)
    looks = _looks(line.policy for lines in panels.values() for line in lines)
    for axes, lines in zip(all_axes, panels.values(), strict=True):
        for line in reversed(lines):  # the first one asked for lies on top
            _draw(axes, line, looks[line.policy])
        _ticks(axes, sorted({at for line in lines for at, _ in line.points}))
        if logarithmic:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(across, color=FAINT, fontsize=8.5)
        axes.set_ylabel(unit, color=FAINT, fontsize=8.5)
        axes.grid(axis="y", color=LINE, lw=0.7)
    drawn = {handle.get_label(): handle for axes in all_axes for handle in axes.get_lines()}
    named = [name for name in looks if name in drawn]
    figure.legend([drawn[name] for name in named], named, loc="outside right upper", frameon=False, fontsize=8.5)
    return figure


def bar_chart(title: str, unit: str, panels: Bars) -> Figure:
    rows = max((len(bars) for bars in panels.values()), default=1)
    figure, all_axes = _panels(title, list(panels), 4.6, 1.0 + 0.3 * rows)
    every = [bar for bars in panels.values() for bar in bars]
    looks = _looks(bar.policy for bar in every)
    longest = max((bar.value.mean for bar in every if bar.value is not None), default=0.0)
    for axes, bars in zip(all_axes, panels.values(), strict=True):
        lengths = [0.0 if bar.value is None else bar.value.mean for bar in bars]
        names = [bar.policy for bar in bars]
        drawn = axes.barh(names, lengths, height=0.62, color=[looks[name][0] for name in names])
        axes.bar_label(drawn, [bar.said for bar in bars], padding=4, color=INK, fontsize=8)
        axes.margins(x=0.02)
        axes.set_xlim(0, longest * 1.6 or 1.0)  # with room for what the bars say
        axes.locator_params(axis="x", nbins=5)
        axes.invert_yaxis()
        axes.set_xlabel(unit, color=FAINT, fontsize=8.5)
        axes.spines["left"].set_visible(False)
    return figure


def png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """Its parts are named by what they are, not by chance, and no date is in it."""
    from matplotlib import rc_context

    buffer = StringIO()
    with rc_context({"svg.hashsalt": "warmroute"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _panels(
    title: str, names: Sequence[str], width: float, height: float, *, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """One for each name."""
    across = 2 if len(names) == 4 else min(ACROSS, len(names))
    down = ceil(len(names) / across)
    figure = canvas(1.6 + width * across, 0.6 + height * down)
    places = figure.subplots(down, across, squeeze=False, sharey=share_y).flat
    all_axes = []
    for place, axes in enumerate(places):
        if place >= len(names):
            axes.set_visible(False)
            continue
        axes.set_title(fill(names[place], TITLE, break_on_hyphens=False), color=INK, loc="left", fontsize=9)
        bare(axes, 8)
        all_axes.append(axes)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=11, fontweight="bold")
    return figure, all_axes


def _draw(axes: Axes, line: PlotLine, look: tuple[str, str]) -> None:
    colour, mark = look
    xs = [at for at, _ in line.points]
    ys = [value.mean for _, value in line.points]
    axes.plot(xs, ys, color=colour, marker=mark, ms=5, lw=1.8, label=line.policy)
    around = [(value.mean, value.spread) for _, value in line.points if value.spread is not None]
    if len(around) == len(xs):
        axes.fill_between(
            xs, [y - by for y, by in around], [y + by for y, by in around], color=colour, alpha=0.15, lw=0
        )


def _looks(policies: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and mark of each: the same in all panels."""
    names = list(dict.fromkeys(policies))
    own = dict(zip(names, zip(COLOURS, MARKS, strict=True), strict=False))
    return {name: own.get(name, OTHER) for name in names}


def _ticks(axes: Axes, at: Sequence[float]) -> None:
    """Where the points are; far apart, by factors."""
    if at[-1] > 6 * at[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
    if len(at) <= 8:
        axes.set_xticks(at, [f"{value:,.4g}" for value in at])
        axes.set_xticks([], minor=True)
