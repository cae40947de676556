"""A load as a chart: the time to the first token over time, per target, and its distribution."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from router.cli.terminal.drawing import bare, canvas, draw_distribution, label, plain_numbers, save, write_heading
from router.testbed.loadgen.report import UNKNOWN_TARGET, LoadReport, compute_hit_share, group_by_target, target_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2f6f9f", "#e8963a", "#4b9b6e", "#b2557f", "#7a6bb0", "#9aa3af")  # the last one: all but the busiest
FAILED = "#c0392b"


def load_chart(report: LoadReport, versions: str, when: str, file: Path) -> None:
    """Draw a report with at least one answer to `file`. Raises WarmrouteError when the file cannot be written."""
    figure = canvas(11.0, 4.2)
    over_time, distribution = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    _over_time(over_time, report)
    draw_distribution(distribution, (one.ttft_s or 0.0 for one in report.answers), COLOURS[0])
    label(distribution, x="seconds to the first token", y="share of answers that waited no longer")
    for axes in (over_time, distribution):
        bare(axes, 9, "both")
    hit = compute_hit_share(report.answers)
    title = f"{report.workload.name}, {report.loop}: {len(report.answers):,} answers"
    title += "" if hit is None else f", {hit:.1%} of prompt tokens from a cache"
    write_heading(figure, title, f"{report.url}, {versions}, {when}")
    save(figure, file)


def _over_time(axes: Axes, report: LoadReport) -> None:
    """Draw a dot per answer and a cross per failure; the busiest targets have their own colours."""
    busiest = sorted(group_by_target(report).items(), key=lambda item: -item[1].requests)
    own_colour = [target for target, _ in busiest[: len(COLOURS) - 1]]
    groups = {target: [one for one in report.answers if target_name(one) == target] for target in sorted(own_colour)}
    groups["others"] = [one for one in report.answers if target_name(one) not in own_colour]
    for colour, (target, rows) in zip(COLOURS, groups.items(), strict=False):
        if rows:
            name = "answers" if target == UNKNOWN_TARGET else target
            sent, waited = [one.sent_s for one in rows], [one.ttft_s or 0.0 for one in rows]
            axes.plot(sent, waited, "o", ms=3.5, alpha=0.6, mew=0, color=colour, label=name)
    failed = [one.sent_s for one in report.requests if one.failure is not None]
    if failed:
        lowest = min(one.ttft_s or 0.0 for one in report.answers)
        axes.plot(failed, [lowest] * len(failed), "x", ms=4, color=FAILED, label="failed")
    axes.set_yscale("log")
    plain_numbers(axes.yaxis)
    label(axes, x="sent at, seconds from the start", y="seconds to the first token")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))
