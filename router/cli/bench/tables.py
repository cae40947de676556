"""Reports as tables for the terminal, and what they prove or went wrong as lines below them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rich import box
from rich.table import Table

from router.testbed.bench.agents import AgentsReport
from router.testbed.bench.cache_tiers import ENGINE_LABELS, EXPECTED, KINDS, Kind, TierMeasurement, TierReport
from router.testbed.bench.engine_counters import EngineCounts
from router.testbed.bench.summary import summarize_arm
from router.testbed.workloads.statistics import compute_statistics

MISSING = "-"


def layers_table(seen: TierReport) -> Table:
    title = f"TTFT of one {seen.tokens}-token prompt by where its KV comes from ({seen.versions})"
    table = Table(title=title, box=box.SIMPLE)
    for name in ("prompt", "engine"):
        table.add_column(name, no_wrap=True)
    for name in ("TTFT ms median (min-max)", "cold / this", "local", "pool", "computed", "KV as expected"):
        table.add_column(name, justify="right")
    cold = _median_ttft(seen.of_kind("cold"))
    for kind in KINDS:
        some = seen.of_kind(kind)
        if not some:
            continue
        times = [one.answer.ttft_ms for one in some]
        middle = median(times)
        tokens = (_usual(value) for value in zip(*(_tokens(one) for one in some), strict=True))
        right = seen.count_expected(kind)
        said = f"{right}/{len(some)} {EXPECTED[kind]}"
        table.add_row(
            kind,
            ENGINE_LABELS[kind],
            f"{middle:.0f} ({min(times):.0f}-{max(times):.0f})",
            MISSING if cold is None else f"{cold / middle:.2f}x",
            *tokens,
            said if right == len(some) else f"[red]{said}[/]",
        )
    return table


def store_table(seen: TierReport) -> Table | None:
    """What Mooncake and vLLM's connector counted, per request; None without a pool."""
    if not any(one.master for one in seen.measurements):
        return None
    table = Table(title="Mooncake, per request (median)", box=box.SIMPLE)
    table.add_column("prompt", no_wrap=True)
    names = ("keys saved", "keys loaded", "MB loaded", "load ms (vLLM's)", "keys evicted")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for kind in KINDS:
        if not (some := seen.of_kind(kind)):
            continue
        columns = (
            [one.master and one.master.stored_keys for one in some],
            [one.master and one.master.loaded_keys for one in some],
            [one.engine.loaded_bytes and one.engine.loaded_bytes / 1e6 for one in some],
            [one.engine.load_s and one.engine.load_s * 1e3 for one in some],
            [one.master and one.master.evicted_keys for one in some],
        )
        table.add_row(kind, *(_usual(column) for column in columns))
    return table


def layers_remarks(seen: TierReport) -> str:
    """What the table proves, and what it does not."""
    same, whole = seen.count_identical()
    lines = [f"Greedy answers the same tokens in all four: {same} of {whole} repetitions."]
    wrong = [kind for kind in KINDS if seen.count_expected(kind) < len(seen.of_kind(kind))]
    lines += [f"{kind}: not as expected; by vLLM's counters the KV was {_origins(seen, kind)}." for kind in wrong]
    if not wrong and seen.measurements:
        lines.append("vLLM's counters: every prompt's KV came from where its row says.")
    lines += _failed_loads(one.engine for one in seen.measurements)
    if seen.unsaved:
        lines.append(f"After {seen.unsaved} requests the master did not show the saved blocks in time.")
    if seen.interrupted:
        lines.append("Interrupted: this is what was done by then.")
    return "\n".join(lines)


def _failed_loads(engines: Iterable[EngineCounts]) -> list[str]:
    failed = sum(counts.failed_keys or 0.0 for counts in engines)
    return [f"{failed:.0f} keys could not be loaded after all: computed, though counted as pool."] if failed else []


def _origins(seen: TierReport, kind: Kind) -> str:
    sources = [one.source for one in seen.of_kind(kind)]
    return ", ".join(f"{sources.count(source)} {source}" for source in dict.fromkeys(sources))


def _tokens(one: TierMeasurement) -> tuple[float | None, float | None, float | None]:
    return one.engine.local_tokens, one.engine.pool_tokens, one.engine.computed_tokens


def _usual(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.0f}" if known else MISSING


def _median_ttft(some: Sequence[TierMeasurement]) -> float | None:
    return median(one.answer.ttft_ms for one in some) if some else None


def agents_table(report: AgentsReport) -> Table:
    title = f"{len(report.workload.sessions)} agents, {report.workload.turns} turns ({report.versions})"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("arm", no_wrap=True)
    for name in ("local %", "pool %", "computed %", "TTFT p50 ms", "p90 ms", "requests/s", "prompt tokens/s"):
        table.add_column(name, justify="right")
    base = summarize_arm(report.outcomes[0]) if report.outcomes else None
    for outcome in report.outcomes:
        mine = summarize_arm(outcome)
        assert base is not None
        parts = (f"{100 * part:.1f}" for part in mine.shares) if mine.shares else [MISSING] * 3
        table.add_row(
            outcome.arm.name if outcome.complete else f"{outcome.arm.name} [red](partial)[/]",
            *parts,
            _against(mine.ttft_p50_ms, base.ttft_p50_ms, 0),
            _against(mine.ttft_p90_ms, base.ttft_p90_ms, 0),
            _against(mine.requests_per_s, base.requests_per_s, 2),
            _against(mine.prompt_tokens_per_s, base.prompt_tokens_per_s, 0),
        )
    return table


def _against(mine: float | None, base: float | None, digits: int) -> str:
    if mine is None:
        return MISSING
    return f"{mine:.{digits}f}" + (f" ({mine / base:.2f}x)" if base else "")


def agents_remarks(report: AgentsReport) -> str:
    """What the workload is and what went wrong."""
    real = compute_statistics(report.workload, report.block_tokens)
    lines = [
        f"Prompts of {real.mean_first_tokens:.0f} growing to {real.median_last_tokens:.0f} tokens, "
        f"{real.input_per_output:.0f} in per token out; an infinite shared cache would give {real.ideal_share:.1%}. "
        "(x): against the first arm."
    ]
    for outcome in report.outcomes:
        lines += [f"{outcome.arm.name}: {note}" for note in outcome.notes]
        lines += [f"{outcome.arm.name}: {line}" for line in _failed_loads([outcome.engines] if outcome.engines else [])]
        for failure in dict.fromkeys(outcome.failures):
            many = outcome.failures.count(failure)
            lines.append(f"{outcome.arm.name}: {many} failed: {failure.status or 'no answer'}: {failure.reason}")
    if report.interrupted:
        lines.append("Interrupted: this is what was done by then.")
    return "\n".join(lines)
