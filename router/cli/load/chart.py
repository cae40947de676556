"""A load as a chart: how long requests waited for their first token, when, and at which target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from router.cli.terminal.drawing import FAINT, INK, bare, canvas, plain_numbers, save
from router.testbed.loadgen.report import UNKNOWN_TARGET, LoadReport, compute_hit_share, group_by_target, target_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (
    "#2f6f9f",
    "#e8963a",
    "#4b9b6e",
    "#b2557f",
    "#7a6bb0",
    "#9aa3af",
)  # the last one for all that are not among the busiest
FAILED = "#c0392b"


def loaded_chart(loaded: LoadReport, versions: str, when: str, file: Path) -> None:
    """There must be an answer. Raises WarmrouteError where the file cannot be written."""
    figure = canvas(11.0, 4.2)
    over_time, distribution = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    _over_time(over_time, loaded)
    _distribution(distribution, loaded)
    for axes in (over_time, distribution):
        bare(axes, 9, "both")
    hit = compute_hit_share(loaded.answers)
    title = f"{loaded.workload.name}, {loaded.loop}: {len(loaded.answers):,} answers"
    title += "" if hit is None else f", {hit:.1%} of prompt tokens from a cache"
    figure.suptitle(f"{title}\n", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    figure.text(0.01, 0.905, f"{loaded.url}, {versions}, {when}", color=FAINT, fontsize=8.5)
    save(figure, file)


def _over_time(axes: Axes, loaded: LoadReport) -> None:
    busiest = sorted(group_by_target(loaded).items(), key=lambda item: -item[1].requests)
    named = [target for target, _ in busiest[: len(COLOURS) - 1]]
    groups = {target: [one for one in loaded.answers if target_name(one) == target] for target in sorted(named)}
    groups["others"] = [one for one in loaded.answers if target_name(one) not in named]
    for colour, (target, rows) in zip(COLOURS, groups.items(), strict=False):
        if rows:
            label = "answers" if target == UNKNOWN_TARGET else target
            sent, waited = [one.sent_s for one in rows], [one.ttft_s or 0.0 for one in rows]
            axes.plot(sent, waited, "o", ms=3.5, alpha=0.6, mew=0, color=colour, label=label)
    failed = [one.sent_s for one in loaded.requests if one.failure is not None]
    if failed:
        lowest = min(one.ttft_s or 0.0 for one in loaded.answers)
        axes.plot(failed, [lowest] * len(failed), "x", ms=4, color=FAILED, label="failed")
    axes.set_yscale("log")
    plain_numbers(axes.yaxis)
    axes.set_ylabel("seconds to the first token", color=FAINT)
    axes.set_xlabel("sent at, seconds from the start", color=FAINT)
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _distribution(axes: Axes, loaded: LoadReport) -> None:
    ordered = sorted(one.ttft_s or 0.0 for one in loaded.answers)
    share = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
    axes.step(ordered, share, where="post", color=COLOURS[0], lw=2)
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("seconds to the first token", color=FAINT)
    axes.set_ylabel("share of answers that waited no longer", color=FAINT)
