"""The one reading of a request's body: bytes in, `Prompt` out, or a refusal that names the field.

The body is parsed once, into its members; the fields that routing needs are then read in the shape of the endpoint;
messages, tools and schemas stay bytes until the conversion needs them (`want_source`). Only what the router itself
must understand is refused here; the rest is the engine's to judge, in its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import UNSET, Raw

from router.errors import BadRequest
from router.prompt.api.anthropic import MessagesFields, check_messages, read_messages
from router.prompt.api.fields import LARGEST, BodyFields, FieldReader, objective_ms, text_of, value, whole
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
from router.prompt.request_headers import NO_WISHES, RequestHeaders


class _Shape(NamedTuple):
    """How one endpoint's body is read."""

    endpoint: Endpoint
    fields: type[BodyFields]
    check: Callable[[Any], None]
    read: Callable[[Any], PromptFields]


_SHAPES = {
    shape.endpoint.value: shape
    for shape in (
        _Shape(Endpoint.CHAT, ChatFields, check_chat, read_chat),
        _Shape(Endpoint.COMPLETIONS, CompletionFields, check_completion, read_completion),
        _Shape(Endpoint.RESPONSES, ResponsesFields, check_responses, read_responses),
        _Shape(Endpoint.MESSAGES, MessagesFields, check_messages, read_messages),
    )
}
_UNREAD = PromptFields(UnknownIds("not_needed"), {})


class ReadOptions:
    """What the configuration says about bodies, and what the policies in use need of them.

    `want_source` False: no policy looks at caches, the prompt's content is not read.
    """

    def __init__(
        self,
        strip_fields: frozenset[str] = frozenset(("kv_transfer_params", "vllm_xargs")),
        inject_usage: bool = True,
        want_source: bool = True,
    ) -> None:
        self.strip_fields = strip_fields
        self.inject_usage = inject_usage
        self.want_source = want_source
        self.readers = {path: FieldReader(shape.fields, strip_fields) for path, shape in _SHAPES.items()}


def read_prompt(
    path: str,
    content_type: str | None,
    body: bytes,
    options: ReadOptions,
    said: RequestHeaders = NO_WISHES,
) -> Prompt:
    """Understands one request; `said`: in its headers. Raises BadRequest. `content_type` only matters off the four
    endpoints. Objectives that are no number are none.
    """
    shape = _SHAPES.get(path)
    if shape is None:
        return _read_other(path, content_type, body, options, said.session)
    reader = options.readers[path]
    fields = reader.read(body)
    if reader.has_forbidden(fields):
        body = open_body(body, options.strip_fields).raw
        fields = reader.read(body)
    if not fields.model:
        raise BadRequest("`model` is missing", param="model")
    shape.check(fields)
    stream = bool(fields.stream)
    asking = UsageRequest(body, hide=False)
    if stream and options.inject_usage and isinstance(fields, ChatFields | CompletionFields):
        asking = with_usage(open_body(body, ()) if fields.stream_options is not UNSET else RequestBody(body, {}))
    reading = shape.read(fields) if options.want_source else _UNREAD
    return Prompt(
        endpoint=shape.endpoint,
        path=path,
        model=fields.model,
        body=asking.raw,
        source=reading.source,
        stream=stream,
        hide_usage=asking.hide,
        salt=fields.cache_salt,
        session=_session(said.session, fields),
        previous_response_id=getattr(fields, "previous_response_id", None),
        remote_fields=reading.remote_fields,
        priority=None if fields.priority is UNSET else whole(fields.priority),
        output_tokens=_cap(shape.endpoint, fields),
        returns_prompt_text=isinstance(fields, ChatFields) and bool(fields.return_prompt_text),
        ttft_ms=None if said.ttft is None else objective_ms(said.ttft),
        tpot_ms=None if said.tpot is None else objective_ms(said.tpot),
    )


def _cap(endpoint: Endpoint, fields: BodyFields) -> int | None:
    """The client's cap on its answer."""
    asked = fields.max_completion_tokens
    if asked is UNSET or asked is None or endpoint is not Endpoint.CHAT:
        asked = fields.max_tokens
    return asked if type(asked) is int and 0 < asked < LARGEST else None


def _session(header: str | None, fields: BodyFields) -> str | None:
    user = fields.metadata.get("user_id") if isinstance(fields.metadata, dict) else None
    for name in (header, fields.session_id, fields.user, user):
        if name and isinstance(name, str):
            return name
    return None


def _read_other(path: str, content_type: str | None, body: bytes, options: ReadOptions, header: str | None) -> Prompt:
    """Endpoints placed by load. What calls itself something else than JSON, and is not, passes untouched."""
    fields = BodyFields()
    if body:
        try:
            opened = open_body(body, options.strip_fields)
        except BadRequest:
            if content_type is None or "json" in content_type.lower():
                raise
        else:
            body, fields = opened.raw, _lenient(opened.members)
    return Prompt(
        endpoint=Endpoint.OTHER,
        path=path,
        model=fields.model,
        body=body,
        source=UnknownIds("endpoint"),
        session=_session(header, fields),
    )


def _lenient(members: Mapping[str, Raw]) -> BodyFields:
    """`BodyFields` whatever their types: what these endpoints take is the engine's business."""
    known = ("model", "session_id", "user", "metadata")
    values = {name: value(members[name], name) for name in known if name in members}
    return BodyFields(**(values | {"model": text_of(values.get("model"))}))
