"""The chart of a game day: latency, hit share and failures over time, with the faults marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from router.cli.terminal import drawing
from router.lab.gameday.outcome import FaultOutcome, end_of, has_failed
from router.lab.gameday.play import GamedayRun
from router.lab.loadgen.load import SentRequest
from router.lab.loadgen.report import compute_hit_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOT, HITS, FAILED, MARK, BROKEN = "#2f6f9f", "#4b9b6e", "#c0392b", "#e8963a", "#c0392b"
WINDOW_S = 3  # over which the hit share is taken


def draw_run(run: GamedayRun, outcomes: Sequence[FaultOutcome], versions: str, when: str, file: Path) -> None:
    """Draw a run with at least one request to `file`. Raises WarmrouteError when the file cannot be written."""
    figure = drawing.canvas(12.0, 6.0)
    latency, hits = figure.subplots(2, 1, sharex=True, height_ratios=(2.0, 1.0))
    _draw_latency(latency, run.rows)
    _draw_hits(hits, run.rows, run.script.ends_s)
    for one in outcomes[1:]:
        for axes in (latency, hits):
            axes.axvspan(one.began_s, max(one.ended_s, one.began_s + 0.3), color=MARK, alpha=0.25, lw=0)
        text, colour = one.name.replace("_", " "), BROKEN if one.broken else drawing.INK
        anchor = latency.get_xaxis_transform()
        latency.text(one.began_s, 1.01, text, transform=anchor, fontsize=7.5, rotation=35, color=colour, va="bottom")
    for axes in (latency, hits):
        drawing.bare(axes, 9, "both")
    drawing.label(latency, y="seconds to the first token")
    details = f"{run.script.load.agents} agents, policy {run.script.policy}, {versions}, {when}"
    drawing.label(hits, x=f"seconds since the load began ({details})", y=f"hit share, {WINDOW_S} s")
    held = sum(not one.broken for one in outcomes[1:])
    failed = sum(map(has_failed, run.rows))
    title = f"Game day: {held} of {len(outcomes) - 1} faults within their bounds"
    drawing.write_heading(figure, f"{title}, {failed} of {len(run.rows):,} requests failed")
    drawing.save(figure, file)


def _draw_latency(axes: Axes, rows: Sequence[SentRequest]) -> None:
    answered = [(end_of(one), one.ttft_s) for one in rows if one.ttft_s is not None]
    axes.plot(*zip(*answered, strict=True), "o", ms=2.5, alpha=0.6, mew=0, color=DOT, label="answered")
    failed = [end_of(one) for one in rows if has_failed(one)]
    if failed:
        lowest = min((wait for _, wait in answered), default=0.01)
        axes.plot(failed, [lowest] * len(failed), "x", ms=5, color=FAILED, label="failed")
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_yscale("log")
    drawing.plain_numbers(axes.yaxis)


def _draw_hits(axes: Axes, rows: Sequence[SentRequest], ends_s: float) -> None:
    """Draw, for each second, the share of prompt tokens from caches in the answers of the `WINDOW_S` before."""
    shares = {
        second: compute_hit_share([one for one in rows if second - WINDOW_S <= end_of(one) < second and one.ttft_s])
        for second in range(WINDOW_S, int(ends_s) + 1)
    }
    known = [(second, share) for second, share in shares.items() if share is not None]
    axes.plot(*zip(*known, strict=True), color=HITS, lw=1.5)
    axes.set_ylim(0, 1)
