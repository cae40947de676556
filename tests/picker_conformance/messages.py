"""What a data plane says to a picker about one HTTP request: vectors of requests and responses, and their messages.

The messages are those that Envoy 1.40 sends: header values as raw bytes, body modes in the first message of a stream,
filter metadata with every message (`tests/gateway` compares them with those of a real Envoy).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from router.picker import ext_proc_pb2 as pb
from router.picker.names import ATTRIBUTES, LB, SERVED, SUBSET, SUBSET_HINT, UPSTREAM

PATH = "/v1/chat/completions"
FULL_DUPLEX, STREAMED, BUFFERED, NONE = pb.FULL_DUPLEX_STREAMED, pb.STREAMED, pb.BUFFERED, pb.NONE

Headers = tuple[tuple[str, str], ...]
MetadataFields = Mapping[str, Mapping[str, object]]  # namespace -> key -> JSON value


class BodyModes(NamedTuple):
    """How the data plane hands bodies over, by its `protocol_config`."""

    request: pb.BodyMode
    response: pb.BodyMode


CONFORMING = BodyModes(FULL_DUPLEX, FULL_DUPLEX)
THIN = BodyModes(FULL_DUPLEX, STREAMED)
BUFFERED_BOTH = BodyModes(BUFFERED, BUFFERED)


@dataclass(frozen=True)
class RequestVector:
    """One HTTP request. `pieces` is the body as it is cut into messages; None: the request has no body."""

    pieces: tuple[bytes, ...] | None
    method: str = "POST"
    path: str = PATH
    headers: Headers = ()
    trailers: Headers | None = None
    metadata: MetadataFields = field(default_factory=dict)
    modes: BodyModes | None = CONFORMING  # None: the data plane does not announce any
    plain_values: bool = False  # header values as text, as older versions of Envoy send them
    observed: bool = False  # `observability_mode`: the data plane ignores answers

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces or ())


@dataclass(frozen=True)
class ResponseVector:
    """One HTTP response of an endpoint. `pieces` is the body as it is cut into messages; None: no body."""

    pieces: tuple[bytes, ...] | None
    status: int = 200
    content_type: str = "application/json"
    trailers: Headers | None = None
    served: str | None = None  # the endpoint that served; None: the data plane does not say
    metadata: MetadataFields = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces or ())


def chat_body(model: str, prompt: str = "Which way?", **more: object) -> bytes:
    """Return the body of a chat completion request."""
    document = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 8, **more}
    return json.dumps(document, ensure_ascii=False).encode()


def cut(body: bytes, size: int) -> tuple[bytes, ...]:
    """Return the body in pieces of `size` bytes."""
    return tuple(body[start : start + size] for start in range(0, len(body), size))


def subset(endpoints: Iterable[str] | str) -> MetadataFields:
    """Return the filter metadata that restricts a choice to `endpoints`: a list, or one comma-separated text."""
    value = endpoints if isinstance(endpoints, str) else list(endpoints)
    return {SUBSET_HINT: {SUBSET: value}}


def encode_request(request: RequestVector) -> list[pb.ProcessingRequest]:
    """Return the messages that tell a picker of the request, from its headers to its end."""
    given: Headers = (
        (":method", request.method),
        (":scheme", "http"),
        (":authority", "conformance.example"),
        (":path", request.path),
        *(() if request.pieces is None else (("content-type", "application/json"),)),
        *request.headers,
    )
    bare = request.pieces is None
    head = pb.HttpHeaders(headers=_header_map(given, request.plain_values), end_of_stream=bare)
    messages = [pb.ProcessingRequest(request_headers=head)]
    if request.modes is not None:
        modes = pb.ProtocolConfiguration(
            request_body_mode=request.modes.request, response_body_mode=request.modes.response
        )
        messages[0].protocol_config.CopyFrom(modes)
    for piece, last in _mark_last(request.pieces or (), request.trailers is None):
        messages.append(pb.ProcessingRequest(request_body=pb.HttpBody(body=piece, end_of_stream=last)))
    if request.trailers is not None:
        trailers = pb.HttpTrailers(trailers=_header_map(request.trailers))
        messages.append(pb.ProcessingRequest(request_trailers=trailers))
    for message in messages:
        message.observability_mode = request.observed
        _add_metadata(message, request.metadata)
    return messages


def encode_response(response: ResponseVector) -> list[pb.ProcessingRequest]:
    """Return the messages that tell a picker of the response, from its headers to its end."""
    given: Headers = ((":status", str(response.status)), ("content-type", response.content_type))
    head = pb.HttpHeaders(headers=_header_map(given), end_of_stream=response.pieces is None)
    messages = [pb.ProcessingRequest(response_headers=head)]
    for piece, last in _mark_last(response.pieces or (), response.trailers is None):
        messages.append(pb.ProcessingRequest(response_body=pb.HttpBody(body=piece, end_of_stream=last)))
    if response.trailers is not None:
        trailers = pb.HttpTrailers(trailers=_header_map(response.trailers))
        messages.append(pb.ProcessingRequest(response_trailers=trailers))
    metadata = dict(response.metadata)
    if response.served is not None:
        messages[0].attributes[ATTRIBUTES].CopyFrom(_struct({UPSTREAM: response.served}))
        metadata[LB] = {**metadata.get(LB, {}), SERVED: response.served}
    for message in messages:
        _add_metadata(message, metadata)
    return messages


def _mark_last(pieces: tuple[bytes, ...], ends: bool) -> Iterator[tuple[bytes, bool]]:
    """Yield the pieces, each with whether it ends the body; none does when trailers follow."""
    for number, piece in enumerate(pieces, 1):
        yield piece, ends and number == len(pieces)


def _header_map(headers: Headers, plain: bool = False) -> pb.HeaderMap:
    values = (
        pb.HeaderValue(key=key, value=value) if plain else pb.HeaderValue(key=key, raw_value=value.encode())
        for key, value in headers
    )
    return pb.HeaderMap(headers=values)


def _add_metadata(message: pb.ProcessingRequest, metadata: MetadataFields) -> None:
    for namespace, fields in metadata.items():
        message.metadata_context.filter_metadata[namespace].CopyFrom(_struct(fields))


def _struct(fields: Mapping[str, object]) -> Struct:
    return ParseDict(dict(fields), Struct())
