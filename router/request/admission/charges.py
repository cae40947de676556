"""What a request is charged: the tokens that an engine computes for it, and its decode time as such tokens.

    estimate   prompt - what an engine holds of it, or else - its session's last context
    charge     prompt - what the engine found cached + output tokens x (step of the batch / its requests) / (one prompt
               token)

The step and the time of a prompt token are the target's, as learned (`fleet/latency_model.py`). So good cache habits
count: a hit is free, and a tenant whose prompts hit gets more of them through. The decode part is in no estimate:
nobody knows how long an answer will be.
"""

from __future__ import annotations

from router.fleet.instance import Target
from scorers.admission.contract import Admission
from scorers.contract import Speed


def estimate_computed(admission: Admission) -> int:
    """Return the tokens that an engine will compute of the prompt, 1 at least."""
    held = admission.local_tokens
    if held is None:
        held = min(admission.context_before, admission.prompt_tokens) if admission.program.prompt_tokens else 0
    return max(1, admission.prompt_tokens - held)


def price_decode(target: Target, output_tokens: int, now: float) -> float:
    """Return what an answer costs in prompt tokens: its share of each step of the batch that it is in."""
    speed: Speed = target.latency_model.speed(now)
    if speed.decode is None or speed.us_per_token <= 0 or output_tokens <= 0:
        return 0.0
    load_book = target.load_book
    requests = max(1, load_book.requests)
    step_ms = speed.decode.step_ms(requests, load_book.context_tokens)
    return output_tokens * max(0.0, step_ms) / requests * 1e3 / speed.us_per_token
