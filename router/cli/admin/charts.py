"""An experiment as a chart, PNG or SVG: each metric with every arm's estimate and interval."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.cli.admin.tables import SHARES, figure
from router.cli.terminal.drawing import FAINT, INK, bare, canvas, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"better": "#2f8f5b", "worse": "#c0392b"}
FIRST = "#2f6f9f"


def experiment_chart(told: Mapping[str, Any], when: str, file: Path) -> None:
    """`told`: an experiment, as `GET /admin/experiment` has it. Raises WarmrouteError if it cannot be written."""
    arms = told["report"]["arms"]
    metrics = [standing["metric"] for standing in arms[0]["standings"]]
    chart = canvas(8.6, 0.9 + len(metrics) * (0.5 + 0.3 * len(arms)))
    rows = chart.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for i, axes in enumerate(rows):
        _metric(axes, metrics[i], [(arm["arm"], arm["standings"][i]) for arm in arms])
    shares = ", ".join(f"{arm['arm']} {arm['share']:g}%" for arm in arms)
    chart.suptitle(f"{shares}\n{when}; intervals hold at every look", color=INK, fontsize=9, x=0.01, ha="left")
    save(chart, file)


def _metric(axes: Axes, metric: str, standings: list[tuple[str, Mapping[str, Any]]]) -> None:
    """One row per arm, from 0 on. An interval without a finite end runs off the chart, and words say the estimate."""
    scale = 100.0 if metric in SHARES else 1.0
    figures = [[_number(one[key], scale) for key in ("low", "estimate", "high")] for _, one in standings]
    right = 1.08 * max((value for row in figures for value in row if value is not None and value < inf), default=1.0)
    right = right or 1.0
    for row, ((_, standing), (low, middle, high)) in enumerate(zip(standings, figures, strict=True)):
        colour = FIRST if standing["verdict"] is None else COLOURS.get(standing["verdict"], FAINT)
        if low is not None and high is not None:
            axes.plot(
                [min(low, right), min(high, right)], [row, row], color=colour, lw=5, alpha=0.35, solid_capstyle="butt"
            )
        if middle is not None and middle < inf:
            axes.plot([middle], [row], "o", ms=6, color=colour)
        said = f"  {figure(standing['estimate'], metric)}  {standing['verdict'] or ''}"
        axes.text(1.0, row, said, transform=axes.get_yaxis_transform(), va="center", color=colour, fontsize=8)
    axes.set_yticks(range(len(standings)), [name for name, _ in standings])
    axes.set_ylim(len(standings) - 0.5, -0.5)
    axes.set_xlim(0, right)
    axes.set_title(f"{metric} ({'%' if metric in SHARES else 'ms'})", loc="left", color=INK, fontsize=9)
    bare(axes, 8, "x")
    axes.spines["left"].set_visible(False)


def _number(value: float | str | None, scale: float) -> float | None:
    """What is infinite came as text."""
    return inf if isinstance(value, str) else None if value is None else value * scale
