"""What the conformance suite rests on, through a real Envoy: that it sends what Envoy sends, and that a clause that is
broken breaks requests there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from router.picker import ext_proc_pb2 as pb
from router.picker.names import DESTINATION
from tests.picker_conformance import wrong_bodies, wrong_choices, wrong_responses
from tests.picker_conformance.messages import (
    BUFFERED_BOTH,
    CONFORMING,
    THIN,
    BodyModes,
    RequestVector,
    ResponseVector,
    encode_request,
    encode_response,
    subset,
)
from tests.picker_conformance.reference_picker import (
    Answers,
    PickerSession,
    ReferencePicker,
    serve,
)

BODY = json.dumps(
    {"model": "qwen", "messages": [{"role": "user", "content": "Größe? 🙂"}]}, ensure_ascii=False
).encode()
ANSWER = b'{"choices": [{"message": {"content": "this way"}}], "usage": {"prompt_tokens": 3}}'
EVENTS = (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', b"data: [DONE]\n\n")
UNREACHABLE = "127.0.0.1:9"
MODES = {
    pb.NONE: "NONE",
    pb.STREAMED: "STREAMED",
    pb.BUFFERED: "BUFFERED",
    pb.FULL_DUPLEX_STREAMED: "FULL_DUPLEX_STREAMED",
}

CONFIGURATION = """
static_resources:
  listeners:
  - name: front
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_protocol_options: {{enable_trailers: true}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: engines, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata: [{{metadata_namespace: envoy.lb.subset_hint, value: {subset}}}]
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {{envoy_grpc: {{cluster_name: picker}}, timeout: 0s}}
              message_timeout: 5s
              processing_mode: {{request_header_mode: SEND, response_header_mode: SEND, request_body_mode: {request},
                response_body_mode: {response}, request_trailer_mode: SEND, response_trailer_mode: {response_trailers}}}
              response_attributes: [upstream.address]
              metadata_options:
                forwarding_namespaces: {{untyped: [envoy.lb, envoy.lb.subset_hint]}}
                receiving_namespaces: {{untyped: [envoy.lb]}}
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: engines
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 2s
    original_dst_lb_config: {{use_http_header: true, http_header_name: x-gateway-destination-endpoint}}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http_protocol_options: {{enable_trailers: true}}}}
  - name: picker
    type: STATIC
    connect_timeout: 2s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment: {{cluster_name: picker, endpoints: [{{lb_endpoints: [
      {{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]}}
"""


@dataclass
class HttpMessage:
    head: bytes
    body: bytes = b""
    trailers: bytes = b""
    whole: bool = False

    @property
    def status(self) -> int:
        return int(self.head.split()[1])


async def read_message(reader: asyncio.StreamReader, deadline_s: float = 10.0) -> HttpMessage:
    """Read an HTTP/1.1 message; `whole` is False when the connection or the time ended within it."""
    message = HttpMessage(b"")
    with suppress(asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(deadline_s):
            await fill(message, reader)
            message.whole = True
    return message


async def fill(message: HttpMessage, reader: asyncio.StreamReader) -> None:
    message.head = await reader.readuntil(b"\r\n\r\n")
    lowered = message.head.lower()
    if b"transfer-encoding: chunked" not in lowered:
        _, named, rest = lowered.partition(b"content-length:")
        message.body = await reader.readexactly(int(rest.split()[0]) if named else 0)
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        message.body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        message.trailers += line


def chunked(*pieces: bytes, trailers: bytes = b"") -> list[bytes]:
    return [*(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces), b"0\r\n" + trailers + b"\r\n"]


JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SIMPLE = [JSON + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER]


@dataclass
class ScriptedEngine:
    """Answers every request with the same bytes, part by part, and keeps the requests."""

    answer: list[bytes] = field(default_factory=lambda: SIMPLE)
    heard: list[HttpMessage] = field(default_factory=list)
    address: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heard.append(await read_message(reader))
            for part in self.answer:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.02)  # so that Envoy reads parts one by one
        except (OSError, asyncio.CancelledError):
            pass  # Envoy left, or the test ended
        finally:
            writer.close()


class Recorded(ReferencePicker):
    """The reference picker, or a wrong one, over one engine, which keeps what Envoy sent."""

    def __init__(self, session: type[PickerSession], endpoints: tuple[str, ...]) -> None:
        super().__init__()
        self.endpoints = endpoints
        self.heard: list[pb.ProcessingRequest] = []
        heard = self.heard

        class Recording(session):  # type: ignore[valid-type,misc]
            def on(self, message: pb.ProcessingRequest) -> Answers:
                heard.append(message)
                answers: Answers = super().on(message)
                return answers

        self.session = Recording


@dataclass
class Gateway:
    port: int
    picker: Recorded
    engine: ScriptedEngine
    running: Any

    async def send(self, *parts: bytes, deadline_s: float = 10.0) -> HttpMessage:
        """Send a request over a connection of its own, part by part, and return the response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.02)
            return await read_message(reader, deadline_s)
        finally:
            writer.close()

    async def post(self, body: bytes = BODY, headers: bytes = b"", deadline_s: float = 10.0) -> HttpMessage:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: conformance.example\r\ncontent-type: application/json\r\n"
        length = b"content-length: %d\r\n\r\n" % len(body)
        return await self.send(head + headers + length + body, deadline_s=deadline_s)


Start = Callable[..., Any]


@pytest.fixture
def gateway(envoy: Callable[[str], Any]) -> Start:
    """`gateway(session, modes=..., ...)`: an Envoy between a client, such a picker, and one engine."""

    @asynccontextmanager
    async def start(
        session: type[PickerSession] = PickerSession,
        modes: BodyModes = CONFORMING,
        answer: list[bytes] = SIMPLE,
        allowed: list[str] | None = None,
        engines: tuple[str, ...] | None = None,
    ) -> AsyncIterator[Gateway]:
        engine = ScriptedEngine(answer)
        async with await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server:
            engine.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            picker = Recorded(session, engines or (engine.address,))
            hint = {} if allowed is None else {"x-gateway-destination-endpoint-subset": allowed}
            async with serve(picker) as ports:
                configuration = CONFIGURATION.format(
                    port=ports.port,
                    request=MODES[modes.request],
                    response=MODES[modes.response],
                    response_trailers="SEND" if modes.response == pb.FULL_DUPLEX_STREAMED else "SKIP",
                    subset=json.dumps(hint),
                )
                async with envoy(configuration) as running:
                    yield Gateway(running.ports["front"], picker, engine, running)

    return start


# The suite sends what Envoy sends


def shape(message: pb.ProcessingRequest) -> tuple[object, ...]:
    """What a picker can tell messages apart by, without header lists and bytes of bodies."""
    kind = message.WhichOneof("request")
    inner = getattr(message, kind or "")
    headers = inner.headers.headers if hasattr(inner, "headers") else getattr(inner, "trailers", pb.HeaderMap()).headers
    return (
        kind,
        getattr(inner, "end_of_stream", None),
        message.protocol_config if message.HasField("protocol_config") else None,
        all(one.raw_value or not one.value for one in headers),
        all(not one.value for one in headers),
        sorted(message.metadata_context.filter_metadata),
        sorted(message.attributes),
        message.observability_mode,
    )


def shapes(messages: list[pb.ProcessingRequest]) -> list[tuple[object, ...]]:
    return [shape(message) for message in messages]


async def test_a_request_with_a_length_ends_with_an_empty_piece(gateway: Start) -> None:
    async with gateway() as running:
        assert (await running.post()).body == ANSWER
        heard = running.picker.heard
    vector = RequestVector((BODY, b""), metadata={"envoy.lb.subset_hint": {}})
    assert shapes(heard)[:3] == shapes(encode_request(vector))
    assert heard[1].request_body.body == BODY
    names = {one.key for one in heard[0].request_headers.headers.headers}
    assert {one.key for one in encode_request(vector)[0].request_headers.headers.headers} <= names


async def test_a_request_in_pieces_ends_with_an_empty_one(gateway: Start) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n"
    async with gateway() as running:
        assert (await running.send(head, *chunked(BODY[:30], BODY[30:]))).body == ANSWER
        heard = running.picker.heard
        assert running.engine.heard[0].body == BODY
    vector = RequestVector((BODY[:30], BODY[30:], b""), metadata={"envoy.lb.subset_hint": {}})
    assert shapes(heard)[:4] == shapes(encode_request(vector))


async def test_a_request_with_trailers(gateway: Start) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n"
    async with gateway() as running:
        sent = await running.send(head, *chunked(BODY, trailers=b"x-checksum: 7\r\n"))
        assert sent.body == ANSWER
        heard = running.picker.heard
        assert running.engine.heard[0].body == BODY
        assert b"x-checksum: 7" in running.engine.heard[0].trailers
    vector = RequestVector((BODY,), trailers=(("x-checksum", "7"),), metadata={"envoy.lb.subset_hint": {}})
    assert shapes(heard)[:3] == shapes(encode_request(vector))


async def test_a_request_without_a_body(gateway: Start) -> None:
    async with gateway(allowed=["127.0.0.1:1"]) as running:
        await running.send(b"GET /v1/models/qwen HTTP/1.1\r\nhost: e\r\n\r\n")
        heard = running.picker.heard
    vector = RequestVector(None, method="GET", path="/v1/models/qwen", metadata=subset(["127.0.0.1:1"]))
    assert shapes(heard) == shapes(encode_request(vector))
    hint = heard[0].metadata_context.filter_metadata["envoy.lb.subset_hint"]
    assert list(hint["x-gateway-destination-endpoint-subset"]) == ["127.0.0.1:1"]


@pytest.mark.parametrize(
    ("answer", "vector"),
    [
        (SIMPLE, ResponseVector((ANSWER, b""))),
        ([SSE, *chunked(*EVENTS)], ResponseVector((*EVENTS, b""))),
        ([SSE, *chunked(*EVENTS, trailers=b"x-sum: 1\r\n")], ResponseVector(EVENTS, trailers=(("x-sum", "1"),))),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], ResponseVector(None, status=204)),
    ],
    ids=["json", "stream", "trailers", "no body"],
)
async def test_responses(gateway: Start, answer: list[bytes], vector: ResponseVector) -> None:
    async with gateway(answer=answer) as running:
        received = await running.post()
        assert received.whole
        assert received.body == vector.body
        assert (b"x-sum: 1" in received.trailers) == (vector.trailers is not None)
        heard = [one for one in running.picker.heard if (one.WhichOneof("request") or "").startswith("response")]
        address = running.engine.address
    sent = encode_response(replace(vector, served=address))
    # plain Envoy says who served by an attribute, and never by metadata: the choice is what it has in `envoy.lb`
    assert [one[:5] for one in shapes(heard)] == [one[:5] for one in shapes(sent)]
    assert heard[0].attributes == sent[0].attributes
    lb = heard[0].metadata_context.filter_metadata["envoy.lb"]
    assert dict(lb) == {DESTINATION: address}


@pytest.mark.parametrize("modes", [THIN, BUFFERED_BOTH], ids=["thin", "buffered"])
async def test_other_body_modes(gateway: Start, modes: BodyModes) -> None:
    async with gateway(modes=modes, answer=[SSE, *chunked(*EVENTS)]) as running:
        received = await running.post()
        assert received.whole
        assert received.body == b"".join(EVENTS)
        heard = running.picker.heard
    pieces = (BODY, b"") if modes == THIN else (BODY,)
    expected = shapes(encode_request(RequestVector(pieces, modes=modes, metadata={"envoy.lb.subset_hint": {}})))
    assert shapes(heard)[: len(expected)] == expected
    answers = [one for one in heard if one.HasField("response_body")]
    # thin: the reference picker ends its stream after the first piece; buffered: there is one piece
    assert len(answers) == 1
    assert answers[0].response_body.end_of_stream == (modes == BUFFERED_BOTH)


# What broken clauses do to requests


async def post_through(gateway: Start, session: type[PickerSession], headers: bytes = b"", **options: Any) -> Any:
    """Return the response, and the requests that the engine got."""
    async with gateway(session, **options) as running:
        response = await running.post(headers=headers)
        return response, running.engine.heard


CLIENT_S = b"x-gateway-destination-endpoint: " + UNREACHABLE.encode() + b"\r\n"


class AppendsByDefault(PickerSession):
    """Leaves `append_action` at 0, as llm-d does."""

    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = super().choice(value, body)
        answer.request_headers.response.header_mutation.set_headers[0].append_action = 0
        return answer


@pytest.mark.parametrize("session", [PickerSession, AppendsByDefault])
async def test_206_the_client_s_destination_is_replaced(gateway: Start, session: type[PickerSession]) -> None:
    response, reached = await post_through(gateway, session, CLIENT_S)
    assert response.status == 200
    assert len(reached) == 1


async def test_206_broken_the_client_chooses(gateway: Start) -> None:
    response, reached = await post_through(gateway, wrong_choices.Appends, CLIENT_S)
    assert (response.status, reached) == (503, [])


@pytest.mark.parametrize("session", [wrong_choices.AddsIfAbsent, wrong_choices.OverwritesIfThere])
@pytest.mark.parametrize("headers", [b"", CLIENT_S], ids=["alone", "with the client's"])
async def test_206_append_actions_are_not_read(gateway: Start, session: type[PickerSession], headers: bytes) -> None:
    """Envoy sets the value whatever they say; other data planes may not."""
    response, reached = await post_through(gateway, session, headers)
    assert (response.status, len(reached)) == (200, 1)


async def test_205_broken_the_choice_is_not_read(gateway: Start) -> None:
    response, reached = await post_through(gateway, wrong_choices.SetsText)
    assert (response.status, reached) == (503, [])


async def test_303_a_subset_as_a_list_is_kept(gateway: Start) -> None:
    response, reached = await post_through(gateway, PickerSession, allowed=["192.0.2.1:8000"])
    assert (response.status, reached) == (503, [])
    assert b"no endpoint" in response.body


async def test_401_broken_the_engine_gets_what_was_sent_back(gateway: Start) -> None:
    _, reached = await post_through(gateway, wrong_bodies.LosesTheEnd)
    assert reached[0].body == BODY[:-1]


async def test_609_broken_the_end_is_lost(gateway: Start) -> None:
    class LeavesAtOnce(PickerSession):
        def response_body(self, message: pb.ProcessingRequest) -> Answers:
            return [*super().response_body(message), None]

    async with gateway(LeavesAtOnce, answer=[SSE, b"".join(chunked(*EVENTS * 200))]) as running:
        response = await running.post(deadline_s=2.0)
    assert (response.status, response.whole) == (200, False)  # the client waits for an end that never comes


async def test_108_broken_an_answer_too_many_breaks_the_request(gateway: Start) -> None:
    class AnswersTwice(PickerSession):
        def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
            answers = super().decide(body, ends=ends)
            return [answers[0], *answers]

    response, _ = await post_through(gateway, AnswersTwice)
    assert response.status >= 500


@pytest.mark.parametrize("session", [wrong_bodies.EndsBeforeTrailers, wrong_responses.EndsBeforeResponseTrailers])
async def test_411_and_613_end_of_stream_before_trailers_is_borne(gateway: Start, session: type[PickerSession]) -> None:
    """Why they are no MUST."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n"
    async with gateway(session, answer=[SSE, *chunked(*EVENTS, trailers=b"x-sum: 1\r\n")]) as running:
        response = await running.send(head, *chunked(BODY, trailers=b"x-checksum: 7\r\n"))
        (reached,) = running.engine.heard
    assert (reached.body, response.body) == (BODY, b"".join(EVENTS))
    assert b"x-checksum: 7" in reached.trailers


async def test_405_broken_the_request_hangs(gateway: Start) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\n\r\n"
    async with gateway(wrong_bodies.IgnoresTrailers) as running:
        response = await running.send(head, *chunked(BODY, trailers=b"x-checksum: 7\r\n"), deadline_s=1.0)
        assert (response.whole, running.engine.heard) == (False, [])
