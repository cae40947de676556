"""A replay as a chart, PNG or SVG: what each policy would have done, beside what was done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from router.cli.replay.tables import mark_partial, share_of
from router.cli.terminal.drawing import EDGE, INK, bare, canvas, draw_bars, label, save, write_heading
from router.testbed.replay.replay import ReplayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEUTRAL, BETTER, WORSE = "#9aa3af", "#2f6f9f", "#e8963a"


def draw(report: ReplayReport, file: Path) -> None:
    """Draw four panels with a row per contender to `file`; blue is better than what was done, orange is worse.

    At least one contender must have a choice. Raises WarmrouteError when the file cannot be written.
    """
    some = [one for one in report.contended if one.choices]
    figure = canvas(11.0, 1.9 + 0.42 * len(some))
    agree, waits, found, spread = figure.subplots(1, 4, sharey=True)
    names = [mark_partial(one) for one in some]

    shares = [100 * (one.agreement or 0.0) for one in some]
    _bars(agree, names, shares, [NEUTRAL] * len(some), [share_of(one.agreed, one.choices) for one in some])
    label(agree, "the same choice", "% of requests", size=9)

    times = [one.ttft_ms or 0.0 for one in some]
    _bars(waits, names, times, [WORSE if ms > 0 else BETTER for ms in times], [f"{ms:+,.1f}" for ms in times])
    label(waits, "predicted TTFT", "ms per request, against what was done", size=9)

    known = [(mark_partial(one), one.overlap_tokens) for one in some if one.overlap_tokens is not None]
    tokens = [value for _, value in known]
    colours = [BETTER if value > 0 else WORSE for value in tokens]
    _bars(found, [name for name, _ in known], tokens, colours, [f"{value:+,.0f}" for value in tokens])
    label(found, "cached prompt tokens", "per request, against what was done", size=9)

    uneven = [one.uneven or 0.0 for one in some]
    _bars(spread, names, uneven, [NEUTRAL] * len(some), [f"{value:.2f}" for value in uneven])
    if (before := some[0].uneven_made) is not None:
        spread.axvline(before, color=INK, lw=1, ls=(0, (4, 3)))
        label(spread, f"load spread (dashed: was {before:.2f})", "busiest target / mean, in requests", size=9)
    agree.invert_yaxis()  # shared by all four
    write_heading(figure, _heading(report))
    save(figure, file)


def _bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], colours: Sequence[str], texts: Sequence[str]
) -> None:
    draw_bars(axes, names, values, colours, texts)
    axes.margins(x=0.3)
    axes.locator_params(axis="x", nbins=4)
    if min(values, default=0.0) >= 0:
        axes.set_xlim(left=0)
    axes.axvline(0, color=EDGE, lw=0.8)
    bare(axes, 8)


def _heading(report: ReplayReport) -> str:
    title = f"{report.records:,} logged requests, decided again"
    if report.first_wall_s is None or report.last_wall_s is None:
        return title
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (report.first_wall_s, report.last_wall_s))
    return f"{title} ({begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC)"
