"""Advice as a chart: hits, and the prefill that is left, over the pool's size; a line per fleet size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from router.cli.advise.report import AdviceReport, in_gb
from router.cli.terminal.drawing import FAINT, INK, bare, canvas, save
from router.testbed.simulator.sizing import SizingCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#b9d3e6", "#8ab4d4", "#5b94c0", "#2f6f9f", "#1f4e73", "#123149")


def draw(counsel: AdviceReport, file: Path) -> None:
    """Raises WarmrouteError."""
    save(drawn(counsel), file)


def drawn(counsel: AdviceReport) -> Figure:
    figure = canvas(10.5, 4.4)
    hits, times = figure.subplots(1, 2)
    _lines(hits, counsel, lambda cell: 100 * cell.hit_share)
    _lines(times, counsel, lambda cell: 1e3 * cell.prefill_s)
    hits.set_title("hits, % of the prompts' tokens", color=INK, loc="left", fontsize=10)
    times.set_title("mean prefill, ms, loading included", color=INK, loc="left", fontsize=10)
    handles, labels = hits.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8.5, title="instances")
    title = f"What a pool would bring: {Path(counsel.given).name} on {counsel.profile.name}"
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    return figure


def _lines(axes: Axes, counsel: AdviceReport, of: Callable[[SizingCell], float]) -> None:
    """Solid by prefix, dashed at random, in one colour per fleet size; no pool stands at the left edge."""
    sizes = [counsel.gb(cell.pool_tokens) for cell in next(iter(counsel.fleets.values()))]
    counts = sorted({instances for instances, _ in counsel.fleets})
    for (instances, placement), cells in counsel.fleets.items():
        rank = counts.index(instances)
        colour = COLOURS[round(rank * (len(COLOURS) - 1) / max(1, len(counts) - 1))]
        dashed = placement == "at random"
        axes.plot(
            range(len(cells)),
            [of(cell) for cell in cells],
            color=colour,
            ls="--" if dashed else "-",
            lw=1.2 if dashed else 1.9,
            marker=None if dashed else "o",
            ms=4,
            label=f"{instances}, {placement}" if instances > 1 else "1",
        )
    axes.set_xticks(range(len(sizes)), ["none" if not size else in_gb(size) for size in sizes], rotation=40)
    axes.set_xlabel("pool, GB", color=FAINT)
    axes.set_ylim(bottom=0)
    bare(axes, 8.5, "y")
