"""Parses a request's body and headers into a `Prompt`, or refuses it with the name of the field at fault.

The body is parsed once, into its members; the fields that routing needs are then read for the endpoint; messages,
tools and schemas stay bytes until the prompt is needed (`Unread`). Only content that the router itself must
understand is refused here; the rest is left to the engine, whose error message reaches the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from router.errors import BadRequest
from router.prompt.answer_tail import StopStrings
from router.prompt.api.anthropic import MessagesFields, check_messages, read_messages
from router.prompt.api.continuable import CHECKED_FIELDS, PLAIN_FIELDS, find_refusal, read_stop
from router.prompt.api.field_reader import FieldReader
from router.prompt.api.field_values import (
    LARGEST,
    is_present,
    objective_ms,
    require,
    short_value,
    text_of,
    whole_number,
)
from router.prompt.api.fields import BodyFields, Part
from router.prompt.api.lineage import (
    SESSION_HEADERS,
    Lineage,
    as_name,
    make_lineage,
    read_context_lineage,
    read_header_lineage,
)
from router.prompt.api.openai import (
    ChatFields,
    CompletionFields,
    check_chat,
    check_completion,
    count_answers,
    has_several_answers,
    read_chat,
    read_completion,
    unknown_ids,
)
from router.prompt.api.responses import ResponsesFields, check_responses, read_responses
from router.prompt.api.size_limits import (
    LARGE_BODY_BYTES,
    LONGEST_SALT,
    MAX_OBJECTS,
    check_elements,
    exceeds,
    reads_slowly,
)
from router.prompt.body_rewrite import (
    SALT,
    UNREADABLE,
    AnswerAdditions,
    AnswerRequest,
    ask_engine,
    open_body,
    set_salt,
)
from router.prompt.form_data import edit_fields, is_form, open_form, read_delimiter, read_text
from router.prompt.known_prompt import FindKnown
from router.prompt.prompt import Endpoint, Prompt, PromptFields, UnknownIds, Unread
from router.tenants.isolation import CacheScope

CHAT: Final = Endpoint.CHAT  # Python 3.11 runs code of its own at each access to an Enum's member
TTFT, TPOT = b"x-slo-ttft-ms", b"x-slo-tpot-ms"
LLM_D_TTFT, LLM_D_TPOT = b"x-llm-d-router-slo-ttft-ms", b"x-llm-d-router-slo-tpot-ms"
CONTINUE = b"x-warmroute-continue"  # `off`: the client does not want another engine to continue the answer
RERANK: Final = ("/v1/rerank", "/rerank", "/v2/rerank")  # vLLM's names for one endpoint
SALTED_OTHERS: Final = frozenset(("/v1/embeddings", *RERANK, "/v1/score"))  # engines compute and cache their prompts
NAMES: Final = SESSION_HEADERS | {TTFT, TPOT, LLM_D_TTFT, LLM_D_TPOT, CONTINUE}


class _BodyFormat(NamedTuple):
    """The fields and functions that read one endpoint's body."""

    endpoint: Endpoint
    fields: type[BodyFields]
    check: Callable[[Any], None]
    read: Callable[[Any], PromptFields]


_FORMATS: Final = {
    shape.endpoint.value: shape
    for shape in (
        _BodyFormat(Endpoint.CHAT, ChatFields, check_chat, read_chat),
        _BodyFormat(Endpoint.COMPLETIONS, CompletionFields, check_completion, read_completion),
        _BodyFormat(Endpoint.RESPONSES, ResponsesFields, check_responses, read_responses),
        _BodyFormat(Endpoint.MESSAGES, MessagesFields, check_messages, read_messages),
    )
}


class RequestHeaders(NamedTuple):
    """Header values; None where a header is missing."""

    lineage: Lineage | None = None
    ttft: str | None = None
    tpot: str | None = None
    continues: bool = True


NO_HEADERS: Final = RequestHeaders()


