"""vLLM 0.32 takes a chat's token ids beside its text, and need not render and tokenise it: the bytes of that.

The ids travel in `kv_transfer_params.prompt_token_ids`, of chat completions alone. The engine takes them out before
anything else sees the parameters, checks each against its vocabulary, and builds the request from them instead of from
the messages (renderers/online_renderer.py: `_reused_prompt_token_ids`, `preprocess_chat`). All that is said of the
answer (tools, reasoning, structured output, salt, sampling) is read from the request as ever. Three things are not
done with given ids, so those requests must stay as they are:

    truncation, and the check of the length   `truncate_prompt_tokens`; prompts that fill the context
    echo, prompt logprobs, media              need the messages rendered; our own reading gives no ids for them
    `return_prompt_text`                      answers null: nobody rendered a text (chat_completion/serving.py)

Pure. Seen on 0.32: an engine that refuses ids answers 400 with this parameter's name in `error.param`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PARAMETER = b"prompt_token_ids"

Spelled = Sequence[bytes]
"""Token ids as JSON numbers with commas between them, in runs of one or more."""


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Counted(msgspec.Struct):
    usage: _Usage


_COUNTED = msgspec.json.Decoder(_Counted)


def add_ids(body: bytes, ids: Spelled) -> bytes:
    """`body`, an object with at least one member and no `kv_transfer_params`, with these ids behind all the rest."""
    return _joined(body, body.rindex(b"}"), b'"kv_transfer_params":{"prompt_token_ids":[', ids, b"]}}")


def add_ids_to_params(body: bytes, ids: Spelled) -> bytes:
    """The same for one half of a pair, as `disagg.py` makes them: its `kv_transfer_params` stand at the very end."""
    return _joined(body, body.rindex(b"}", 0, body.rindex(b"}")), b'"prompt_token_ids":[', ids, b"]}}")


def _joined(body: bytes, end: int, opening: bytes, ids: Spelled, closing: bytes) -> bytes:
    """One copy of everything, for both parts can be large: what separates ids separates members as well."""
    if len(ids) == 1:
        return b",".join((memoryview(body)[:end], opening + ids[0] + closing))
    return b",".join((memoryview(body)[:end], opening + ids[0], *ids[1:-1], ids[-1] + closing))


def refuses_ids(answer: bytes) -> bool:
    """Whether the body of a 400 finds fault with the ids, by the parameter's name."""
    return PARAMETER in answer


def trial_body(model: str, text: str, ids: Sequence[int]) -> bytes:
    """A chat of one token's answer whose text and ids are not the same prompt: the answer's count tells which it was.

    So small that it leaves no whole block in the engine's cache.
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
    """`usage.prompt_tokens` of a whole answer; None: it does not say."""
    try:
        return _COUNTED.decode(answer).usage.prompt_tokens
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
