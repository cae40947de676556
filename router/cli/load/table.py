"""A load's report for the terminal: one table, and below it what is wrong with it, if anything is."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from router.testbed.loadgen.report import (
    UNKNOWN_TARGET,
    LoadReport,
    compute_hit_share,
    group_by_target,
    summarize_client,
    summarize_load,
)

MISSING = "-"
LATE_S = 0.1  # at the 99th percentile: from here on the client's own delay is no longer small beside a TTFT
REASONS = 5


def loaded_table(loaded: LoadReport) -> Table:
    table = Table(title=f"{loaded.workload.name} at {loaded.url}, {loaded.loop}", box=box.SIMPLE, show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for what, value in _rows(loaded):
        table.add_row(what, value)
    return table


def _rows(loaded: LoadReport) -> Iterator[tuple[str, str]]:
    got, client, answered = summarize_load(loaded), summarize_client(loaded), loaded.answers
    yield "requests answered / shed / failed", f"{got.requests:,} / {got.shed:,} / {got.failed:,}"
    ttft = (got.ttft_mean_s, got.ttft_p50_s, got.ttft_p90_s, got.ttft_p99_s)
    yield "TTFT mean / p50 / p90 / p99, ms", " / ".join(map(_ms, ttft))
    yield "TPOT mean / p90, ms", f"{_ms(got.tpot_mean_s, 1)} / {_ms(got.tpot_p90_s, 1)}"
    yield "requests per second", f"{got.requests_per_s:,.1f}"
    yield "tokens per second in / out", f"{got.input_tokens_per_s:,.0f} / {got.output_tokens_per_s:,.0f}"
    yield "prompt tokens from a cache", _percent(compute_hit_share(answered))
    targets = group_by_target(loaded)
    for target, at in targets.items() if set(targets) != {UNKNOWN_TARGET} else ():
        value = f"{at.requests:,}, {_percent(at.hit_share)}, {_ms(at.ttft_p50_s)}"
        yield f"at {target}: requests, from cache, TTFT p50 ms", value
    sizes = (client.prompt_tokens_share, client.output_tokens_share)
    yield "real / asked tokens, prompts and answers", " and ".join(map(_percent, sizes))
    late = (client.late_p50_s, client.late_p99_s, client.late_max_s)
    yield "sent late by the client itself p50 / p99 / max, ms", " / ".join(_ms(some, 1) for some in late)


def loaded_remarks(loaded: LoadReport) -> list[str]:
    """One line each; none: all went well."""
    failures = loaded.failures
    lines = [f"failed {times}x: {reason[:160]}" for reason, times in failures.most_common(REASONS)]
    if len(failures) > REASONS:
        lines.append(f"and {len(failures) - REASONS} other reasons (--json has all)")
    late_s = summarize_client(loaded).late_p99_s
    if late_s is not None and late_s > LATE_S:
        lines.append("the client itself was late: more processes (--processes), or less load, for figures to trust")
    lines += loaded.process_failures
    if loaded.interrupted:
        lines.append("interrupted: this is what was done by then")
    return lines


def _ms(seconds: float | None, digits: int = 0) -> str:
    return MISSING if seconds is None else f"{seconds * 1e3:,.{digits}f}"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.1%}"