def read_request_headers(fields: Mapping[bytes, bytes]) -> RequestHeaders:
    """Read the headers in `fields` (names in lower case). Most requests have none: one set operation shows it."""
    if NAMES.isdisjoint(fields):
        return NO_HEADERS
    return RequestHeaders(
        read_header_lineage(fields),
        _header_text(fields, LLM_D_TTFT) or _header_text(fields, TTFT),
        _header_text(fields, LLM_D_TPOT) or _header_text(fields, TPOT),
        fields.get(CONTINUE, b"").lower() != b"off",
    )


def _header_text(fields: Mapping[bytes, bytes], name: bytes) -> str | None:
    return fields.get(name, b"").decode("latin-1") or None


class ReadOptions:
    """Settings for reading bodies. `want_source` False: the prompt's source stays `Unread`; `continues`: the token
    ids of streamed answers are requested, so that another engine can continue these; `uncontinued`: the same
    options without `continues`.
    """

    def __init__(
        self,
        strip_fields: frozenset[str] = frozenset(("kv_transfer_params", "vllm_xargs")),
        inject_usage: bool = True,
        want_source: bool = True,
        *,
        continues: bool = False,
    ) -> None:
        self.continues = continues
        self.strip_fields = strip_fields
        self.inject_usage = inject_usage
        self.want_source = want_source
        self.uncontinued = self if not continues else ReadOptions(strip_fields, inject_usage, want_source)
        self.readers = {path: _build_reader(shape.fields, strip_fields, continues) for path, shape in _FORMATS.items()}


@lru_cache(maxsize=64)  # a reader has no state, and building one takes 3 ms
def _build_reader(fields: type[BodyFields], strip: frozenset[str], continues: bool) -> FieldReader[BodyFields]:
    if not continues or not issubclass(fields, ChatFields | CompletionFields):
        return FieldReader(fields, strip)
    return FieldReader(fields, strip, CHECKED_FIELDS, PLAIN_FIELDS)


def read_prompt(
    path: str,
    content_type: str | None,
    body: bytes,
    options: ReadOptions,
    headers: RequestHeaders = NO_HEADERS,
    scope: CacheScope | None = None,
) -> Prompt:
    """Parse one request; `headers`: as `read_request_headers` returns them. Raises BadRequest.

    `content_type` only matters outside the four endpoints. Objectives that are not numbers are ignored. With a
    `scope`, the prompt's salt and session names are made specific to that scope.
    """
    format_ = _FORMATS.get(path)
    if format_ is None and is_form(content_type) and body:
        return _read_form(path, content_type or "", body, options, headers.lineage, scope)
    if len(body) > LARGE_BODY_BYTES:
        check_elements(body, has_ids=format_ is None or format_.endpoint is Endpoint.COMPLETIONS)
    if format_ is None:
        return _read_other(path, content_type, body, options, headers.lineage, scope)
    reader = options.readers[path]
    fields = reader.read(body)
    lineage = _find_lineage(fields, headers.lineage, scope)  # before fields are stripped
    if reader.has_forbidden(fields):
        body = open_body(body, options.strip_fields).raw
        fields = reader.read(body)
    format_.check(fields)
    uncontinuable, stop = _read_continuation(format_.endpoint, reader, fields, options, headers)
    salt = _find_salt(fields, scope)
    additions = AnswerAdditions(options.inject_usage, token_ids=uncontinuable is None)
    asking = _forward(body, fields, additions, None if scope is None else salt)
    unread = Unread(partial(_read_source, format_, fields, body))
    session, parent, program = lineage if lineage is not None else (None, None, None)
    prompt_fields = unread.read(None) if options.want_source else None
    return Prompt(
        endpoint=format_.endpoint,
        path=path,
        model=fields.model or None,
        body=asking.raw,
        source=unread if prompt_fields is None else prompt_fields.source,
        stream=bool(fields.stream),
        hide_usage=asking.hide_usage,
        hide_ids=asking.hide_ids,
        has_tools=isinstance(fields, ChatFields) and is_present(fields.tools),
        answers=count_answers(fields) if isinstance(fields, ChatFields | CompletionFields) else 1,
        several_answers=isinstance(fields, ChatFields | CompletionFields) and has_several_answers(fields),
        stop=stop,
        uncontinuable=uncontinuable,
        salt=salt,
        session=session,
        parent=parent,
        program=program,
        previous_response_id=fields.previous_response_id if isinstance(fields, ResponsesFields) else None,
        remote_fields={} if prompt_fields is None else prompt_fields.remote_fields,
        priority=whole_number(short_value(fields.priority)),
        output_tokens=_cap(format_.endpoint, fields),
        returns_prompt_text=isinstance(fields, ChatFields) and bool(short_value(fields.return_prompt_text)),
        ttft_ms=None if headers.ttft is None else objective_ms(headers.ttft),
        tpot_ms=None if headers.tpot is None else objective_ms(headers.tpot),
    )


