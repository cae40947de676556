"""The usage of an answer that several engines sent, computed from the counts of the last engine. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from router.prompt.usage import NO_USAGE, Usage, read_openai_usage


def join_usage_by_ids(part: Usage, prompt_tokens: int, joined: int) -> Usage:
    """Return the usage of an answer of which `joined` tokens were sent before the last engine's `part`. That engine
    counted these tokens as prompt.
    """
    output = None if part.output_tokens is None else part.output_tokens + joined
    return Usage(prompt_tokens, _least(part.cached_tokens, prompt_tokens), output)


def join_usage_by_text(part: Usage, prompt_tokens: int | None) -> Usage:
    """Return the usage of an answer whose first part the last engine received as text, counting the tokens that
    this engine made of the text. `NO_USAGE` if a count is missing, for example that of the prompt alone.
    """
    if prompt_tokens is None or part.prompt_tokens is None or part.output_tokens is None:
        return NO_USAGE
    output = part.prompt_tokens + part.output_tokens - prompt_tokens
    return Usage(prompt_tokens, _least(part.cached_tokens, prompt_tokens), max(part.output_tokens, output))


def replace_usage(event: bytes, join: Callable[[Usage], Usage | None]) -> bytes:
    """Return the last part's usage chunk with the usage of the whole answer in it; empty if that is unknown."""
    chunk: dict[str, Any] = msgspec.json.decode(event[len(b"data: ") :])
    usage = chunk["usage"]
    whole = join(read_openai_usage(usage))
    if whole is None or whole.prompt_tokens is None or whole.output_tokens is None:
        return b""
    usage["prompt_tokens"], usage["completion_tokens"] = whole.prompt_tokens, whole.output_tokens
    usage["total_tokens"] = whole.prompt_tokens + whole.output_tokens
    usage.pop("completion_tokens_details", None)  # of the last part alone
    if whole.cached_tokens is not None:
        usage["prompt_tokens_details"]["cached_tokens"] = whole.cached_tokens
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


def _least(cached: int | None, prompt_tokens: int) -> int | None:
    return None if cached is None else min(cached, prompt_tokens)
