"""Charges of a request: the tokens that an engine computes for it.

    estimate   prompt - what an engine holds of it, or else - its session's last context
    charge     prompt - what the engine found cached + `OUTPUT_TOKENS` x output tokens

So good cache habits count: a hit is free, and a tenant whose prompts hit gets more of them through.

Decode time is counted as in VTC (Sheng et al., OSDI 2024; AIBrix has the same figures). Tried and worse: pricing an
answer by the learned time of a decode step. Beside the prompts of a saturated engine a step takes up to half a
second, whoever's they are, so tenants paid for the prompts of others: 30 to 190 tokens for one of an answer, where
the engine's own work for it was 1 to 25.
"""

from __future__ import annotations

from router.features.admission.verdicts import ComputedPrompt
from scorers.admission.contract import Admission

OUTPUT_TOKENS = 2.0  # what an output token counts


def estimate_computed(admission: Admission) -> int:
    """Return the tokens that an engine will compute of the prompt, 1 at least."""
    held = admission.local_tokens
    if held is None:
        held = min(admission.context_before, admission.prompt_tokens) if admission.program.prompt_tokens else 0
    return max(1, admission.prompt_tokens - held)


def price_answer(computed: ComputedPrompt) -> float | None:
    """Return the charge of an answered request, in tokens; None: the engine did not report what it found
    cached.
    """
    if computed.cached_tokens is None:
        return None
    return price(computed.prompt_tokens - computed.cached_tokens, computed.context_tokens - computed.prompt_tokens)


def price(computed_tokens: int, output_tokens: int) -> float:
    """Return the price of so many tokens."""
    return max(0, computed_tokens) + OUTPUT_TOKENS * max(0, output_tokens)
