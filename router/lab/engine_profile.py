"""Speed and size of one instance, a model on its GPUs, as the few numbers that determine its steps.

    step = step_ms + max( compute:  new tokens, attention over their context, one token for each request that decodes
                          memory:   the weights once, and the KV of every context in the batch )

The files in `configs/profiles/` give the source of each number; `router/lab/sweep/options.py` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Profile of one instance, with all of its GPUs."""

    name: str
    kv_tokens: int  # capacity of its KV cache
    kv_bytes_per_token: float  # over all layers and all GPUs of the instance
    us_per_token: float  # compute of one prompt token, without attention
    ns_per_pair: float  # compute of one (new token, token before it) pair of attention
    us_per_decode: float  # compute of one answer token
    weights_ms: float  # memory time of reading the weights once per step
    ns_per_context_token: float  # memory time of one context token's KV
    tail_tokens: int | None = None  # hybrid model: memory of a tail of its windows and states, as so many tokens' KV
    step_ms: float = 0.0  # launches, scheduling, sampling: fixed time per step
    batched_tokens: int = 8192  # a step's budget (vLLM: max_num_batched_tokens)
    max_seqs: int = 256  # maximum of running requests (vLLM: max_num_seqs)

    def step_s(self, new: int, pairs: float, decodes: int, context: float) -> float:
        """Return the seconds of one step.

        It computes `new` prompt tokens with `pairs` of attention and a token for each of `decodes` requests, and
        reads the KV of `context` tokens.
        """
        compute = self.us_per_token * new + self.ns_per_pair * pairs / 1e3 + self.us_per_decode * decodes
        memory = self.weights_ms * 1e3 + self.ns_per_context_token * context / 1e3
        return self.step_ms / 1e3 + max(compute, memory) / 1e6

    def prefill_s(self, new: int, context: int) -> float:
        """Return the seconds to compute `new` tokens after `context` cached ones in an idle instance, in chunks."""
        seconds, done = 0.0, 0
        while done < new:
            chunk = min(self.batched_tokens, new - done)
            seconds += self.step_s(chunk, chunk * (context + done + chunk / 2), 0, context + done + chunk)
            done += chunk
        return seconds
