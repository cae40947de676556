"""A small picker that keeps every clause, on a real gRPC server, for tests of the suite: those in `wrong_*` break it.

`PickerSession` is one HTTP request: `on` takes a message and returns answers, with `END` where the stream ends. Each
step is a method of its own, so that a wrong picker replaces one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
from google.protobuf.struct_pb2 import Struct
from grpc_health.v1 import health_pb2

from router.picker import ext_proc_pb2 as pb
from router.picker.names import ATTRIBUTES, DESTINATION, EXT_PROC, LB, SERVED, SUBSET, SUBSET_HINT, UPSTREAM
from tests.paths import ROOT

TLS = ROOT / "tests/fakes/tls"
ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000")
MODEL = "qwen"
PIECE_BYTES = 62_000
LARGEST_BODY_BYTES = 16 << 20
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVED_HEADER = "x-conformance-test-served-endpoint"

END = None
Answers = list[pb.ProcessingResponse | None]


class ReferencePicker:
    """What the requests of one picker share."""

    service = EXT_PROC
    endpoints: Sequence[str] = ENDPOINTS
    open_limit = 40  # requests that are placed and have not ended; more are dropped
    dropped_status = 429
    message_bytes = 4 << 20  # of one message

    def __init__(self) -> None:
        self.session: type[PickerSession] = PickerSession
        self.turn = 0
        self.open = 0

    async def process(self, _: Any, context: Any) -> None:
        session = self.session(self)
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                for answer in session.on(message):
                    if answer is END:
                        return
                    await context.write(answer)
        finally:
            self.open -= session.placed

    def health(self, service: str) -> Any:
        """Return the status of a service; None: it is unknown."""
        known = ("", "liveness", "readiness", EXT_PROC, "inference-extension")
        return SERVING if service in known else None


class PickerSession:
    def __init__(self, picker: ReferencePicker) -> None:
        self.picker = picker
        self.modes = (pb.FULL_DUPLEX_STREAMED, pb.FULL_DUPLEX_STREAMED)
        self.headers: dict[str, str] = {}
        self.allowed: set[str] | None = None
        self.body = b""
        self.placed = False
        self.pieces = 0  # of the response

    @property
    def duplex_request(self) -> bool:
        return self.modes[0] == pb.FULL_DUPLEX_STREAMED

    @property
    def duplex_response(self) -> bool:
        return self.modes[1] == pb.FULL_DUPLEX_STREAMED

    def on(self, message: pb.ProcessingRequest) -> Answers:
        if message.observability_mode:
            return []
        if message.HasField("protocol_config"):
            config = message.protocol_config
            self.modes = (config.request_body_mode, config.response_body_mode)
        handled: Answers = getattr(self, message.WhichOneof("request") or "")(message)
        return handled

    # request

    def request_headers(self, message: pb.ProcessingRequest) -> Answers:
        self.headers = {one.key: self.value_of(one) for one in message.request_headers.headers.headers}
        self.allowed = self.subset(message)
        if message.request_headers.end_of_stream or self.modes[0] == pb.NONE:
            return self.decide(None)
        if not self.duplex_request:
            return [pb.ProcessingResponse(request_headers=pb.HeadersResponse())]
        return []

    def request_body(self, message: pb.ProcessingRequest) -> Answers:
        self.body += message.request_body.body
        return self.decide(self.body) if message.request_body.end_of_stream else []

    def request_trailers(self, message: pb.ProcessingRequest) -> Answers:
        answers = self.decide(self.body, ends=False)
        return answers if END in answers else [*answers, pb.ProcessingResponse(request_trailers=pb.TrailersResponse())]

    def value_of(self, header: pb.HeaderValue) -> str:
        return header.raw_value.decode() or header.value

    def subset(self, message: pb.ProcessingRequest) -> set[str] | None:
        """The endpoints among which to choose; None: all."""
        hint = message.metadata_context.filter_metadata[SUBSET_HINT]
        if SUBSET not in hint.fields:
            return None
        value: Any = hint[SUBSET]
        listed = value.split(",") if isinstance(value, str) else [str(one) for one in value]
        return self.match({one.strip() for one in listed})

    def match(self, listed: set[str]) -> set[str]:
        """The endpoints that the entries of a subset mean, with or without port."""
        return {one for one in self.picker.endpoints if one in listed or one.rpartition(":")[0].strip("[]") in listed}

    def decide(self, body: bytes | None, *, ends: bool = True) -> Answers:
        if (refused := self.refuse(body)) is not None:
            return [refused, END]
        chosen = self.choose()
        if not chosen:
            return [refusal(503, "no endpoint"), END]
        self.placed = True
        self.picker.open += 1
        value = ",".join(chosen)
        head = self.choice(value, body)
        if body is None:
            return [head]
        if not self.duplex_request:
            answer = pb.ProcessingResponse(request_body=pb.BodyResponse(response=head.request_headers.response))
            answer.dynamic_metadata.CopyFrom(head.dynamic_metadata)
            return [answer]
        return [head, *self.send_back(body, ends)]

    def refuse(self, body: bytes | None) -> pb.ProcessingResponse | None:
        if self.headers.get(":path") == "/v1/models":
            return refusal(200, "", body=json.dumps({"data": [{"id": MODEL}]}).encode())
        if self.picker.open >= self.picker.open_limit:
            return refusal(self.picker.dropped_status, "too busy")
        if body is None:
            return None
        if len(body) > LARGEST_BODY_BYTES:
            return refusal(413, "too long")
        return self.refuse_body(body)

    def refuse_body(self, body: bytes) -> pb.ProcessingResponse | None:
        try:
            document = json.loads(body)
        except ValueError:
            return refusal(400, "not JSON")
        return None if "model" in document else refusal(400, "no model")

    def choose(self) -> list[str]:
        """Two endpoints: the next one, and one for a retry."""
        eligible = [one for one in self.picker.endpoints if self.allowed is None or one in self.allowed]
        if not eligible:
            return []
        self.picker.turn += 1
        turn = self.picker.turn % len(eligible)
        return (eligible[turn:] + eligible[:turn])[:2] if len(eligible) > 2 else eligible[turn:][:1]

    def choice(self, value: str, body: bytes | None) -> pb.ProcessingResponse:
        answer = pb.ProcessingResponse()
        common = answer.request_headers.response
        common.clear_route_cache = True
        set_header(common.header_mutation, DESTINATION, value)
        if body is not None:
            set_header(common.header_mutation, "content-length", str(len(body)))
        answer.dynamic_metadata.update({LB: {DESTINATION: value}})
        return answer

    def send_back(self, body: bytes, ends: bool) -> list[pb.ProcessingResponse]:
        starts = range(0, len(body), PIECE_BYTES)
        return [request_piece(body[at : at + PIECE_BYTES], ends and at + PIECE_BYTES >= len(body)) for at in starts]

    # response

    def response_headers(self, message: pb.ProcessingRequest) -> Answers:
        answer = pb.ProcessingResponse(response_headers=pb.HeadersResponse())
        if (served := self.served(message)) is not None:
            set_header(answer.response_headers.response.header_mutation, SERVED_HEADER, served)
        return [answer]

    def served(self, message: pb.ProcessingRequest) -> str | None:
        told = text(message.metadata_context.filter_metadata[LB], SERVED)
        return told or text(message.attributes[ATTRIBUTES], UPSTREAM)

    def response_body(self, message: pb.ProcessingRequest) -> Answers:
        self.pieces += 1
        piece = message.response_body
        if self.duplex_response:
            return [response_piece(piece.body, piece.end_of_stream)]
        answer = pb.ProcessingResponse(response_body=pb.BodyResponse())
        return [answer, END] if self.modes[1] == pb.STREAMED else [answer]

    def response_trailers(self, message: pb.ProcessingRequest) -> Answers:
        return [pb.ProcessingResponse(response_trailers=pb.TrailersResponse())]


def set_header(mutation: pb.HeaderMutation, key: str, value: str) -> None:
    header = pb.HeaderValue(key=key, raw_value=value.encode())
    mutation.set_headers.append(pb.HeaderValueOption(header=header, append_action=2))


def refusal(status: int, why: str, *, body: bytes = b"") -> pb.ProcessingResponse:
    answer = pb.ProcessingResponse()
    answer.immediate_response.status.code = status
    answer.immediate_response.body = body or json.dumps({"error": {"message": why}}).encode()
    set_header(answer.immediate_response.headers, "content-type", "application/json")
    return answer


def request_piece(body: bytes, last: bool) -> pb.ProcessingResponse:
    answer = pb.ProcessingResponse()
    answer.request_body.response.body_mutation.streamed_response.body = body
    answer.request_body.response.body_mutation.streamed_response.end_of_stream = last
    return answer


def response_piece(body: bytes, last: bool) -> pb.ProcessingResponse:
    answer = pb.ProcessingResponse()
    answer.response_body.response.body_mutation.streamed_response.body = body
    answer.response_body.response.body_mutation.streamed_response.end_of_stream = last
    return answer


def text(struct: Struct, key: str) -> str | None:
    return str(struct[key]) if key in struct.fields else None


class PickerPorts(NamedTuple):
    port: int
    health_port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def serve(
    picker: ReferencePicker, *, tls: bool = False, own_health_port: bool = False
) -> AsyncIterator[PickerPorts]:
    """Give the ports of a running picker; health is on a port of its own, or on that of ext_proc."""

    async def check(request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        status = picker.health(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=status)

    process = grpc.stream_stream_rpc_method_handler(
        picker.process,
        request_deserializer=pb.ProcessingRequest.FromString,
        response_serializer=pb.ProcessingResponse.SerializeToString,
    )
    checked = grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=health_pb2.HealthCheckRequest.FromString,
        response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
    )
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", picker.message_bytes)]
    server, probed = grpc.aio.server(options=options), grpc.aio.server(options=options)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(picker.service, {"Process": process})])
    (probed if own_health_port else server).add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": checked})]
    )
    if tls:
        pair = ((TLS / "key.pem").read_bytes(), (TLS / "cert.pem").read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    health_port = probed.add_insecure_port("127.0.0.1:0") if own_health_port else port
    await server.start()
    if own_health_port:
        await probed.start()
    try:
        yield PickerPorts(port, health_port)
    finally:
        await server.stop(0)
        await probed.stop(0)
