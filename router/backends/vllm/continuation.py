"""The request with which another engine carries an answer on: the prompt is the prompt's ids and those of the
answer.

A completion takes ids as its `prompt`. A chat keeps its messages and gets the ids beside them
(`kv_transfer_params.prompt_token_ids`, vLLM >= 0.32): they win over the messages, and the answer keeps the shape of
a chat's. An engine that does not know the field would begin a new answer; its first chunk says which ids it used
(`return_token_ids`), and `prompt/continuable_stream.py` compares them before the client sees anything.

Where no ids are known the text is sent: behind a completion's prompt, or as a chat's last message, which the engine
leaves open (`continue_final_message`, vLLM >= 0.6.3, vllm-project/vllm#8942). Pure.
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
"""Of a chat's text. Engines with a Hugging Face library from before September 2025 search the prompt for it from
the end, and could find a short one in the template's end mark (huggingface/transformers#40732).
"""

ContinuationRefusal = Literal["length", "no_token_ids"]
"""Why there is no request for the rest: no token is left to generate; text is not enough for this request."""


def continuation_body(endpoint: Endpoint, body: bytes, ids: bytes, tokens: int) -> bytes | ContinuationRefusal:
    """Return the client's request as one for the rest of its answer. `ids`: of the prompt and of the `tokens` of
    answer so far, as JSON numbers with commas between them.
    """
    if (members := _shorten(endpoint, body, tokens)) is None:
        return "length"
    if endpoint is Endpoint.COMPLETIONS:
        members["prompt"] = Raw(b"[%b]" % ids)
    else:
        members[PARAMS] = Raw(b'{"prompt_token_ids":[%b]}' % ids)
    return msgspec.json.encode(members)


def text_continuation_body(endpoint: Endpoint, body: bytes, text: bytes, tokens: int) -> bytes | ContinuationRefusal:
    """Return the client's request as one for the rest of its answer. `text`: of the `tokens` of answer so far, as
    the inside of a JSON string.
    """
    if (members := _shorten(endpoint, body, tokens)) is None:
        return "length"
    members["return_token_ids"] = Raw(b"false")  # of the rest alone they would say nothing
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
    messages = msgspec.json.decode(members["messages"], type=list[Raw])  # was read as an array
    members["messages"] = Raw(msgspec.json.encode([*messages, Raw(b'{"role":"assistant","content":"%b"}' % text)]))
    members["add_generation_prompt"], members["continue_final_message"] = Raw(b"false"), Raw(b"true")
    return msgspec.json.encode(members)


def _shorten(endpoint: Endpoint, body: bytes, tokens: int) -> dict[str, Raw] | None:
    """Return the fields of a request, with limits that are less by `tokens`; None if no token is left to
    generate.
    """
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
    """Return a whole number; None for null, a missing field, or anything else, which the engine has refused
    already.
    """
    value = _value(field)
    return value if type(value) is int else None


def _value(field: Raw | None) -> Any:
    """Return a field's value; None where it is missing or cannot be read, which the engine has refused already."""
    try:
        return None if field is None else msgspec.json.decode(field)
    except UNREADABLE:
        return None
