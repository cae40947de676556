"""Request bodies with token ids: vLLM 0.32 accepts a chat's ids beside its text and skips rendering and tokenising.

The ids are in `kv_transfer_params.prompt_token_ids`, of chat completions only. The engine removes them before
anything else sees the parameters, checks each against its vocabulary, and builds the request from them instead of
from the messages (renderers/online_renderer.py: `_reused_prompt_token_ids`, `preprocess_chat`). Everything about
the answer (tools, reasoning, structured output, salt, sampling) is read from the request as usual. Three things are
not done for requests with ids, so requests that need them are sent without ids:

    truncation, and the length check          `truncate_prompt_tokens`; prompts that fill the context
    echo, prompt logprobs, media              need the rendered messages; the router has no ids for them
    `return_prompt_text`                      answers null: no text was rendered (chat_completion/serving.py)

Pure. On 0.32 an engine that refuses ids answers 400 with this parameter's name in `error.param`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PARAMETER = b"prompt_token_ids"

JsonIds = Sequence[bytes]
"""Token ids as JSON numbers separated by commas, in runs of one or more."""


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _CountedAnswer(msgspec.Struct):
    usage: _Usage


_COUNTED_ANSWER = msgspec.json.Decoder(_CountedAnswer)


def add_ids(body: bytes, ids: JsonIds) -> bytes:
    """Return `body`, an object with at least one member and no `kv_transfer_params`, with these ids appended."""
    return _insert(body, body.rindex(b"}"), b'"kv_transfer_params":{"prompt_token_ids":[', ids, b"]}}")


def add_ids_to_params(body: bytes, ids: JsonIds) -> bytes:
    """Return one half of a pair (disaggregation.py) with the ids added last in its `kv_transfer_params`."""
    return _insert(body, body.rindex(b"}", 0, body.rindex(b"}")), b'"prompt_token_ids":[', ids, b"]}}")


def _insert(body: bytes, end: int, opening: bytes, ids: JsonIds, closing: bytes) -> bytes:
    """Insert the ids with one copy of everything, because both may be large: a comma separates ids and members."""
    if len(ids) == 1:
        return b",".join((memoryview(body)[:end], opening + ids[0] + closing))
    return b",".join((memoryview(body)[:end], opening + ids[0], *ids[1:-1], ids[-1] + closing))


def refuses_ids(answer: bytes) -> bool:
    """Return whether the body of a 400 names the ids' parameter."""
    return PARAMETER in answer


def trial_body(model: str, text: str, ids: Sequence[int]) -> bytes:
    """Return a chat whose text and ids are different prompts, with a one-token answer: its count shows which one
    was used.

    The prompt is too short to fill a block in the engine's cache.
    """
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "temperature": 0,
            "kv_transfer_params": {"prompt_token_ids": list(ids)},
        }
    )


def read_count(answer: bytes) -> int | None:
    """Return `usage.prompt_tokens` of a whole answer; None if it is missing."""
    try:
        return _COUNTED_ANSWER.decode(answer).usage.prompt_tokens
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
