"""The reports of both benchmarks as PNG charts."""

from __future__ import annotations

from pathlib import Path
from statistics import median, mode
from typing import TYPE_CHECKING

from router.cli.terminal.drawing import INK, bare, canvas, draw_distribution, label, save, write_heading
from router.testbed.bench.agents import AgentsReport
from router.testbed.bench.cache_tiers import ENGINE_LABELS, KINDS, TierReport
from router.testbed.bench.summary import ArmSummary, summarize_arm
from router.testbed.workloads.statistics import compute_statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"computed": "#c4c9d1", "pool": "#e8963a", "local": "#2f6f9f"}
ARMS = ("#9aa3af", "#e8963a", "#2f6f9f")


def layers_chart(report: TierReport, when: str, file: Path) -> None:
    """Draw the time to first token per kind of prompt to `file`. Raises WarmrouteError when it cannot be written."""
    figure = canvas(8.4, 3.9)
    axes = figure.add_subplot()
    kinds = [kind for kind in KINDS if report.of_kind(kind)]
    medians = {kind: median(one.answer.ttft_ms for one in report.of_kind(kind)) for kind in kinds}
    longest = max(one.answer.ttft_ms for one in report.measurements)
    for row, kind in enumerate(kinds):
        some = report.of_kind(kind)
        axes.barh(row, medians[kind], height=0.58, color=COLOURS[mode(one.source for one in some)])
        axes.plot([one.answer.ttft_ms for one in some], [row] * len(some), "o", ms=3.5, color=INK, alpha=0.55)
        end = max(one.answer.ttft_ms for one in some)
        faster = "" if kind == "cold" or "cold" not in medians else f"   {medians['cold'] / medians[kind]:.1f}x"
        axes.text(end + longest * 0.02, row, f"{medians[kind]:.0f} ms{faster}", va="center", color=INK)
    axes.set_yticks(range(len(kinds)), [f"{kind}\n{ENGINE_LABELS[kind]}" for kind in kinds])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.25)
    label(axes, x="time to first token, ms (bar: median; dots: each repetition; x: cold / this)")
    bare(axes, 9)
    title = f"What each layer of cache is worth: one {report.tokens:,}-token prompt"
    write_heading(figure, title, f"{report.versions}, {when}")
    save(figure, file)


def agents_chart(report: AgentsReport, when: str, file: Path) -> None:
    """Draw hits, times and throughput of each arm to `file`. Raises WarmrouteError when it cannot be written."""
    figure = canvas(11.0, 4.6)
    hits, times, throughput = figure.subplots(1, 3, width_ratios=(1.15, 1.25, 0.9))
    names = [outcome.arm.name.replace(", ", "\n").replace(" +", "\n+") for outcome in report.outcomes]
    colours = [ARMS[number % len(ARMS)] for number in range(len(names))]
    summaries = [summarize_arm(outcome) for outcome in report.outcomes]

    _sources(hits, names, summaries, compute_statistics(report.workload, report.block_tokens).ideal_share)
    for outcome, colour in zip(report.outcomes, colours, strict=True):
        draw_distribution(times, (answer.ttft_ms / 1e3 for answer in outcome.answers), colour, outcome.arm.name)
    label(times, "time to first token", "seconds", "share of requests that waited no longer")
    times.legend(frameon=False, loc="lower right", fontsize=8)

    rates = [summary.requests_per_s for summary in summaries]
    throughput.bar(names, rates, width=0.6, color=colours)
    for x, rate in enumerate(rates):
        throughput.text(x, rate, f"{rate:.2f}", ha="center", va="bottom", color=INK)
    label(throughput, "throughput", y="requests per second")
    for axes in (hits, throughput):
        bare(axes, 9)
    bare(times, 9, "both")
    load = f"{len(report.workload.sessions)} agents, {report.workload.turns} turns"
    write_heading(figure, f"Multi-turn agents, closed loop: {load}", f"{report.versions}, {when}")
    save(figure, file)


def _sources(axes: Axes, names: list[str], summaries: list[ArmSummary], ideal: float) -> None:
    """Draw stacked bars: where the prompt tokens' KV came from."""
    below = [0.0] * len(names)
    for source in ("local", "pool", "computed"):
        parts = [100 * getattr(summary.shares, source) if summary.shares else 0.0 for summary in summaries]
        axes.bar(names, parts, bottom=below, width=0.6, color=COLOURS[source], label=source)
        for x, (part, base) in enumerate(zip(parts, below, strict=True)):
            if part >= 4:
                ink = "white" if source != "computed" else INK
                axes.text(x, base + part / 2, f"{part:.0f}", ha="center", va="center", color=ink)
        below = [base + part for base, part in zip(below, parts, strict=True)]
    axes.axhline(100 * ideal, color=INK, lw=1, ls=(0, (4, 3)))
    axes.set_ylim(0, 100)
    label(axes, f"prompt tokens by source (dashed: ideal {ideal:.0%})", y="% of prompt tokens")
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=8)
