"""The conversation about one HTTP request: what a picker answered to its request and to its response.

    ask      request headers, body, trailers  ->  RequestOutcome: the choice, the body that goes on, or a refusal
    respond  response headers, body, trailers ->  ResponseOutcome: the body that goes on

With FULL_DUPLEX_STREAMED bodies the picker may collect messages before it answers, and cuts what it sends back as it
likes; with any other mode it answers each message with one (external_processor.proto, ProcessingResponse).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType

from google.protobuf.struct_pb2 import Struct
from google.protobuf.unknown_fields import UnknownFieldSet

from router.picker import ext_proc_pb2 as pb
from router.picker.names import DESTINATION, LB
from tests.picker_conformance.messages import (
    CONFORMING,
    FULL_DUPLEX,
    BodyModes,
    Headers,
    RequestVector,
    ResponseVector,
    encode_request,
    encode_response,
)
from tests.picker_conformance.stream import ENDLESS, NoMessage, PickerStream

# Between two pieces of a response, as tokens come. After the first one a picker may end its stream: a message that is
# on its way then would hide the status.
TOKEN_S, FIRST_TOKEN_S = 0.05, 1.0
MOST_EXTRA = 100  # messages after the last one that was due
SET = frozenset({0, 2})  # append actions by which the header has the value, whether it was there before or not
APPEND_FIELD, APPEND_TRUE = 2, b"\x08\x01"  # `append` of HeaderValueOption, which is deprecated: a BoolValue
SHORT_RESPONSE = ResponseVector((b'{"object": "chat.completion", "choices": []}',))


@dataclass(frozen=True)
class PickerAnswers:
    """Holds the messages of a picker. `end` is why it sent no more; None: the answer was complete."""

    messages: Sequence[pb.ProcessingResponse]
    end: NoMessage | None = None

    @cached_property
    def kinds(self) -> list[str]:
        """Return what each message answers, in the order in which they came."""
        return [message.WhichOneof("response") or "nothing" for message in self.messages]


class RequestOutcome(PickerAnswers):
    """Reads what a picker answered to a request."""

    @cached_property
    def refusal(self) -> pb.ImmediateResponse | None:
        return next((m.immediate_response for m in self.messages if m.HasField("immediate_response")), None)

    @property
    def status(self) -> int | None:
        """The HTTP status of the refusal. None: it was not refused."""
        return None if self.refusal is None else self.refusal.status.code

    @cached_property
    def choosing(self) -> pb.ProcessingResponse | None:
        """The first message that sets the header with the choice; only answers to headers and to a body can."""
        return next((message for message in self.messages if _options(message)), None)

    @property
    def header_option(self) -> pb.HeaderValueOption | None:
        """The mutation that sets the header; the last one counts."""
        return None if self.choosing is None else _options(self.choosing)[-1]

    @property
    def header(self) -> str | None:
        """The choice in the header, as Envoy reads it: `raw_value`."""
        option = self.header_option
        return None if option is None else option.header.raw_value.decode("latin-1")

    @cached_property
    def metadata(self) -> str | None:
        """The choice in the dynamic metadata of the message that sets the header, or of the first one that has it."""
        ordered = ([] if self.choosing is None else [self.choosing]) + list(self.messages)
        found = (_text(_inner(message.dynamic_metadata, LB), DESTINATION) for message in ordered)
        return next((value for value in found if value is not None), None)

    @cached_property
    def endpoints(self) -> list[str]:
        """The chosen endpoints in order, as the header or else the metadata lists them."""
        value = self.header or self.metadata or ""
        return [one.strip() for one in value.split(",") if one.strip()]

    @cached_property
    def body(self) -> StreamedBody:
        return StreamedBody([m.request_body for m in self.messages if m.HasField("request_body")])


class ResponseOutcome(PickerAnswers):
    """Reads what a picker answered to a response."""

    @cached_property
    def body(self) -> StreamedBody:
        return StreamedBody([m.response_body for m in self.messages if m.HasField("response_body")])

    @cached_property
    def set_headers(self) -> dict[str, str]:
        """The headers that the picker adds to the response."""
        options = [
            option
            for message in self.messages
            if message.HasField("response_headers")
            for option in message.response_headers.response.header_mutation.set_headers
        ]
        return {option.header.key.lower(): option.header.raw_value.decode("latin-1") for option in options}


class StreamedBody:
    """A body as a picker sends it back piece by piece: what is not sent back is lost."""

    def __init__(self, answers: Sequence[pb.BodyResponse]) -> None:
        self.answers = answers
        mutations = [answer.response.body_mutation for answer in answers]
        self.pieces = [m.streamed_response for m in mutations if m.HasField("streamed_response")]

    @cached_property
    def content(self) -> bytes:
        return b"".join(piece.body for piece in self.pieces)

    @property
    def ends(self) -> list[int]:
        """The positions of the pieces that are marked as the last one."""
        return [number for number, piece in enumerate(self.pieces) if piece.end_of_stream]

    @property
    def ends_once(self) -> bool:
        """Whether the last piece is marked as such, and no other one."""
        return self.ends == [len(self.pieces) - 1]


@dataclass
class PickerConversation(AbstractAsyncContextManager["PickerConversation"]):
    """One stream. Leaving the block ends it as a data plane would, so that the picker's books are in order:
    a request that was placed gets a short response, then the stream is half-closed.
    """

    stream: PickerStream
    modes: BodyModes = CONFORMING
    extra: list[pb.ProcessingResponse] = field(default_factory=list)  # answers beyond those that were due
    _placed: bool = False
    _broken: bool = False  # the picker is silent or gone: nothing to wait for
    _closed: bool = False

    async def ask(self, request: RequestVector) -> RequestOutcome:
        """Send a request, and collect the answers until they are complete or no more come."""
        return await self.ask_with(request, encode_request(request))

    async def ask_with(
        self, request: RequestVector, messages: Sequence[pb.ProcessingRequest | bytes]
    ) -> RequestOutcome:
        """Send a request as these messages of it, which a case may have changed, and collect the answers."""
        self.modes = request.modes or CONFORMING
        if self.modes.request == FULL_DUPLEX:
            outcome = RequestOutcome(*await self._collect(messages, _request_complete(request)))
        else:
            outcome = RequestOutcome(*await self._step(messages))
        self._placed = outcome.end is None and outcome.refusal is None
        self._broken = outcome.end is not None
        return outcome

    async def ask_headers(self, request: RequestVector) -> RequestOutcome:
        """Send a request's headers alone, as with body mode NONE, and receive one answer."""
        await self.stream.send(encode_request(request)[0])
        received = await self.stream.receive()
        if isinstance(received, pb.ProcessingResponse):
            return RequestOutcome([received])
        self._broken = True
        return RequestOutcome([], received)

    async def respond(self, response: ResponseVector) -> ResponseOutcome:
        """Send a response, and collect the answers until they are complete or no more come."""
        self._placed = False
        messages = encode_response(response)
        if self.modes.response == FULL_DUPLEX:
            outcome = ResponseOutcome(*await self._collect(messages, _response_complete(response)))
        else:
            outcome = ResponseOutcome(*await self._step(messages))
        self._broken = outcome.end is not None
        return outcome

    async def close(self) -> NoMessage:
        """Half-close the stream and return how it ended. What came before the end is in `extra`."""
        self._closed = True
        await self.stream.half_close()
        while isinstance(received := await self.stream.receive(), pb.ProcessingResponse):
            self.extra.append(received)
            if len(self.extra) >= MOST_EXTRA:
                return ENDLESS
        return received

    def abandon(self) -> None:
        """Reset the stream."""
        self._closed = True
        self.stream.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._closed:
            if self._placed:
                await self.respond(SHORT_RESPONSE)
            if not self._broken:
                await self.close()
        self.stream.cancel()

    async def _collect(
        self, messages: Sequence[pb.ProcessingRequest | bytes], complete: Callable[[pb.ProcessingResponse], bool]
    ) -> tuple[list[pb.ProcessingResponse], NoMessage | None]:
        """Send everything while receiving: a picker may begin to send back before it has the last message."""
        _, collected = await asyncio.gather(self.stream.send(*messages), self._receive_until(complete))
        return collected

    async def _receive_until(
        self, complete: Callable[[pb.ProcessingResponse], bool]
    ) -> tuple[list[pb.ProcessingResponse], NoMessage | None]:
        answers: list[pb.ProcessingResponse] = []
        while isinstance(received := await self.stream.receive(), pb.ProcessingResponse):
            answers.append(received)
            if received.HasField("immediate_response") or complete(received):
                return answers, None
        return answers, received

    async def _step(
        self, messages: Sequence[pb.ProcessingRequest | bytes]
    ) -> tuple[list[pb.ProcessingResponse], NoMessage | None]:
        """Send one message, receive one, and so on."""
        answers: list[pb.ProcessingResponse] = []
        for message in messages:
            await self.stream.send(message)
            received = await self.stream.receive()
            if not isinstance(received, pb.ProcessingResponse):
                return answers, received
            answers.append(received)
            if received.HasField("immediate_response"):
                break
            if received.HasField("response_body"):
                later = any(one.HasField("response_body") for one in answers[:-1])
                await self.stream.wait_for_end(TOKEN_S if later else FIRST_TOKEN_S)
        return answers, None


