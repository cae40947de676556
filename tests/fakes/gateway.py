"""A gateway's side of ext_proc without a gateway: one exchange at a time, message by message, over real gRPC.

async with Gateway.connect(port) as gateway:
    exchange = gateway.open()
    choice = await exchange.ask("/v1/chat/completions", body)     a Choice, or a Refusal
    seen = await exchange.answer(200, [b"data: ...", ...])        what the client would see
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc

from router.picker.access_log_pb2 import StreamAccessLogsMessage
from router.picker.ext_proc_pb2 import FULL_DUPLEX_STREAMED, HeaderMap, ProcessingRequest, ProcessingResponse
from router.picker.names import ACCESS_LOG, ATTRIBUTES, DESTINATION, DETAILS, EXT_PROC, LB, OWN, SUBSET, SUBSET_HINT

STREAMED, BUFFERED = 1, 2
PIECE = 16_384


class Choice(NamedTuple):
    """What the picker told: headers to set and remove, the metadata, and the body as it comes back."""

    headers: dict[str, bytes]
    removed: list[str]
    metadata: dict[str, Any]
    body: bytes
    pieces: list[int]  # their sizes

    @property
    def endpoint(self) -> str:
        return self.headers[DESTINATION].decode()

    @property
    def key(self) -> str:
        return str(self.metadata[OWN]["record"])


class Refusal(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Gateway:
    """A connection to a picker."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._process = channel.stream_stream(
            f"/{EXT_PROC}/Process",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=ProcessingResponse.FromString,
        )

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int | None) -> AsyncIterator[Gateway]:
        options = [("grpc.max_send_message_length", 64 << 20), ("grpc.max_receive_message_length", 64 << 20)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield cls(channel)

    def open(self, response_mode: int = FULL_DUPLEX_STREAMED, request_mode: int = FULL_DUPLEX_STREAMED) -> Exchange:
        return Exchange(self._process(), request_mode, response_mode)

    def logs(self) -> AccessLog:
        """A stream of log entries."""
        send = self.channel.stream_unary(
            f"/{ACCESS_LOG}/StreamAccessLogs", request_serializer=StreamAccessLogsMessage.SerializeToString
        )
        return AccessLog(send())


class AccessLog:
    """One log stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def tell(self, key: str, details: str = "via_upstream", status: int = 200, **usage: float) -> None:
        message = StreamAccessLogsMessage()
        entry = message.http_logs.log_entry.add()
        entry.response.response_code.value = status
        entry.response.response_code_details = details
        fields = entry.common_properties.metadata.filter_metadata[OWN].fields
        fields["record"].string_value = key
        for name, count in usage.items():
            fields[name].number_value = count
        await self.call.write(message)

    async def begin(self) -> None:
        """The stream stands: an entry that belongs to nothing has been sent."""
        await self.tell("nothing")


class Exchange:
    """One HTTP request through the picker."""

    def __init__(self, call: Any, request_mode: int, response_mode: int) -> None:
        self.call = call
        self.request_mode, self.response_mode = request_mode, response_mode

    async def ask(
        self, path: str, body: bytes | dict[str, Any] | None = None, *, method: str = "", **options: Any
    ) -> Choice | Refusal:
        """Send a whole request, and return the picker's answer to it."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        await self.send_head(path, method or ("GET" if content is None else "POST"), content is None, **options)
        if content is not None:
            if self.request_mode == BUFFERED:
                reply = await self.call.read()
                if reply.HasField("immediate_response"):
                    return _refusal(reply)
                await self.send_body(content, size=len(content))
            else:
                await self.send_body(content)
        return await self.read_choice(has_body=content is not None)

    async def send_head(
        self,
        path: str,
        method: str = "POST",
        last: bool = False,
        headers: Sequence[tuple[str, str]] = (),
        subset: Any = None,
    ) -> None:
        message = ProcessingRequest()
        message.protocol_config.request_body_mode = self.request_mode  # type: ignore[assignment]
        message.protocol_config.response_body_mode = self.response_mode  # type: ignore[assignment]
        given = [(":method", method), (":path", path), (":authority", "llm"), ("content-type", "application/json")]
        _fill(message.request_headers.headers, [*given, *headers])
        message.request_headers.end_of_stream = last
        if subset is not None:
            message.metadata_context.filter_metadata[SUBSET_HINT].update({SUBSET: subset})
        await self.call.write(message)

    async def send_body(self, content: bytes, size: int = PIECE, *, last: bool = True) -> None:
        for at in range(0, len(content) or 1, size or 1):
            message = ProcessingRequest()
            message.request_body.body = content[at : at + size]
            message.request_body.end_of_stream = last and at + size >= len(content)
            await self.call.write(message)

    async def read_choice(self, *, has_body: bool = True) -> Choice | Refusal:
        first = await self.call.read()
        assert first is not grpc.aio.EOF, await self.call.code()
        if first.HasField("immediate_response"):
            return _refusal(first)
        common = first.request_headers.response
        if self.request_mode == BUFFERED and has_body:
            common = first.request_body.response
        body, pieces = common.body_mutation.body, list[int]()
        while has_body and self.request_mode == FULL_DUPLEX_STREAMED:
            reply = await self.call.read()
            streamed = reply.request_body.response.body_mutation.streamed_response
            body += streamed.body
            pieces.append(len(streamed.body))
            if streamed.end_of_stream:
                break
        mutation = common.header_mutation
        headers = {option.header.key: option.header.raw_value for option in mutation.set_headers}
        metadata = {name: dict(value) for name, value in first.dynamic_metadata.items()}
        return Choice(headers, list(mutation.remove_headers), metadata, body, pieces)

    async def begin_answer(
        self,
        status: int,
        served: str | None = None,
        *,
        details: str | None = "via_upstream",
        content_type: str = "application/json",
        by_metadata: bool = False,
        last: bool = False,
    ) -> dict[str, bytes]:
        """Send the head of an answer; return the headers that the picker sets in it."""
        message = ProcessingRequest()
        _fill(message.response_headers.headers, [(":status", str(status)), ("content-type", content_type)])
        message.response_headers.end_of_stream = last
        attributes = {}
        if served is not None and by_metadata:
            message.metadata_context.filter_metadata[LB].update({"x-gateway-destination-endpoint-served": served})
        elif served is not None:
            attributes["upstream.address"] = served
        if details is not None:
            attributes[DETAILS] = details
        message.attributes[ATTRIBUTES].update(attributes)
        await self.call.write(message)
        reply = await self.call.read()
        assert reply.HasField("response_headers"), reply
        set_headers = reply.response_headers.response.header_mutation.set_headers
        return {option.header.key: option.header.raw_value for option in set_headers}

    async def send_piece(self, piece: bytes, last: bool = False) -> None:
        message = ProcessingRequest()
        message.response_body.body, message.response_body.end_of_stream = piece, last
        await self.call.write(message)

    async def answer(self, status: int, pieces: Sequence[bytes], served: str | None = None, **options: Any) -> bytes:
        """Bring a whole answer; return what the client would see of it."""
        await self.begin_answer(status, served, **options)
        for at, piece in enumerate(pieces):
            await self.send_piece(piece, last=at == len(pieces) - 1)
        if self.response_mode != FULL_DUPLEX_STREAMED:
            reply = await self.call.read()
            assert reply.HasField("response_body")
            return b"".join(pieces)
        seen = b""
        while True:
            reply = await self.call.read()
            streamed = reply.response_body.response.body_mutation.streamed_response
            seen += streamed.body
            if streamed.end_of_stream:
                return seen

    async def ended(self) -> grpc.StatusCode:
        """Read until the picker ends the stream; return the code."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await self.call.read() is not grpc.aio.EOF:
                pass
        return await self.call.code()


def _fill(map_: HeaderMap, headers: Sequence[tuple[str, str]]) -> None:
    for name, value in headers:
        map_.headers.add(key=name, raw_value=value.encode("latin-1"))


def _refusal(message: ProcessingResponse) -> Refusal:
    answer = message.immediate_response
    headers = {option.header.key: option.header.raw_value.decode() for option in answer.headers.set_headers}
    return Refusal(answer.status.code, headers, answer.body)
