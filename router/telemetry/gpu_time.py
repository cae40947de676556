"""The GPU time of a request, estimated: engines do not report it, and requests share them.

The prompt's part is what the engine's learned prefill curve says for the tokens that were computed. The answer's part
is its steps, each shared evenly by the requests of the batch: by the learned step time where there is one, else by how
long the answer took. Both are of one target, which is one rank of an engine: where a rank runs on several GPUs (tensor
parallelism), each was busy for as long.
"""

from __future__ import annotations

from router.scheduling.policy.record import Record
from router.tenants.token_counts import TokenCounts


def estimate_gpu_s(record: Record, tokens: TokenCounts) -> float:
    """Return the seconds of one target's time that a request took which ended with `tokens`; 0 if no engine computed
    any of it.
    """
    if not record.attempts or not tokens.computed:
        return 0.0
    attempt = record.attempts[-1]
    row = attempt.decision.row
    prefilled = row if attempt.prefill is None else attempt.prefill.decision.row
    prefill_ms = 0.0
    if tokens.input_tokens:
        prefill_ms = prefilled.speed.prefill_ms(tokens.input_tokens, tokens.cached_tokens)
    batch = row.load.requests + 1 + (row.load.elsewhere or 0)  # when it was chosen
    if (decode := row.speed.decode) is not None:
        context = row.load.context_tokens + tokens.input_tokens + tokens.cached_tokens
        answer_ms = tokens.output_tokens * decode.step_ms(batch, context)
    elif attempt.duration_ms is None or not tokens.output_tokens:
        answer_ms = 0.0
    else:
        answer_ms = max(0.0, attempt.duration_ms - prefill_ms)
    return (prefill_ms + answer_ms / batch) / 1e3
