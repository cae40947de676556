"""Statistics of a workload as rows: for the terminal beside the published ones, and as JSON for other programs."""

from __future__ import annotations

from typing import Any

from router.cli.terminal.output import Grid, make_grid
from router.lab.workloads.model import Workload
from router.lab.workloads.presets import PUBLISHED
from router.lab.workloads.statistics import BlockReuse, WorkloadStatistics, compute_statistics, count_reuse

REUSE_TOKENS = 512
"""Block size for counting reuse, as in traces: smaller blocks give the same picture, and take minutes."""


def statistics_of(workload: Workload, block_tokens: int) -> tuple[WorkloadStatistics, BlockReuse | None]:
    """Return the workload's statistics and its block reuse, which is None when no prompt fills a block."""
    return compute_statistics(workload, block_tokens), count_reuse(workload, REUSE_TOKENS)


def title(name: str, workload: Workload, block_tokens: int) -> str:
    kind = "closed loop" if workload.is_closed else "open loop"
    return f"{name}: {kind}, ideal hits in whole blocks of {block_tokens} tokens"


def make_table(name: str, workload: Workload, real: WorkloadStatistics, blocks: BlockReuse | None) -> Grid:
    """Return a row per statistic, with the published value beside it if preset `name` has published values."""
    published = PUBLISHED.get(name, {})
    rows = [*lengths(workload, real), *hits(real, blocks)]
    if not published:
        return make_grid("", ("", "counted"), rows)
    return make_grid("", ("", "counted", "published"), ((row, value, published.get(row, "")) for row, value in rows))


def lengths(workload: Workload, real: WorkloadStatistics) -> list[tuple[str, str]]:
    """Return names, as in `PUBLISHED`, and values of the rows about sizes and rates."""
    if workload.is_closed:
        rows = [
            ("sessions", f"{real.sessions:,}"),
            *([("sub-agents per session, mean", f"{real.sub_agents / real.sessions:.1f}")] if real.sub_agents else []),
            ("requests", f"{real.turns:,}"),
            ("turns, median", f"{real.median_turns:g}"),
            ("think time, median", f"{real.median_think_s:.1f} s"),
            ("pauses under 1 s", _percent_or_none(real.under_1_s)),
            ("pauses under 10 s", _percent_or_none(real.under_10_s)),
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
    """Return names, as in `PUBLISHED`, and values of the rows about shared prefixes."""
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
    name: str, seed: int, block_tokens: int, real: WorkloadStatistics, blocks: BlockReuse | None
) -> dict[str, Any]:
    return {
        "workload": name,
        "seed": seed,
        "block_tokens": block_tokens,
        **real._asdict(),
        "input_per_output": real.input_per_output,
        "blocks": None if blocks is None else blocks._asdict(),
        "published": dict(PUBLISHED.get(name, {})),
    }


def _percent_or_none(share: float | None) -> str:
    return "none" if share is None else _percent(share)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
