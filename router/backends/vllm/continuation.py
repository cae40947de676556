"""The request by which another engine continues an answer: its prompt consists of the ids of the original prompt
and of the answer so far.

A completion takes ids as its `prompt`. A chat keeps its messages and carries the ids beside them
(`kv_transfer_params.prompt_token_ids`, vLLM >= 0.32): the ids take precedence over the messages, and the answer
keeps the shape of a chat's. An engine that does not support the field would begin a new answer; its first chunk
reports which ids it used (`return_token_ids`), and `prompt/continuable_stream.py` compares these before the client
receives anything.

If no ids are known, the text is sent: appended to a completion's prompt, or as a chat's last message, which the
engine leaves open (`continue_final_message`, vLLM >= 0.6.3, vllm-project/vllm#8942). Pure.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Raw

from router.backends.vllm.disaggregation import PARAMS
from router.prompt.body_rewrite import UNREADABLE, open_body
from router.prompt.prompt import Endpoint

_MOST, _LEAST = ("max_tokens", "max_completion_tokens"), "min_tokens"
_COMPLETION_TOKENS = 16  # the limit of a completion that names none, as in OpenAI's API
_SHORTEST_BYTES = 16
"""The shortest text of a chat that is continued. Engines with a Hugging Face library from before September 2025
search the prompt backwards for this text, and could find a short one in the template's end mark
(huggingface/transformers#40732).
"""

ContinuationRefusal = Literal["length", "no_token_ids"]
"""Why there is no request for the rest: `length`, no token is left to generate; `no_token_ids`, this request cannot
be continued by text.
"""


def continuation_body(endpoint: Endpoint, body: bytes, ids: bytes, tokens: int) -> bytes | ContinuationRefusal:
    """Return the client's request as one for the rest of its answer. `ids`: the ids of the prompt and of the
    `tokens` of answer so far, as JSON numbers separated by commas.
    """
    if (members := _shorten(endpoint, body, tokens)) is None:
        return "length"
    if endpoint is Endpoint.COMPLETIONS:
        members["prompt"] = Raw(b"[%b]" % ids)
    else:
        members[PARAMS] = Raw(b'{"prompt_token_ids":[%b]}' % ids)
    return msgspec.json.encode(members)


def text_continuation_body(endpoint: Endpoint, body: bytes, text: bytes, tokens: int) -> bytes | ContinuationRefusal:
    """Return the client's request as one for the rest of its answer. `text`: the text of the `tokens` of answer so
    far, as the inside of a JSON string.
    """
    if (members := _shorten(endpoint, body, tokens)) is None:
        return "length"
    members["return_token_ids"] = Raw(b"false")  # the ids of the rest alone would be of no use
    if not text:
        return msgspec.json.encode(members)
    if endpoint is Endpoint.COMPLETIONS:
        prompt = bytes(members["prompt"]).strip()
        if not prompt.startswith(b'"'):
            return "no_token_ids"
        members["prompt"] = Raw(b'%b%b"' % (prompt[:-1], text))
        return msgspec.json.encode(members)
    open_already = (
        _value(members.get("continue_final_message")) or _value(members.get("add_generation_prompt")) is False
    )
    if open_already or len(text) < _SHORTEST_BYTES:
        return "no_token_ids"
    messages = msgspec.json.decode(members["messages"], type=list[Raw])  # known to be an array
    members["messages"] = Raw(msgspec.json.encode([*messages, Raw(b'{"role":"assistant","content":"%b"}' % text)]))
    members["add_generation_prompt"], members["continue_final_message"] = Raw(b"false"), Raw(b"true")
    return msgspec.json.encode(members)


def _shorten(endpoint: Endpoint, body: bytes, tokens: int) -> dict[str, Raw] | None:
    """Return the fields of a request, with limits reduced by `tokens`; None if no token is left to generate."""
    members = open_body(body, ()).members
    if endpoint is Endpoint.COMPLETIONS and _number(members.get("max_tokens")) is None:
        members["max_tokens"] = Raw(b"%d" % _COMPLETION_TOKENS)
    for name in _MOST:
        limit = _number(members.get(name))
        if limit is not None:
            if limit <= tokens:
                return None
            members[name] = Raw(b"%d" % (limit - tokens))
    least = _number(members.get(_LEAST))
    if least is not None:
        members[_LEAST] = Raw(b"%d" % max(0, least - tokens))
    return members


def _number(field: Raw | None) -> int | None:
    """Return a whole number; None for null, a missing field, or anything else (which the engine refused
    already).
    """
    value = _value(field)
    return value if type(value) is int else None


def _value(field: Raw | None) -> Any:
    """Return a field's value; None if it is missing or unreadable, which the engine has already refused."""
    try:
        return None if field is None else msgspec.json.decode(field)
    except UNREADABLE:
        return None
