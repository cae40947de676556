"""Reads the error that an engine reports inside a stream, after its status 200 has been sent.

    chat, completions    data: {"error": {"message": ..., "type": ..., "code": 400}}, then data: [DONE] (vLLM, SGLang)
    /v1/messages         event: error, data: {"type": "error", "error": {"type": "overloaded_error", "message": ...}}
    /v1/responses        event: error, data: {"type": "error", "code": ..., "message": ...}
                         event: response.failed, data: {..., "response": {..., "error": {"code": ..., "message": ...}}}

The code determines whose error it is, as the status of an answer would: 4xx is the client's own. If the code is not
a number, the API's word for the error is looked up; an unknown error is the engine's. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from router.errors import quote_name

CLIENT_ERROR: Final = 400  # the status for one of `CLIENT_WORDS`
MESSAGE_CHARS: Final = 300
CLIENT_WORDS: Final = frozenset(
    (
        *("BadRequestError", "NotFoundError", "UnprocessableEntityError", "invalid_prompt", "invalid_request_error"),
        *("authentication_error", "billing_error", "not_found_error", "permission_error", "request_too_large"),
        *("rate_limit_error", "rate_limit_exceeded"),
    )
)
"""The types and codes that vLLM, OpenAI and Anthropic give to errors that are the client's own."""

_ERROR: Final = re.compile(rb'"error"\s*+(?::\s*+["{]|[,}])')  # a key with a value, or itself a value; never in a text
_BOUNDARY: Final = re.compile(rb"\r?\n\r?\n")
_DATA: Final = re.compile(rb"^data:(.*)$", re.MULTILINE)


class StreamError(NamedTuple):
    """An error in a stream. `status`: the status of an answer with this error; None if the error names none."""

    status: int | None
    message: str


def is_clients_own(error: StreamError) -> bool:
    """Return whether the client's request is at fault, so that any engine would report the same."""
    return error.status is not None and 400 <= error.status < 500


def read_error(event: bytes) -> StreamError | None:
    """Return the error that a whole event reports; None if it reports none."""
    if _ERROR.search(event) is None:
        return None
    try:
        data = msgspec.json.decode(b"\n".join(_DATA.findall(event)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return _read(data) if isinstance(data, dict) else None


def find_error(tail: bytes) -> StreamError | None:
    """Return the error among the last events of a stream; None if there is none."""
    if (found := _ERROR.search(tail)) is None:
        return None
    begin = 0
    for boundary in _BOUNDARY.finditer(tail, 0, found.start()):
        begin = boundary.end()
    end = _BOUNDARY.search(tail, found.end())
    return read_error(tail[begin : len(tail) if end is None else end.start()])


def _read(data: dict[str, Any]) -> StreamError | None:
    if data.get("type") == "response.failed" and isinstance(data.get("response"), dict):
        data = data["response"]
    error: Any = data.get("error")
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not error and data.get("type") == "error":
        error = data
    if not error:
        return None
    if not isinstance(error, dict):
        return StreamError(None, quote_name(str(error), MESSAGE_CHARS))
    return StreamError(_read_status(error), quote_name(str(error.get("message") or ""), MESSAGE_CHARS))


def _read_status(error: dict[str, Any]) -> int | None:
    code = error.get("code")
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code[:3])
    if type(code) is int:
        return code
    return CLIENT_ERROR if CLIENT_WORDS & {code, error.get("type")} else None
