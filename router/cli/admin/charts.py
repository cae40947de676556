"""An experiment as a chart, PNG or SVG: each metric with every arm's estimate and interval."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.cli.admin.tables import SHARES, format_figure
from router.cli.terminal.drawing import FAINT, INK, bare, canvas, label, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"better": "#2f8f5b", "worse": "#c0392b"}
FIRST_ARM = "#2f6f9f"


def experiment_chart(experiment: Mapping[str, Any], when: str, file: Path) -> None:
    """Draw `experiment`, as `GET /admin/experiment` returns it, to `file`.

    Raises WarmrouteError when the file cannot be written.
    """
    arms = experiment["report"]["arms"]
    metrics = [standing["metric"] for standing in arms[0]["standings"]]
    chart = canvas(8.6, 0.9 + len(metrics) * (0.5 + 0.3 * len(arms)))
    rows = chart.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for i, axes in enumerate(rows):
        _metric(axes, metrics[i], [(arm["arm"], arm["standings"][i]) for arm in arms])
    shares = ", ".join(f"{arm['arm']} {arm['share']:g}%" for arm in arms)
    chart.suptitle(f"{shares}\n{when}; intervals hold at every look", color=INK, fontsize=9, x=0.01, ha="left")
    save(chart, file)


def _metric(axes: Axes, metric: str, standings: list[tuple[str, Mapping[str, Any]]]) -> None:
    """Draw one row per arm, from 0 on. An interval without a finite end runs off the chart; text gives the estimate."""
    scale = 100.0 if metric in SHARES else 1.0
    figures = [[_number(own[key], scale) for key in ("low", "estimate", "high")] for _, own in standings]
    right = 1.08 * max((value for row in figures for value in row if value is not None and value < inf), default=1.0)
    right = right or 1.0
    for row, ((_, standing), (low, middle, high)) in enumerate(zip(standings, figures, strict=True)):
        colour = FIRST_ARM if standing["verdict"] is None else COLOURS.get(standing["verdict"], FAINT)
        if low is not None and high is not None:
            ends = [min(low, right), min(high, right)]
            axes.plot(ends, [row, row], color=colour, lw=5, alpha=0.35, solid_capstyle="butt")
        if middle is not None and middle < inf:
            axes.plot([middle], [row], "o", ms=6, color=colour)
        text = f"  {format_figure(standing['estimate'], metric)}  {standing['verdict'] or ''}"
        axes.text(1.0, row, text, transform=axes.get_yaxis_transform(), va="center", color=colour, fontsize=8)
    axes.set_yticks(range(len(standings)), [name for name, _ in standings])
    axes.set_ylim(len(standings) - 0.5, -0.5)
    axes.set_xlim(0, right)
    label(axes, f"{metric} ({'%' if metric in SHARES else 'ms'})", size=9)
    bare(axes, 8, "x")
    axes.spines["left"].set_visible(False)


def _number(value: float | str | None, scale: float) -> float | None:
    """Return an estimate in the chart's unit; the API writes infinity as text."""
    return inf if isinstance(value, str) else None if value is None else value * scale
