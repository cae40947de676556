"""Summaries of benchmark reports: the figures that are compared, and everything as JSON for other programs."""

from __future__ import annotations

from typing import Any, NamedTuple

from router.lab.loadgen.client import ClientAnswer, ClientFailure
from router.lab.simulator.outcome import quantile
from router.lab.workloads.statistics import compute_statistics
from tests.bench.real_stack.agents import AgentsReport, ArmOutcome
from tests.bench.real_stack.cache_tiers import EXPECTED, TierReport


class TokenShares(NamedTuple):
    """Shares of the prompt tokens by the source of their KV; they add up to 1."""

    local: float
    pool: float
    computed: float


class ArmSummary(NamedTuple):
    """Figures of one arm. Rates are over its whole time; `shares` is `None` without counters, times without answers."""

    turns: int
    failed: int
    shares: TokenShares | None
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    requests_per_s: float
    prompt_tokens_per_s: float
    took_s: float


def summarize_arm(outcome: ArmOutcome) -> ArmSummary:
    """Return the figures of an arm, complete or not."""
    answers = outcome.answers
    ttft = sorted(answer.ttft_ms for answer in answers)
    took_s = outcome.took_s or float("inf")
    return ArmSummary(
        turns=len(answers),
        failed=len(outcome.failures),
        shares=token_shares(outcome),
        ttft_p50_ms=quantile(ttft, 0.5),
        ttft_p90_ms=quantile(ttft, 0.9),
        requests_per_s=len(answers) / took_s,
        prompt_tokens_per_s=sum(answer.prompt_tokens for answer in answers) / took_s,
        took_s=outcome.took_s,
    )


def token_shares(outcome: ArmOutcome) -> TokenShares | None:
    """Return the shares by the engines' counters, `None` when they counted nothing."""
    counts = outcome.engines
    if counts is None or not counts.prompt_tokens or counts.local_tokens is None:
        return None
    local, pool = counts.local_tokens / counts.prompt_tokens, (counts.pool_tokens or 0.0) / counts.prompt_tokens
    return TokenShares(local, pool, 1 - local - pool)


def layers_json(report: TierReport, when: str) -> dict[str, Any]:
    """Return a report of `bench layers` as JSON values."""
    same, complete = report.count_identical()
    return {
        "when": when,
        "versions": report.versions,
        "prompt_tokens": report.tokens,
        "block_tokens": report.block_tokens,
        "seed": report.seed,
        "interrupted": report.interrupted,
        "identical": {"same": same, "of": complete},
        "unsaved": report.unsaved,
        "requests": [
            {
                "kind": one.kind,
                "repetition": one.repetition,
                "source": one.source,
                "expected": EXPECTED[one.kind],
                **one.answer._asdict(),
                "engine": one.engine._asdict() | {"computed_tokens": one.engine.computed_tokens},
                "master": one.master and one.master._asdict(),
            }
            for one in report.measurements
        ],
    }


def agents_json(report: AgentsReport, when: str) -> dict[str, Any]:
    """Return a report of `bench agents` as JSON values."""
    real = compute_statistics(report.workload, report.block_tokens)
    return {
        "when": when,
        "versions": report.versions,
        "workload": {"name": report.workload.name, "seed": report.workload.seed, **real._asdict()},
        "interrupted": report.interrupted,
        "arms": [
            {
                **outcome.arm._asdict(),
                "whole": outcome.complete,
                "notes": outcome.notes,
                **_summary_json(summarize_arm(outcome)),
                "engines": outcome.engines and outcome.engines._asdict(),
                "requests": [one._asdict() | {"answer": _answer_json(one.answer)} for one in outcome.turns],
            }
            for outcome in report.outcomes
        ],
    }


def _summary_json(summary: ArmSummary) -> dict[str, Any]:
    return summary._asdict() | {"shares": summary.shares and summary.shares._asdict()}


def _answer_json(answer: ClientAnswer | ClientFailure) -> dict[str, Any]:
    values: dict[str, Any] = answer._asdict()
    values.pop("token_ids", None)
    return values
