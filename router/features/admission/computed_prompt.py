"""What a request left in the cache of its engine. Workers and routers send it to each other."""

from __future__ import annotations

from typing import NamedTuple


class ComputedPrompt(NamedTuple):
    """Says what a request left in the cache of the engine that has at least begun to answer it."""

    prompt_tokens: int
    context_tokens: int  # prompt and answer
    local_tokens: int | None  # prompt tokens from the instance's own cache; None: unknown
    decode_s: float | None  # from the first token to the last; None: the answer has not ended
    cached_tokens: int | None = None  # prompt tokens from any cache or pool; None: unknown
