"""The messages of ext_proc in both directions: reads a request's head from them, and builds the replies. Pure.

A reply to a header or to a piece of a body instructs the gateway how to continue. A body that the gateway sends in
full duplex mode exists for the gateway only once it is sent back, in pieces small enough for every gateway.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from google.protobuf.struct_pb2 import Value

from router.picker.ext_proc_pb2 import (
    FULL_DUPLEX_STREAMED,
    HeaderMap,
    HeaderMutation,
    ProcessingRequest,
    ProcessingResponse,
)
from router.picker.names import ATTRIBUTES, DESTINATION, DETAILS, LB, OWN, RECORD, SERVED, SUBSET, SUBSET_HINT, UPSTREAM
from router.proxy.call import Headers
from router.proxy.headers import RESIZED

PIECE_BYTES = 62_000  # some gateways take no larger message than 64 KiB
OVERWRITE = 2  # append_action: OVERWRITE_IF_EXISTS_OR_ADD

Phase = Literal[
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
]


class Modes(NamedTuple):
    """The ways in which the gateway sends bodies, as values of `BodyMode`."""

    request: int
    response: int


class PickerRequestHead(NamedTuple):
    """A request's head, as `proxy/request_head.py` provides it for HTTP/1."""

    method: str
    path: str  # decoded
    target: bytes  # with its query, undecoded
    headers: Headers  # without pseudo headers, names in lower case
    fields: Mapping[bytes, bytes]  # by name; the first of several values


class Choice(NamedTuple):
    """The decision as it is sent to the gateway."""

    endpoints: str  # ip:port; several are separated by commas, in the order to try them
    key: str  # the access log returns it
    set_headers: Sequence[tuple[str, bytes]]
    removed_headers: Sequence[str]
    body: bytes | None  # None: unchanged, where the gateway has it


BodyForm = Literal["none", "streamed", "buffered"]
"""How a request's body arrived: not at all; in pieces that are sent back; or whole, and retained by the gateway."""


def read_modes(message: ProcessingRequest) -> Modes:
    """Return the body modes that the first message of a stream announces, else the protocol's defaults."""
    if not message.HasField("protocol_config"):
        return Modes(FULL_DUPLEX_STREAMED, FULL_DUPLEX_STREAMED)
    return Modes(message.protocol_config.request_body_mode, message.protocol_config.response_body_mode)


def read_headers(map_: HeaderMap) -> Headers:
    """Return headers in order, including pseudo headers."""
    return [(h.key.encode("latin-1", "replace"), h.raw_value or h.value.encode()) for h in map_.headers]


def read_head(map_: HeaderMap) -> PickerRequestHead:
    """Return the head of a request. `:authority` becomes `host`."""
    pseudo: dict[bytes, bytes] = {}
    headers: Headers = []
    for name, value in read_headers(map_):
        if name[:1] == b":":
            pseudo[name] = value
        else:
            headers.append((name.lower(), value))
    fields = dict(reversed(headers))
    if b"host" not in fields and b":authority" in pseudo:
        headers.append((b"host", pseudo[b":authority"]))
        fields[b"host"] = pseudo[b":authority"]
    target = pseudo.get(b":path", b"/")
    path = target.partition(b"?")[0].decode("ascii", "replace")
    method = pseudo.get(b":method", b"GET").decode("ascii", "replace")
    return PickerRequestHead(method, urllib.parse.unquote(path) if "%" in path else path, target, headers, fields)


def read_subset(message: ProcessingRequest) -> frozenset[str] | None:
    """Return the endpoints, each `ip:port` or `ip`, to which the gateway restricts the choice; None: no
    restriction. A hint that names no endpoint, such as a number, leaves none to choose.
    """
    hint = message.metadata_context.filter_metadata.get(SUBSET_HINT)
    if hint is None or SUBSET not in hint.fields or hint.fields[SUBSET].WhichOneof("kind") == "null_value":
        return None
    return frozenset(_read_endpoints(hint.fields[SUBSET]))


def _read_endpoints(value: Value) -> Iterator[str]:
    """Yield the names in a comma-separated text, or in a list of such texts and lists, which protobuf allows to be
    nested 50 deep.
    """
    if value.WhichOneof("kind") == "list_value":
        for item in value.list_value.values:
            yield from _read_endpoints(item)
    else:
        yield from (stripped for name in value.string_value.split(",") if (stripped := name.strip()))


