"""Error responses in the client's own dialect: OpenAI's format, or Anthropic's on `/v1/messages` and for
Anthropic's clients.

The public API, which is plain ASGI, and the FastAPI applications use these responses. In the latter,
`install_error_handlers` also gives the framework's own refusals (unknown path, wrong method, invalid parameter) the
same format. A stream that breaks after its first byte cannot become an error response any more: `proxy/relay.py`
reports the error inside the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from router.config.validation_errors import describe_wanted
from router.errors import InternalError, RequestRefused, quote_name

ANTHROPIC_PATHS = "/v1/messages"
ANTHROPIC_VERSION: Final = b"anthropic-version"  # Anthropic's clients send this header with every request
ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class InvalidRequest(RequestRefused):
    """A parameter with an invalid value."""

    status, kind = 422, "invalid_request_error"


class ErrorBody(NamedTuple):
    """An error response. `headers` do not include content-length."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def encode_error(refused: RequestRefused, *, anthropic: bool = False) -> ErrorBody:
    """Return the response to a rejected request, in OpenAI's dialect or Anthropic's."""
    headers = [(b"content-type", b"application/json"), *refused.headers]
    shape = _anthropic if anthropic else _openai
    return ErrorBody(refused.status, headers, msgspec.json.encode(shape(refused)))


def speaks_anthropic(path: str, fields: Mapping[bytes, bytes]) -> bool:
    """Return whether a client expects errors in Anthropic's dialect. `fields` are the request's headers."""
    return path.startswith(ANTHROPIC_PATHS) or ANTHROPIC_VERSION in fields


def describe_crash() -> InternalError:
    """Return the error to send to a client after an unexpected exception."""
    return InternalError("the router failed to answer this request; its log has the reason", code="internal_error")


def install_error_handlers(app: FastAPI) -> None:
    """Give every error response of `app` OpenAI's format."""

    async def on_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRefused)
        return _response(error)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _response(_describe_invalid(error.errors()[0]))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = RequestRefused(f"{request.method} {quote_name(request.url.path)}: {error.detail.lower()}")
        refusal.status = error.status_code
        refusal.kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        response = _response(refusal)
        response.headers.update(error.headers or {})
        return response

    async def on_crash(request: Request, error: Exception) -> Response:
        return _response(describe_crash())  # Starlette raises the error again, so the connection logs it

    app.add_exception_handler(RequestRefused, on_refusal)
    app.add_exception_handler(Exception, on_crash)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_error)


def _describe_invalid(finding: ErrorDetails) -> InvalidRequest:
    """Return the refusal of a parameter or field, by what pydantic found there."""
    name = quote_name(str(finding["loc"][-1]))
    if finding["type"] == "missing":
        text = "missing"
    elif finding["type"] == "extra_forbidden":
        text = "unknown field"
    elif finding["type"] == "value_error":
        text = str(finding["ctx"]["error"])
    else:
        found = finding["input"]
        shown = f'"{quote_name(found)}"' if isinstance(found, str) else quote_name(msgspec.json.encode(found).decode())
        text = f"found {shown}, wanted {describe_wanted(finding)}"
    return InvalidRequest(f"{name}: {text}", param=name, code="invalid_value")


def _openai(refused: RequestRefused) -> dict[str, Any]:
    error = {"message": refused.message, "type": refused.kind, "param": refused.param, "code": refused.code}
    return {"error": error}


def _anthropic(refused: RequestRefused) -> dict[str, Any]:
    default = "api_error" if refused.status >= 500 else "invalid_request_error"
    kind = ANTHROPIC_KINDS.get(refused.status, default)
    return {"type": "error", "error": {"type": kind, "message": refused.message}}


def _response(refused: RequestRefused) -> Response:
    answer = encode_error(refused)
    response = Response(answer.body, answer.status)
    for name, value in answer.headers:
        response.headers[name.decode()] = value.decode()
    return response