def _forward(body: bytes, fields: BodyFields, additions: AnswerAdditions, salt: str | None) -> AnswerRequest:
    """Return the body for the engine: a stream requests `additions`; `salt`, if any, replaces the body's own."""
    asking = AnswerRequest(body)
    if fields.stream and isinstance(fields, ChatFields | CompletionFields):
        asking = ask_engine(body, _raw(fields.stream_options), _raw(fields.return_token_ids), additions)
    if salt is None:
        return asking
    salted = set_salt(asking.raw, salt, present=fields.cache_salt is not UNSET)
    return AnswerRequest(salted, asking.hide_usage, asking.hide_ids)


def _find_salt(fields: BodyFields, scope: CacheScope | None) -> str | None:
    """Return the salt of the prompt's blocks: the client's own, or what a `scope` makes of it; None: no salt."""
    own = _read_salt(fields.cache_salt)
    return own if scope is None else scope.mix(own)


def _read_salt(part: Part) -> str | None:
    """Return the client's own salt; None if it has none. Raises BadRequest."""
    if not isinstance(part, Raw) or not is_present(part):
        return None
    require(part, SALT, b'"', "a string")
    if len(memoryview(part)) > LONGEST_SALT:
        raise BadRequest(f"`{SALT}` takes more than {LONGEST_SALT:,} bytes; vLLM accepts 128 characters", param=SALT)
    try:
        return text_of(msgspec.json.decode(part))
    except UNREADABLE as error:
        raise BadRequest(f"`{SALT}` is not valid JSON in UTF-8: {error}", param=SALT) from None


def _read_continuation(
    endpoint: Endpoint, reader: FieldReader[Any], fields: BodyFields, options: ReadOptions, headers: RequestHeaders
) -> tuple[str | None, StopStrings | None]:
    """Return why another engine cannot continue the answer, or None; and the stop strings, if it can."""
    if not fields.stream or not options.continues:
        return "off", None
    if not headers.continues:
        return "opted_out", None
    prompt = fields.prompt if isinstance(fields, CompletionFields) else UNSET
    checked = reader.read_checked(fields)
    refusal = find_refusal(endpoint, checked, prompt, fields.temperature)
    stop = read_stop(checked) if checked and refusal is None else None
    if stop is not None and is_present(fields.return_token_ids):  # ids of repeated tokens would be sent twice
        return "stop_strings", None
    return refusal, stop


def _raw(part: Part) -> Raw | None:
    return part if isinstance(part, Raw) else None


def _read_source(
    format_: _BodyFormat,
    fields: BodyFields,
    body: bytes,
    text_limit_bytes: int | None,
    find: FindKnown | None = None,
    slow: bool | None = None,
) -> PromptFields:
    """Return the prompt of `fields`, or why it is not read. Raises BadRequest."""
    # A shorter body has no room for so many elements, a larger one was examined before it was parsed.
    if 2 * MAX_OBJECTS < len(body) <= LARGE_BODY_BYTES and (reads_slowly(body) if slow is None else slow):
        check_elements(body, has_ids=format_.endpoint is Endpoint.COMPLETIONS)
    if text_limit_bytes is not None and len(body) > text_limit_bytes and exceeds(fields, text_limit_bytes):
        return unknown_ids("too_long")
    try:
        if find is not None and isinstance(fields, ChatFields):
            return read_chat(fields, find)
        return format_.read(fields)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _cap(endpoint: Endpoint, fields: BodyFields) -> int | None:
    """Return the client's limit on the answer in tokens."""
    limit = short_value(fields.max_completion_tokens) if endpoint is CHAT else None
    if limit is None:
        limit = short_value(fields.max_tokens)
    return limit if type(limit) is int and 0 < limit < LARGEST else None