def read_served(message: ProcessingRequest) -> str | None:
    """Return the endpoint that answers, None if the gateway does not report it with the response's headers."""
    lb = message.metadata_context.filter_metadata.get(LB)
    if lb is not None and SERVED in lb.fields:
        return lb.fields[SERVED].string_value or None
    attributes = message.attributes.get(ATTRIBUTES)
    if attributes is not None and UPSTREAM in attributes.fields:
        return attributes.fields[UPSTREAM].string_value or None
    return None


def read_details(message: ProcessingRequest) -> str | None:
    """Return Envoy's details of a response (`via_upstream`, or why Envoy answered itself); None: not sent."""
    attributes = message.attributes.get(ATTRIBUTES)
    if attributes is None or DETAILS not in attributes.fields:
        return None
    return attributes.fields[DETAILS].string_value or None


def build_choice(choice: Choice, form: BodyForm, *, trailers: bool = False) -> Iterator[bytes]:
    """Yield the messages that send the gateway a choice, including the request's body where the body was taken
    whole. `trailers`: the request has trailers, which end it.
    """
    first = ProcessingResponse()
    common = first.request_body.response if form == "buffered" else first.request_headers.response
    common.clear_route_cache = True
    mutation = common.header_mutation
    set_header(mutation, DESTINATION, choice.endpoints.encode())
    for name, value in choice.set_headers:
        set_header(mutation, name, value)
    mutation.remove_headers.extend(choice.removed_headers)
    first.dynamic_metadata.fields[LB].struct_value.fields[DESTINATION].string_value = choice.endpoints
    first.dynamic_metadata.fields[OWN].struct_value.fields[RECORD].string_value = choice.key
    if form == "buffered" and choice.body is not None:
        common.body_mutation.body = choice.body
    yield first.SerializeToString()
    if form == "streamed":
        yield from _build_pieces(choice.body or b"", trailers)
    if trailers:
        yield pass_on("request_trailers")


def _build_pieces(body: bytes, trailers: bool) -> Iterator[bytes]:
    for at in range(0, len(body) or 1, PIECE_BYTES):
        piece = ProcessingResponse()
        streamed = piece.request_body.response.body_mutation.streamed_response
        streamed.body = body[at : at + PIECE_BYTES]
        streamed.end_of_stream = at + PIECE_BYTES >= len(body) and not trailers
        yield piece.SerializeToString()


def build_refusal(status: int, headers: Headers, body: bytes, details: str) -> bytes:
    """Return the answer that the gateway sends to its client instead of an engine's."""
    message = ProcessingResponse()
    immediate = message.immediate_response
    immediate.status.code = status
    for name, value in headers:
        if name not in RESIZED:
            set_header(immediate.headers, name.decode("latin-1"), value)
    immediate.body = body
    immediate.details = details
    return message.SerializeToString()


def build_response_headers(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the reply to an answer's head, which sets `headers` in the answer."""
    message = ProcessingResponse()
    message.response_headers.SetInParent()
    for name, value in headers:
        set_header(message.response_headers.response.header_mutation, name, value)
    return message.SerializeToString()


def build_response_piece(body: bytes, last: bool) -> bytes:
    """Return a piece of an answer, to be sent back in full duplex mode."""
    message = ProcessingResponse()
    streamed = message.response_body.response.body_mutation.streamed_response
    streamed.body = body
    streamed.end_of_stream = last
    return message.SerializeToString()


def pass_on(phase: Phase) -> bytes:
    """Return the reply that changes nothing; not for full duplex bodies."""
    return _UNCHANGED[phase]


def set_header(mutation: HeaderMutation, name: str, value: bytes) -> None:
    """Set a header to one value, replacing any previous value."""
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = value
    option.append_action = OVERWRITE


def _build_unchanged(phase: Phase) -> bytes:
    message = ProcessingResponse()
    getattr(message, phase).SetInParent()
    return message.SerializeToString()


_UNCHANGED = {phase: _build_unchanged(phase) for phase in get_args(Phase)}
