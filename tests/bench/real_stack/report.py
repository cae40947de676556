"""Benchmark reports as tables for the terminal, with conclusions and failures as lines below them, and as charts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median, mode
from typing import TYPE_CHECKING

from router.cli.terminal.drawing import INK, bare, canvas, draw_distribution, label, save, write_heading
from router.cli.terminal.output import MISSING, Grid, GridEntry, make_grid
from router.lab.workloads.statistics import compute_statistics
from tests.bench.real_stack.agents import AgentsReport
from tests.bench.real_stack.cache_tiers import ENGINE_LABELS, EXPECTED, KINDS, Kind, TierMeasurement, TierReport
from tests.bench.real_stack.engine_counters import EngineCounts
from tests.bench.real_stack.summary import ArmSummary, summarize_arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INTERRUPTED = "Interrupted: the report holds what was done before."
COLOURS = {"computed": "#c4c9d1", "pool": "#e8963a", "local": "#2f6f9f"}
ARMS = ("#9aa3af", "#e8963a", "#2f6f9f")


def layers_table(report: TierReport) -> Grid:
    """Return a row per kind of prompt: its time to first token, and the sources of its KV by vLLM's counters."""
    rows: list[list[str | GridEntry]] = []
    first = report.of_kind("cold")
    cold = median(one.answer.ttft_ms for one in first) if first else None
    for kind in KINDS:
        if not (some := report.of_kind(kind)):
            continue
        times = [one.answer.ttft_ms for one in some]
        middle = median(times)
        expected = report.count_expected(kind)
        rows.append(
            [
                kind,
                ENGINE_LABELS[kind],
                f"{middle:.0f} ({min(times):.0f}-{max(times):.0f})",
                MISSING if cold is None else f"{cold / middle:.2f}x",
                *(_median(values) for values in zip(*map(_tokens, some), strict=True)),
                GridEntry(f"{expected}/{len(some)} {EXPECTED[kind]}", colour=None if expected == len(some) else "red"),
            ]
        )
    heads = ("TTFT ms median (min-max)", "cold / this", "local", "pool", "computed", "KV as expected")
    title = f"TTFT of one {report.tokens}-token prompt by where its KV comes from ({report.versions})"
    return make_grid(title, ("prompt", "engine", *heads), rows, labels=2)


def store_table(report: TierReport) -> Grid | None:
    """Return what Mooncake and vLLM's connector counted per request; None without a pool."""
    if not any(one.master for one in report.measurements):
        return None
    rows = []
    for kind in KINDS:
        if some := report.of_kind(kind):
            columns = (
                [one.master and one.master.stored_keys for one in some],
                [one.master and one.master.loaded_keys for one in some],
                [one.engine.loaded_bytes and one.engine.loaded_bytes / 1e6 for one in some],
                [one.engine.load_s and one.engine.load_s * 1e3 for one in some],
                [one.master and one.master.evicted_keys for one in some],
            )
            rows.append([kind, *map(_median, columns)])
    heads = ("prompt", "keys saved", "keys loaded", "MB loaded", "load ms (vLLM's)", "keys evicted")
    return make_grid("Mooncake, per request (median)", heads, rows)


def layers_remarks(report: TierReport) -> str:
    """Return what the table proves and what it does not, one line each."""
    same, whole = report.count_identical()
    lines = [f"Greedy answers the same tokens in all four: {same} of {whole} repetitions."]
    wrong = [kind for kind in KINDS if report.count_expected(kind) < len(report.of_kind(kind))]
    lines += [f"{kind}: not as expected; by vLLM's counters the KV was {_sources(report, kind)}." for kind in wrong]
    if not wrong and report.measurements:
        lines.append("vLLM's counters: every prompt's KV came from the source that its row names.")
    lines += _failed_loads(one.engine for one in report.measurements)
    if report.unsaved:
        lines.append(f"After {report.unsaved} requests the Mooncake master did not report the saved blocks in time.")
    return "\n".join([*lines, INTERRUPTED] if report.interrupted else lines)


def _failed_loads(engines: Iterable[EngineCounts]) -> list[str]:
    failed = sum(counts.failed_keys or 0.0 for counts in engines)
    return [f"{failed:.0f} keys could not be loaded: computed, though counted as pool."] if failed else []


def _sources(report: TierReport, kind: Kind) -> str:
    sources = [one.source for one in report.of_kind(kind)]
    return ", ".join(f"{sources.count(source)} {source}" for source in dict.fromkeys(sources))


def _tokens(one: TierMeasurement) -> tuple[float | None, float | None, float | None]:
    return one.engine.local_tokens, one.engine.pool_tokens, one.engine.computed_tokens


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.0f}" if known else MISSING


def agents_table(report: AgentsReport) -> Grid:
    """Return a row per arm; in brackets each figure as a multiple of the first arm's."""
    rows: list[list[str | GridEntry]] = []
    base = summarize_arm(report.outcomes[0]) if report.outcomes else None
    for outcome in report.outcomes:
        own = summarize_arm(outcome)
        assert base is not None
        rows.append(
            [
                outcome.arm.name if outcome.complete else GridEntry(f"{outcome.arm.name} (partial)", colour="red"),
                *((f"{100 * part:.1f}" for part in own.shares) if own.shares else [MISSING] * 3),
                _against(own.ttft_p50_ms, base.ttft_p50_ms, 0),
                _against(own.ttft_p90_ms, base.ttft_p90_ms, 0),
                _against(own.requests_per_s, base.requests_per_s, 2),
                _against(own.prompt_tokens_per_s, base.prompt_tokens_per_s, 0),
            ]
        )
    title = f"{len(report.workload.sessions)} agents, {report.workload.turns} turns ({report.versions})"
    heads = ("local %", "pool %", "computed %", "TTFT p50 ms", "p90 ms", "requests/s", "prompt tokens/s")
    return make_grid(title, ("arm", *heads), rows)


def _against(own: float | None, base: float | None, digits: int) -> str:
    if own is None:
        return MISSING
    return f"{own:.{digits}f}" + (f" ({own / base:.2f}x)" if base else "")


def agents_remarks(report: AgentsReport) -> str:
    """Return what the workload is and what failed, one line each."""
    real = compute_statistics(report.workload, report.block_tokens)
    lines = [
        f"Prompts of {real.mean_first_tokens:.0f} growing to {real.median_last_tokens:.0f} tokens, "
        f"{real.input_per_output:.0f} in per token out; an infinite shared cache would give {real.ideal_share:.1%}. "
        "(x): against the first arm."
    ]
    for outcome in report.outcomes:
        notes = [*outcome.notes, *_failed_loads([outcome.engines] if outcome.engines else [])]
        for failure in dict.fromkeys(outcome.failures):
            count = outcome.failures.count(failure)
            notes.append(f"{count} failed: {failure.status or 'no answer'}: {failure.reason}")
        lines += [f"{outcome.arm.name}: {note}" for note in notes]
    return "\n".join([*lines, INTERRUPTED] if report.interrupted else lines)


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

    _draw_sources(hits, names, summaries, compute_statistics(report.workload, report.block_tokens).ideal_share)
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


def _draw_sources(axes: Axes, names: list[str], summaries: list[ArmSummary], ideal: float) -> None:
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
