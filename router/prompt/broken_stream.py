"""A stream that broke off: why it is not continued, and the events that end it in the client's dialect.

    chat, completions, others    data: {"error": {...}}
    /v1/messages                 event: error, which Anthropic's clients look for by name
    /v1/responses                event: error, then response.failed with the response of the first event

OpenAI's clients raise at an `error` field in any event's data, so the error event of `/v1/responses` has its fields
twice, flat as in the API and nested; clients that follow the events by name wait for `response.failed`. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from router.prompt.prompt import Endpoint

_MESSAGES: Final = Endpoint.MESSAGES  # Python 3.11 runs code of its own at each access to an Enum's member
_RESPONSES: Final = Endpoint.RESPONSES
_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_NUMBER: Final = re.compile(rb'"sequence_number"\s*+:\s*+(\d{1,15})')
_FIRST_DATA: Final = re.compile(rb"^data:(.*)$", re.MULTILINE)
_ID: Final = re.compile(rb'"id"\s*+:\s*+"(resp_[^"\\]{1,200})"')
_MODEL: Final = re.compile(rb'"model"\s*+:\s*+"([^"\\]{1,500})"')
_CREATED: Final = re.compile(rb'"created_at"\s*+:\s*+(\d{1,15})')


BrokenReason = Literal["memory", "no_token_ids", "reasoning", "tool_call", "parser", "framing"]
"""Why an answer cannot be continued, as determined from the bytes that the engine sent.

    memory        its token ids do not fit `limits.continuation_bytes`, or exceed a sixteenth of that
    no_token_ids  the engine does not send token ids
    reasoning     the answer is in the middle of its reasoning, whose parser would begin anew
    tool_call     the answer has begun a tool call
    parser        the engine may hold text back: a parser of reasoning or tools has begun something
    framing       an event is too large, or has line breaks that vLLM does not send
"""


def end_broken_stream(
    endpoint: Endpoint, code: str, message: str, *, last: bytes = b"", head: bytes = b"", tail: bytes = b""
) -> bytes:
    """Return the last events of a stream of `endpoint`. `last`: the bytes sent last, since an event that was sent
    in part is closed first; `head` and `tail`: the first and last bytes of the stream, for `/v1/responses`.
    """
    gap = b"" if not last or last.endswith(_ENDS) else b"\n\n"
    error = {"message": message, "type": "upstream_error", "param": None, "code": code}
    if endpoint is _MESSAGES:
        return gap + _event("error", {"type": "error", "error": {"type": "api_error", "message": message}})
    if endpoint is not _RESPONSES:
        return gap + b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
    numbers = _NUMBER.findall(tail) or _NUMBER.findall(head)
    number = int(numbers[-1]) + 1 if numbers else 0
    flat = {"type": "error", "sequence_number": number, "code": code, "message": message, "param": None}
    failed: dict[str, Any] = {"type": "response.failed", "sequence_number": number + 1}
    failed["response"] = _read_response(head) | {
        "status": "failed",
        "error": {"code": "server_error", "message": message},
        "output": [],
    }
    return gap + _event("error", flat | {"error": error}) + _event("response.failed", failed)


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def _read_response(head: bytes) -> dict[str, Any]:
    """Return the response object of the first event, or only the fields found in `head` if the event is longer."""
    if (first := _FIRST_DATA.search(head)) is not None:
        try:
            found = msgspec.json.decode(first[1])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if isinstance(found, dict) and isinstance(response := found.get("response"), dict):
            return response
    id, model, created = _ID.search(head), _MODEL.search(head), _CREATED.search(head)
    return {
        "id": "" if id is None else id[1].decode(errors="replace"),
        "object": "response",
        "created_at": 0 if created is None else int(created[1]),
        "model": "" if model is None else model[1].decode(errors="replace"),
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
