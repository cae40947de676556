"""What a benchmark's report comes to: the figures that are compared, and all of it as JSON for other programs."""

from __future__ import annotations

from typing import Any, NamedTuple

from router.testbed.bench.agents import AgentsReport, ArmOutcome
from router.testbed.bench.cache_tiers import EXPECTED, TierReport
from router.testbed.loadgen.client import ClientAnswer, ClientFailure
from router.testbed.simulator.outcome import quantile
from router.testbed.workloads.statistics import compute_statistics


class TokenShares(NamedTuple):
    """Parts of the prompt tokens, by where their KV came from; they add up to 1."""

    local: float
    pool: float
    computed: float


class ArmSummary(NamedTuple):
    """What an arm comes to. Milliseconds; per second of the arm's whole time. None: nothing was counted."""

    turns: int
    failed: int
    shares: TokenShares | None
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    requests_per_s: float
    prompt_tokens_per_s: float
    took_s: float


def summarize_arm(outcome: ArmOutcome) -> ArmSummary:
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
    counted = outcome.engines
    if counted is None or not counted.prompt_tokens or counted.local_tokens is None:
        return None
    local, pool = counted.local_tokens / counted.prompt_tokens, (counted.pool_tokens or 0.0) / counted.prompt_tokens
    return TokenShares(local, pool, 1 - local - pool)


def layers_json(seen: TierReport, when: str) -> dict[str, Any]:
    same, whole = seen.count_identical()
    return {
        "when": when,
        "versions": seen.versions,
        "prompt_tokens": seen.tokens,
        "block_tokens": seen.block_tokens,
        "seed": seen.seed,
        "interrupted": seen.interrupted,
        "identical": {"same": same, "of": whole},
        "unsaved": seen.unsaved,
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
            for one in seen.measurements
        ],
    }


def agents_json(report: AgentsReport, when: str) -> dict[str, Any]:
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
                **_figures_json(summarize_arm(outcome)),
                "engines": outcome.engines and outcome.engines._asdict(),
                "requests": [one._asdict() | {"answer": _answer_json(one.answer)} for one in outcome.turns],
            }
            for outcome in report.outcomes
        ],
    }


def _figures_json(mine: ArmSummary) -> dict[str, Any]:
    return mine._asdict() | {"shares": mine.shares and mine.shares._asdict()}


def _answer_json(answer: ClientAnswer | ClientFailure) -> dict[str, Any]:
    told: dict[str, Any] = answer._asdict()
    told.pop("token_ids", None)
    return told
