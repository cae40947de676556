"""Parses a request's body and headers into a `Prompt`, or refuses it with the name of the field at fault.

The body is parsed once, into its members; the fields that routing needs are then read for the endpoint; messages, tools
and schemas stay bytes until the conversion needs them (`want_source`). Only what the router itself must understand is
refused here; the rest is left to the engine, whose error message reaches the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import UNSET, Raw

from router.errors import BadRequest
from router.prompt.api.anthropic import MessagesFields, check_messages, read_messages
from router.prompt.api.fields import LARGEST, BodyFields, FieldReader, objective_ms, text_of, value, whole_number
from router.prompt.api.openai import (
    ChatFields,
    CompletionFields,
    PromptFields,
    check_chat,
    check_completion,
    read_chat,
    read_completion,
)
from router.prompt.api.responses import ResponsesFields, check_responses, read_responses
from router.prompt.body_rewrite import RequestBody, UsageRequest, open_body, with_usage
from router.prompt.prompt import Endpoint, Prompt, UnknownIds

SESSION, TTFT, TPOT = b"x-session-id", b"x-slo-ttft-ms", b"x-slo-tpot-ms"
LLM_D_TTFT, LLM_D_TPOT = b"x-llm-d-router-slo-ttft-ms", b"x-llm-d-router-slo-tpot-ms"
NAMES = frozenset((SESSION, TTFT, TPOT, LLM_D_TTFT, LLM_D_TPOT))


class _BodyFormat(NamedTuple):
    """The fields and functions that read one endpoint's body."""

    endpoint: Endpoint
    fields: type[BodyFields]
    check: Callable[[Any], None]
    read: Callable[[Any], PromptFields]


_FORMATS = {
    shape.endpoint.value: shape
    for shape in (
        _BodyFormat(Endpoint.CHAT, ChatFields, check_chat, read_chat),
        _BodyFormat(Endpoint.COMPLETIONS, CompletionFields, check_completion, read_completion),
        _BodyFormat(Endpoint.RESPONSES, ResponsesFields, check_responses, read_responses),
        _BodyFormat(Endpoint.MESSAGES, MessagesFields, check_messages, read_messages),
    )
}
_UNREAD = PromptFields(UnknownIds("not_needed"), {})


class RequestHeaders(NamedTuple):
    """Header values as sent; `None` where a header is missing."""

    session: str | None = None
    ttft: str | None = None
    tpot: str | None = None


NO_HEADERS = RequestHeaders()


def read_request_headers(fields: Mapping[bytes, bytes]) -> RequestHeaders:
    """Read the headers in `fields` (names in lower case). Most requests have none: one set operation finds that out."""
    if fields.keys().isdisjoint(NAMES):
        return NO_HEADERS
    return RequestHeaders(
        _header_text(fields, SESSION),
        _header_text(fields, LLM_D_TTFT) or _header_text(fields, TTFT),
        _header_text(fields, LLM_D_TPOT) or _header_text(fields, TPOT),
    )


def _header_text(fields: Mapping[bytes, bytes], name: bytes) -> str | None:
    return fields.get(name, b"").decode("latin-1") or None


class ReadOptions:
    """Settings for reading bodies. `want_source` False: no policy uses cache state, so prompts are not read."""

    def __init__(
        self,
        strip_fields: frozenset[str] = frozenset(("kv_transfer_params", "vllm_xargs")),
        inject_usage: bool = True,
        want_source: bool = True,
    ) -> None:
        self.strip_fields = strip_fields
        self.inject_usage = inject_usage
        self.want_source = want_source
        self.readers = {path: FieldReader(shape.fields, strip_fields) for path, shape in _FORMATS.items()}


def read_prompt(
    path: str, content_type: str | None, body: bytes, options: ReadOptions, headers: RequestHeaders = NO_HEADERS
) -> Prompt:
    """Parse one request; `headers` are those of `read_request_headers`. Raises BadRequest.

    `content_type` only matters outside the four endpoints. Objectives that are no number are ignored.
    """
    format_ = _FORMATS.get(path)
    if format_ is None:
        return _read_other(path, content_type, body, options, headers.session)
    reader = options.readers[path]
    fields = reader.read(body)
    if reader.has_forbidden(fields):
        body = open_body(body, options.strip_fields).raw
        fields = reader.read(body)
    if not fields.model:
        raise BadRequest("`model` is missing", param="model")
    format_.check(fields)
    stream = bool(fields.stream)
    usage_request = UsageRequest(body, hide=False)
    if stream and options.inject_usage and isinstance(fields, ChatFields | CompletionFields):
        usage_request = with_usage(open_body(body, ()) if fields.stream_options is not UNSET else RequestBody(body, {}))
    prompt_fields = format_.read(fields) if options.want_source else _UNREAD
    return Prompt(
        endpoint=format_.endpoint,
        path=path,
        model=fields.model,
        body=usage_request.raw,
        source=prompt_fields.source,
        stream=stream,
        hide_usage=usage_request.hide,
        salt=fields.cache_salt,
        session=_session(headers.session, fields),
        previous_response_id=getattr(fields, "previous_response_id", None),
        remote_fields=prompt_fields.remote_fields,
        priority=None if fields.priority is UNSET else whole_number(fields.priority),
        output_tokens=_cap(format_.endpoint, fields),
        returns_prompt_text=isinstance(fields, ChatFields) and bool(fields.return_prompt_text),
        ttft_ms=None if headers.ttft is None else objective_ms(headers.ttft),
        tpot_ms=None if headers.tpot is None else objective_ms(headers.tpot),
    )


def _cap(endpoint: Endpoint, fields: BodyFields) -> int | None:
    """Return the client's limit on the answer in tokens."""
    limit = fields.max_completion_tokens
    if limit is UNSET or limit is None or endpoint is not Endpoint.CHAT:
        limit = fields.max_tokens
    return limit if type(limit) is int and 0 < limit < LARGEST else None


def _session(header: str | None, fields: BodyFields) -> str | None:
    user = fields.metadata.get("user_id") if isinstance(fields.metadata, dict) else None
    for name in (header, fields.session_id, fields.user, user):
        if name and isinstance(name, str):
            return name
    return None


def _read_other(path: str, content_type: str | None, body: bytes, options: ReadOptions, header: str | None) -> Prompt:
    """Read a body of an endpoint placed by load. One that is no JSON passes if its content type says so."""
    fields = BodyFields()
    if body:
        try:
            opened = open_body(body, options.strip_fields)
        except BadRequest:
            if content_type is None or "json" in content_type.lower():
                raise
        else:
            body, fields = opened.raw, _lenient(opened.members)
    return Prompt(Endpoint.OTHER, path, fields.model, body, UnknownIds("endpoint"), session=_session(header, fields))


def _lenient(members: Mapping[str, Raw]) -> BodyFields:
    """Return `BodyFields` with values of any type: these endpoints leave validation to the engine."""
    known = ("model", "session_id", "user", "metadata")
    values = {name: value(members[name], name) for name in known if name in members}
    return BodyFields(**(values | {"model": text_of(values.get("model"))}))
