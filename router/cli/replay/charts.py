"""A replay as a chart, PNG or SVG: what each policy would have done, beside what was done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from router.cli.replay.tables import marked, share_of
from router.cli.terminal.drawing import FAINT, INK, bare, canvas, save
from router.testbed.replay.replay import ReplayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR, LESS, MORE = "#9aa3af", "#2f6f9f", "#e8963a"


def draw(report: ReplayReport, file: Path) -> None:
    """Four panels, a row per contender; blue is better than what was made, orange is worse. Needs one with a choice."""
    some = [one for one in report.contended if one.choices]
    figure = canvas(11.0, 1.9 + 0.42 * len(some))
    agree, waits, found, spread = figure.subplots(1, 4, sharey=True)
    names = [marked(one) for one in some]

    shares = [100 * (one.agreement or 0.0) for one in some]
    _bars(agree, names, shares, [BAR] * len(some), [share_of(one.agreed, one.choices) for one in some])
    _title(agree, "the same choice", "% of requests")

    times = [one.ttft_ms or 0.0 for one in some]
    _bars(waits, names, times, [MORE if ms > 0 else LESS for ms in times], [f"{ms:+,.1f}" for ms in times])
    _title(waits, "predicted TTFT", "ms per request, against what was made")

    known = [(marked(one), one.overlap_tokens) for one in some if one.overlap_tokens is not None]
    tokens = [value for _, value in known]
    colours = [LESS if value > 0 else MORE for value in tokens]
    _bars(found, [name for name, _ in known], tokens, colours, [f"{value:+,.0f}" for value in tokens])
    _title(found, "cached prompt tokens", "per request, against what was made")

    uneven = [one.uneven or 0.0 for one in some]
    _bars(spread, names, uneven, [BAR] * len(some), [f"{value:.2f}" for value in uneven])
    if (made := some[0].uneven_made) is not None:
        spread.axvline(made, color=INK, lw=1, ls=(0, (4, 3)))
        _title(spread, f"load spread (dashed: was {made:.2f})", "busiest target / mean, in requests")
    agree.invert_yaxis()  # shared by all four
    figure.suptitle(_heading(report), x=0.01, ha="left", color=INK, fontsize=11, fontweight="bold")
    save(figure, file)


def _bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], colours: Sequence[str], said: Sequence[str]
) -> None:
    bars = axes.barh(names, values, height=0.6, color=colours)
    axes.bar_label(bars, said, padding=3, color=INK, fontsize=8)
    axes.margins(x=0.3)
    axes.locator_params(axis="x", nbins=4)
    if min(values, default=0.0) >= 0:
        axes.set_xlim(left=0)
    axes.axvline(0, color="#d1d5db", lw=0.8)
    bare(axes, 8)
    axes.spines["left"].set_visible(False)


def _title(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, color=INK, loc="left", fontsize=9)
    axes.set_xlabel(unit, color=FAINT, fontsize=8)


def _heading(report: ReplayReport) -> str:
    told = f"{report.records:,} logged requests, decided again"
    if report.first_wall_s is None or report.last_wall_s is None:
        return told
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (report.first_wall_s, report.last_wall_s))
    return f"{told} ({begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC)"
