"""The reports of both benchmarks as PNG charts."""

from __future__ import annotations

from pathlib import Path
from statistics import median, mode
from typing import TYPE_CHECKING

from router.cli.terminal.drawing import FAINT, INK, bare, canvas, plain_numbers, save
from router.testbed.bench.agents import AgentsReport
from router.testbed.bench.cache_tiers import ENGINE_LABELS, KINDS, TierReport
from router.testbed.bench.summary import ArmSummary, summarize_arm
from router.testbed.workloads.statistics import compute_statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"computed": "#c4c9d1", "pool": "#e8963a", "local": "#2f6f9f"}
ARMS = ("#9aa3af", "#e8963a", "#2f6f9f")


def layers_chart(seen: TierReport, when: str, file: Path) -> None:
    figure = canvas(8.4, 3.9)
    axes = figure.add_subplot()
    kinds = [kind for kind in KINDS if seen.of_kind(kind)]
    middles = {kind: median(one.answer.ttft_ms for one in seen.of_kind(kind)) for kind in kinds}
    longest = max(one.answer.ttft_ms for one in seen.measurements)
    for row, kind in enumerate(kinds):
        some = seen.of_kind(kind)
        axes.barh(row, middles[kind], height=0.58, color=COLOURS[mode(one.source for one in some)])
        axes.plot([one.answer.ttft_ms for one in some], [row] * len(some), "o", ms=3.5, color=INK, alpha=0.55)
        end = max(one.answer.ttft_ms for one in some)
        faster = "" if kind == "cold" or "cold" not in middles else f"   {middles['cold'] / middles[kind]:.1f}x"
        axes.text(end + longest * 0.02, row, f"{middles[kind]:.0f} ms{faster}", va="center", color=INK)
    axes.set_yticks(range(len(kinds)), [f"{kind}\n{ENGINE_LABELS[kind]}" for kind in kinds])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.25)
    axes.set_xlabel("time to first token, ms (bar: median; dots: each repetition; x: cold / this)", color=FAINT)
    bare(axes, 9)
    _title(figure, f"What each layer of cache is worth: one {seen.tokens:,}-token prompt", seen.versions, when)
    save(figure, file)


def agents_chart(report: AgentsReport, when: str, file: Path) -> None:
    figure = canvas(11.0, 4.6)
    hits, times, throughput = figure.subplots(1, 3, width_ratios=(1.15, 1.25, 0.9))
    names = [outcome.arm.name.replace(", ", "\n").replace(" +", "\n+") for outcome in report.outcomes]
    colours = [ARMS[number % len(ARMS)] for number in range(len(names))]
    all_figures = [summarize_arm(outcome) for outcome in report.outcomes]

    _sources(hits, names, all_figures, compute_statistics(report.workload, report.block_tokens).ideal_share)
    for outcome, colour in zip(report.outcomes, colours, strict=True):
        ordered = sorted(answer.ttft_ms / 1e3 for answer in outcome.answers)
        share = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
        times.step(ordered, share, where="post", color=colour, lw=2, label=outcome.arm.name)
    times.set_title("time to first token", color=INK, loc="left", fontsize=10)
    times.set_xlabel("seconds", color=FAINT)
    times.set_ylabel("share of requests that waited no longer", color=FAINT)
    times.set_xscale("log")
    times.set_ylim(0, 1)
    plain_numbers(times.xaxis)
    times.legend(frameon=False, loc="lower right", fontsize=8)

    rates = [mine.requests_per_s for mine in all_figures]
    throughput.bar(names, rates, width=0.6, color=colours)
    for x, rate in enumerate(rates):
        throughput.text(x, rate, f"{rate:.2f}", ha="center", va="bottom", color=INK)
    throughput.set_title("throughput", color=INK, loc="left", fontsize=10)
    throughput.set_ylabel("requests per second", color=FAINT)
    for axes in (hits, throughput):
        bare(axes, 9)
    bare(times, 9, "both")
    many = f"{len(report.workload.sessions)} agents, {report.workload.turns} turns"
    _title(figure, f"Multi-turn agents, closed loop: {many}", report.versions, when)
    save(figure, file)


def _sources(axes: Axes, names: list[str], all_figures: list[ArmSummary], ideal: float) -> None:
    """Stacked bars: where the prompt tokens' KV came from."""
    below = [0.0] * len(names)
    for source in ("local", "pool", "computed"):
        parts = [100 * getattr(mine.shares, source) if mine.shares else 0.0 for mine in all_figures]
        axes.bar(names, parts, bottom=below, width=0.6, color=COLOURS[source], label=source)
        for x, (part, base) in enumerate(zip(parts, below, strict=True)):
            if part >= 4:
                light = "white" if source != "computed" else INK
                axes.text(x, base + part / 2, f"{part:.0f}", ha="center", va="center", color=light)
        below = [base + part for base, part in zip(below, parts, strict=True)]
    axes.axhline(100 * ideal, color=INK, lw=1, ls=(0, (4, 3)))
    axes.set_ylim(0, 100)
    axes.set_title(f"prompt tokens by source (dashed: ideal {ideal:.0%})", color=INK, loc="left", fontsize=10)
    axes.set_ylabel("% of prompt tokens", color=FAINT)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=8)


def _title(figure: Figure, title: str, versions: str, when: str) -> None:
    figure.suptitle(f"{title}\n", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    figure.text(0.01, 0.915, f"{versions}, {when}", color=FAINT, fontsize=8.5)