def _request_complete(request: RequestVector) -> Callable[[pb.ProcessingResponse], bool]:
    if request.trailers is not None:
        return lambda answer: answer.HasField("request_trailers")
    if request.pieces is None:
        return lambda answer: answer.HasField("request_headers")
    return lambda answer: answer.request_body.response.body_mutation.streamed_response.end_of_stream


def _response_complete(response: ResponseVector) -> Callable[[pb.ProcessingResponse], bool]:
    if response.trailers is not None:
        return lambda answer: answer.HasField("response_trailers")
    if response.pieces is None:
        return lambda answer: answer.HasField("response_headers")
    return lambda answer: answer.response_body.response.body_mutation.streamed_response.end_of_stream


def _options(message: pb.ProcessingResponse) -> list[pb.HeaderValueOption]:
    """The mutations of a message that set the header with the choice."""
    of_headers = message.request_headers.response.header_mutation
    of_body = message.request_body.response.header_mutation
    return [one for m in (of_headers, of_body) for one in m.set_headers if one.header.key.lower() == DESTINATION]


def _inner(struct: Struct, key: str) -> Struct:
    return struct.fields[key].struct_value if key in struct.fields else Struct()


def _text(struct: Struct, key: str) -> str | None:
    value = struct.fields.get(key)
    return value.string_value if value is not None and value.HasField("string_value") else None


def is_endpoint(text: str) -> bool:
    """Return whether a text is `ip:port`, with brackets around an IPv6 address."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return False
    return bool(colon) and (address.version == 6) == bracketed and port.isdecimal() and 0 < int(port) < 65536


def apply_option(option: pb.HeaderValueOption, client: Headers) -> list[str]:
    """Return the values that the header has after a data plane applied the mutation to the client's headers.

    Append actions: 0 and 2 set the value, 1 adds it if the header is absent, 3 overwrites it if the header is there.
    Envoy 1.40 ignores them and sets the value, unless the older field `append` is true: then it appends. So 0 sets,
    though it is called APPEND_IF_EXISTS_OR_ADD.
    """
    name = option.header.key.lower()
    before = [value for key, value in client if key.lower() == name]
    new = [option.header.raw_value.decode("latin-1")]
    unknown = UnknownFieldSet(option)
    fields = [unknown[number] for number in range(len(unknown))]
    if any(one.field_number == APPEND_FIELD and one.data == APPEND_TRUE for one in fields):
        return before + new
    if option.append_action in SET:
        return new
    return (before or new) if option.append_action == 1 else (new if before else [])
