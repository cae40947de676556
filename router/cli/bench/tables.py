"""Benchmark reports as tables for the terminal, with conclusions and failures as lines below them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from router.cli.terminal.output import MISSING, Grid, GridEntry, make_grid
from router.testbed.bench.agents import AgentsReport
from router.testbed.bench.cache_tiers import ENGINE_LABELS, EXPECTED, KINDS, Kind, TierMeasurement, TierReport
from router.testbed.bench.engine_counters import EngineCounts
from router.testbed.bench.summary import summarize_arm
from router.testbed.workloads.statistics import compute_statistics

INTERRUPTED = "Interrupted: the report holds what was done before."


def layers_table(report: TierReport) -> Grid:
    """Return a row per kind of prompt: its time to first token, and the sources of its KV by vLLM's counters."""
    rows: list[list[str | GridEntry]] = []
    cold = _median_ttft(report.of_kind("cold"))
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


def _median_ttft(some: Sequence[TierMeasurement]) -> float | None:
    return median(one.answer.ttft_ms for one in some) if some else None


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
