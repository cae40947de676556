"""Charges of a request: the tokens that an engine computes for it.

    estimate   prompt - the prefix that an engine holds (if unknown: the session's last context)
    charge     prompt - the tokens that the engine found cached + `OUTPUT_TOKENS` x output tokens

So a prefix hit is free, and a tenant whose prompts hit gets more of them through.

Decode time is counted as in VTC (Sheng et al., OSDI 2024; AIBrix has the same figures). Pricing an answer by the
learned time of a decode step was tried and worked worse: beside the prefills of a saturated engine a step takes up
to half a second, whichever tenant's prompts they are, so tenants paid for the prompts of others. An output token
cost 30 to 190 tokens, where the engine's own work for it was 1 to 25.
"""

from __future__ import annotations

from router.features.admission.verdicts import ComputedPrompt
from scorers.admission.contract import Admission

OUTPUT_TOKENS = 2.0  # price of an output token, in computed prompt tokens


def estimate_computed(admission: Admission) -> int:
    """Return how many tokens of the prompt an engine will compute, at least 1."""
    held = admission.local_tokens
    if held is None:
        held = min(admission.context_before, admission.prompt_tokens) if admission.program.prompt_tokens else 0
    return max(1, admission.prompt_tokens - held)


def price_answer(computed: ComputedPrompt) -> float | None:
    """Return the charge of an answered request, in tokens; None if the engine did not report its cached tokens."""
    if computed.cached_tokens is None:
        return None
    return price(computed.prompt_tokens - computed.cached_tokens, computed.context_tokens - computed.prompt_tokens)


def price(computed_tokens: int, output_tokens: int) -> float:
    """Return the price of so many computed and output tokens."""
    return max(0, computed_tokens) + OUTPUT_TOKENS * max(0, output_tokens)