def _find_lineage(fields: BodyFields, named: Lineage | None, scope: CacheScope | None) -> Lineage | None:
    """Return the lineage `named` by headers, else the body's, with names specific to the scope; None: none."""
    lineage = named or _read_lineage(fields)
    if lineage is None or scope is None:
        return lineage
    parent = None if lineage.parent is None else scope.qualify(lineage.parent)
    return Lineage(scope.qualify(lineage.session), parent, scope.qualify(lineage.program))


def _read_lineage(fields: BodyFields) -> Lineage | None:
    """Return the lineage that the body names; None if it names none."""
    if fields.vllm_xargs is not UNSET and (lineage := read_context_lineage(fields.vllm_xargs)) is not None:
        return lineage
    name = None if fields.session_id is UNSET else as_name(short_value(fields.session_id))
    if name is None and isinstance(fields, ResponsesFields) and fields.conversation is not UNSET:
        conversation = short_value(fields.conversation)
        name = as_name(conversation.get("id") if isinstance(conversation, dict) else conversation)
    if name is None and fields.prompt_cache_key is not UNSET:
        name = as_name(short_value(fields.prompt_cache_key))
    if name is None and fields.user is not UNSET:
        name = as_name(short_value(fields.user))
    if name is None and fields.metadata is not UNSET:
        metadata = short_value(fields.metadata)
        name = as_name(metadata.get("user_id")) if isinstance(metadata, dict) else None
    if name is None and fields.safety_identifier is not UNSET:
        name = as_name(short_value(fields.safety_identifier))
    return None if name is None else make_lineage(name)


def _read_other(
    path: str,
    content_type: str | None,
    body: bytes,
    options: ReadOptions,
    named: Lineage | None,
    scope: CacheScope | None,
) -> Prompt:
    """Read a body of an endpoint placed by load. It need not be JSON if its content type is another one."""
    fields = BodyFields()
    if body:
        try:
            opened = open_body(body, options.strip_fields)
        except BadRequest:
            if content_type is None or "json" in content_type.lower():
                raise
        else:
            body, fields = opened.raw, _lenient(opened.members)
            if scope is not None and path in SALTED_OTHERS and opened.members:
                body = set_salt(body, scope.salt, present=SALT in opened.members)
    lineage = _find_lineage(fields, named, scope)
    session, parent, program = lineage if lineage is not None else (None, None, None)
    source = UnknownIds("endpoint")
    return Prompt(
        Endpoint.OTHER, path, fields.model or None, body, source, session=session, parent=parent, program=program
    )


def _read_form(
    path: str, content_type: str, body: bytes, options: ReadOptions, named: Lineage | None, scope: CacheScope | None
) -> Prompt:
    """Read a form, in which audio is uploaded; the request is placed by load."""
    form = open_form(body, read_delimiter(content_type))
    model = read_text(body, form, "model")
    body = edit_fields(body, form, dict.fromkeys(options.strip_fields))
    session, parent, program = _find_lineage(BodyFields(), named, scope) or (None, None, None)
    return Prompt(
        Endpoint.OTHER,
        path,
        model,
        body,
        UnknownIds("endpoint"),
        session=session,
        parent=parent,
        program=program,
        delimiter=form.delimiter,
    )


def _lenient(members: Mapping[str, Raw]) -> BodyFields:
    """Return `BodyFields` with values of any type: these endpoints leave validation to the engine."""
    fields = BodyFields(text_of(short_value(members.get("model", UNSET))))
    fields.session_id = members.get("session_id", UNSET)
    fields.prompt_cache_key = members.get("prompt_cache_key", UNSET)
    fields.user = members.get("user", UNSET)
    fields.metadata = members.get("metadata", UNSET)
    fields.safety_identifier = members.get("safety_identifier", UNSET)
    return fields
