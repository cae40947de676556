"""Advice as a chart: hits and mean prefill time over the pool's size, with a line per fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.cli.advise.report import AdviceReport, in_gb
from router.cli.terminal.drawing import bare, canvas, label, save, write_heading
from router.testbed.simulator.sizing import SizingCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#b9d3e6", "#8ab4d4", "#5b94c0", "#2f6f9f", "#1f4e73", "#123149")


def draw(report: AdviceReport, file: Path) -> None:
    """Draw the chart to `file`. Raises WarmrouteError when it cannot be written."""
    save(make_chart(report), file)


def make_chart(report: AdviceReport) -> Figure:
    """Return the chart: a panel of hits and one of prefill times."""
    figure = canvas(10.5, 4.4)
    hits, times = figure.subplots(1, 2)
    _lines(hits, report, lambda cell: 100 * cell.hit_share)
    _lines(times, report, lambda cell: 1e3 * cell.prefill_s)
    label(hits, "hits, % of the prompts' tokens")
    label(times, "mean prefill, ms, loading included")
    handles, labels = hits.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8.5, title="instances")
    write_heading(figure, f"What a pool would bring: {Path(report.workload).name} on {report.profile.name}")
    return figure


def _lines(axes: Axes, report: AdviceReport, figure: Callable[[SizingCell], float]) -> None:
    """Draw a line per fleet, a colour per fleet size: solid if placed by prefix, dashed if placed at random."""
    sizes = [report.gb(cell.pool_tokens) for cell in next(iter(report.fleets.values()))]
    counts = sorted({instances for instances, _ in report.fleets})
    for (instances, placement), cells in report.fleets.items():
        colour = COLOURS[round(counts.index(instances) * (len(COLOURS) - 1) / max(1, len(counts) - 1))]
        name = f"{instances}, {placement}" if instances > 1 else "1"
        style: dict[str, Any] = {"ls": "-", "lw": 1.9, "marker": "o", "ms": 4}
        if placement == "at random":
            style = {"ls": "--", "lw": 1.2}
        axes.plot(range(len(cells)), [figure(cell) for cell in cells], color=colour, label=name, **style)
    axes.set_xticks(range(len(sizes)), ["none" if not size else in_gb(size) for size in sizes], rotation=40)
    label(axes, x="pool, GB")
    axes.set_ylim(bottom=0)
    bare(axes, 8.5, "y")
