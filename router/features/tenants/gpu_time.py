"""Estimates of a request's GPU time. Engines do not report it, and requests share engines.

The prompt's part is the engine's learned prefill time for the computed tokens. The answer's part is the time of its
decode steps, shared evenly by the requests of the batch; it follows from the learned step time if there is one,
else from the duration of the answer. Both are times of one target, which is one rank of an engine: if a rank runs
on several GPUs (tensor parallelism), each of them was busy for as long.
"""

from __future__ import annotations

from router.features.tenants.token_counts import TokenCounts
from router.scheduling.policy.record import Attempt, Record
from scorers.contract import Row


def estimate_gpu_s(record: Record, tokens: TokenCounts) -> float:
    """Return the seconds of one target's time used by a request that ended with `tokens`; 0 if no engine computed
    any of it.
    """
    if not record.attempts or not tokens.computed:
        return 0.0
    attempt = record.attempts[-1]
    row = attempt.decision.row
    prefill_ms, batch = _estimate_prefill_ms(attempt, tokens), _count_batch(row)
    if (decode := row.speed.decode) is not None:
        answer_ms = tokens.output_tokens * decode.step_ms(batch, _count_context(row, tokens))
    elif attempt.duration_ms is None or not tokens.output_tokens:
        answer_ms = 0.0
    else:
        answer_ms = max(0.0, attempt.duration_ms - prefill_ms)
    return (prefill_ms + answer_ms / batch) / 1e3


def estimate_answer_tokens(attempt: Attempt, prompt: TokenCounts) -> int | None:
    """Return how many tokens were made, when the attempt ended, of an answer of which nothing passed here; None if
    the target's step time is not learned yet.
    """
    row = attempt.decision.row
    if row.speed.decode is None or attempt.duration_ms is None:
        return None
    step_ms = row.speed.decode.step_ms(_count_batch(row), _count_context(row, prompt))
    answer_ms = attempt.duration_ms - _estimate_prefill_ms(attempt, prompt)
    return None if step_ms <= 0 else max(0, int(answer_ms / step_ms))


def _estimate_prefill_ms(attempt: Attempt, tokens: TokenCounts) -> float:
    prefilled = attempt.decision.row if attempt.prefill is None else attempt.prefill.decision.row
    return prefilled.speed.prefill_ms(tokens.input_tokens, tokens.cached_tokens) if tokens.input_tokens else 0.0


def _count_batch(row: Row) -> int:
    """Return the number of requests in the target's batch when the target was chosen, including this one."""
    return row.load.requests + 1 + (row.load.elsewhere or 0)


def _count_context(row: Row, tokens: TokenCounts) -> int:
    return row.load.context_tokens + tokens.input_tokens + tokens.cached_tokens
