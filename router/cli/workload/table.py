"""What a workload has, as rows: for the terminal beside what was published of it, and as JSON for other programs."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from router.testbed.workloads import PUBLISHED, Workload
from router.testbed.workloads.reuse import BlockReuse, count_reuse
from router.testbed.workloads.statistics import WorkloadStatistics, compute_statistics

REUSE_TOKENS = 512
"""Blocks are counted in this size, as traces name them: smaller ones say the same, and take minutes."""
UNTOLD = ""


def statistics_of(workload: Workload, block_tokens: int) -> tuple[WorkloadStatistics, BlockReuse | None]:
    return compute_statistics(workload, block_tokens), count_reuse(workload, REUSE_TOKENS)


def title(given: str, workload: Workload, block_tokens: int) -> str:
    kind = "closed loop" if workload.is_closed else "open loop"
    return f"{given}: {kind}, ideal hits in whole blocks of {block_tokens} tokens"


def counted_table(given: str, workload: Workload, real: WorkloadStatistics, blocks: BlockReuse | None) -> Table:
    published = PUBLISHED.get(given, {})
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("counted", justify="right", no_wrap=True)
    if published:
        table.add_column("published", justify="right", no_wrap=True)
    for name, value in [*lengths(workload, real), *hits(real, blocks)]:
        table.add_row(name, value, *([published.get(name, UNTOLD)] if published else []))
    return table


def lengths(workload: Workload, real: WorkloadStatistics) -> list[tuple[str, str]]:
    """By the names that `PUBLISHED` has."""
    if workload.is_closed:
        rows = [
            ("sessions", f"{real.sessions:,}"),
            ("requests", f"{real.turns:,}"),
            ("turns, median", f"{real.median_turns:g}"),
            ("think time, median", f"{real.median_think_s:.1f} s"),
            ("first prompt, mean", f"{real.mean_first_tokens:,.0f}"),
            ("growth per turn, mean", f"{real.mean_growth_tokens:,.0f}"),
            ("last prompt, median", f"{real.median_last_tokens:,.0f}"),
        ]
    else:
        rate = "all at once" if real.per_s is None else f"{real.per_s:.2f} /s"
        rows = [("requests", f"{real.turns:,}"), ("rate", rate)]
    return [
        *rows,
        ("longest prompt", f"{real.longest_tokens:,}"),
        ("input, mean", f"{real.mean_input_tokens:,.0f}"),
        ("input, median", f"{real.median_input_tokens:,.0f}"),
        ("input, p90", f"{real.p90_input_tokens:,.0f}"),
        ("output, mean", f"{real.mean_output_tokens:,.0f}"),
        ("output, median", f"{real.median_output_tokens:,.0f}"),
        ("output, p90", f"{real.p90_output_tokens:,.0f}"),
        ("input per output", f"{real.input_per_output:.1f}"),
    ]


def hits(real: WorkloadStatistics, blocks: BlockReuse | None) -> list[tuple[str, str]]:
    rows = [("ideal hits", _percent(real.ideal_share)), ("shared by sessions", _percent(real.shared_share))]
    if blocks is not None:
        rows += [
            ("blocks of 512, different", f"{blocks.blocks:,}"),
            ("prompts per block, mean", f"{blocks.mean_uses:.1f}"),
            ("prompts per block, most", f"{blocks.most_uses:,}"),
            ("blocks in more than one", _percent(blocks.again_share)),
        ]
    return rows


def as_json(
    given: str, seed: int, block_tokens: int, real: WorkloadStatistics, blocks: BlockReuse | None
) -> dict[str, Any]:
    return {
        "workload": given,
        "seed": seed,
        "block_tokens": block_tokens,
        **real._asdict(),
        "input_per_output": real.input_per_output,
        "blocks": None if blocks is None else blocks._asdict(),
        "published": dict(PUBLISHED.get(given, {})),
    }


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
