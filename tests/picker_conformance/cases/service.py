"""1xx: the gRPC service, and what every conversation rests on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

from router.picker.names import EXT_PROC
from tests.picker_conformance.case import (
    ENVOY,
    EPP,
    MUST,
    SHOULD,
    CaseResult,
    conformance_case,
    judge,
)
from tests.picker_conformance.conversation import SHORT_RESPONSE, RequestOutcome
from tests.picker_conformance.describe import count_pieces, describe_end, describe_kinds, describe_request
from tests.picker_conformance.messages import encode_request
from tests.picker_conformance.peer import PickerPeer
from tests.picker_conformance.stream import StreamEnd

AT_ONCE = 16
LEAVING_CLIENTS = 64
UNKNOWN_FIELD = bytes((0xF8, 0x06, 0x01))  # field 111, varint 1


@conformance_case(
    101,
    MUST,
    "A picker implements Envoy's external processing service, with a stream in both directions.",
    sent=f"`{EXT_PROC}/Process` with a chat completion request",
    expected="a `ProcessingResponse` with one of its answers set",
    source=EPP,
    needs_endpoint=False,
)
async def serves_the_service(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    first = outcome.kinds[:1]
    return judge(bool(first) and first != ["nothing"], first[0] if first else describe_end(outcome.end))


@conformance_case(
    102,
    MUST,
    "Every HTTP request has a stream of its own, and requests do not wait for each other.",
    sent=f"{AT_ONCE} requests, none of which ends before all are answered",
    expected="a choice for each",
    source=EPP,
)
async def serves_streams_at_once(peer: PickerPeer) -> CaseResult:
    async with AsyncExitStack() as opened:
        conversations = [await opened.enter_async_context(peer.converse()) for _ in range(AT_ONCE)]
        outcomes = await asyncio.gather(*(one.ask(peer.chat()) for one in conversations))
    unplaced = next((one for one in outcomes if not one.endpoints), None)
    placed = sum(bool(one.endpoints) for one in outcomes)
    received = f"{placed} of {AT_ONCE} placed"
    return judge(unplaced is None, received if unplaced is None else f"{received}; {describe_request(unplaced)}")


@conformance_case(
    103,
    MUST,
    "A client may leave at any time: the data plane resets the stream, and the picker goes on serving.",
    sent=f"{LEAVING_CLIENTS} requests, reset in the middle of their bodies or after the choice, then another one",
    expected="a choice for the last one",
    source=ENVOY,
)
async def survives_clients_that_leave(peer: PickerPeer) -> CaseResult:
    for number in range(LEAVING_CLIENTS):
        async with peer.converse() as conversation:
            request = peer.chat()
            if number % 2:
                await conversation.ask(request)
            else:
                await conversation.stream.send(*encode_request(replace(request, trailers=()))[:-1])
            conversation.abandon()
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    return judge(bool(outcome.endpoints), describe_request(outcome))


@conformance_case(
    104,
    SHOULD,
    "Metadata namespaces, attributes and message fields that a picker does not know are ignored.",
    sent="an unknown namespace in `metadata_context`, an attribute, and field 111 in the first message",
    expected="a choice",
    source=ENVOY,
)
async def ignores_the_unknown(peer: PickerPeer) -> CaseResult:
    metadata = {"com.example.unknown": {"number": 1, "list": [1, "two", None], "object": {"a": True}}}
    request = peer.chat(metadata=metadata)
    first, *others = encode_request(request)
    first.attributes["com.example.unknown"].update({"source.port": 4711})
    async with peer.converse() as conversation:
        outcome = await conversation.ask_with(request, [first.SerializeToString() + UNKNOWN_FIELD, *others])
    return judge(bool(outcome.endpoints), describe_request(outcome))


@conformance_case(
    105,
    SHOULD,
    "Header values are read where the data plane puts them: as bytes in `raw_value`, or as text in `value`.",
    sent="a chat completion request whose headers are in `value`",
    expected="a choice",
    source=ENVOY,
)
async def reads_plain_values(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(replace(peer.chat(), plain_values=True))
    return judge(bool(outcome.endpoints), describe_request(outcome))


@conformance_case(
    106,
    SHOULD,
    "Without `protocol_config`, which older data planes do not send, bodies are taken as FULL_DUPLEX_STREAMED.",
    sent="a chat completion request without `protocol_config`",
    expected="a choice, and the body as `streamed_response`",
    source=ENVOY,
)
async def assumes_full_duplex(peer: PickerPeer) -> CaseResult:
    request = replace(peer.chat(), modes=None)
    async with peer.converse() as conversation:
        outcome = await conversation.ask(request)
    received = f"{describe_request(outcome)}, body in {count_pieces(outcome.body)}"
    return judge(bool(outcome.endpoints) and outcome.body.ends_once, received)


@conformance_case(
    107,
    SHOULD,
    "When the data plane ends its side before the answer is complete, the picker ends its own.",
    sent="a request, then a half-close instead of the response",
    expected="the end of the stream",
    source=ENVOY,
)
async def ends_after_half_close(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        await conversation.ask(peer.chat())
        end = await conversation.close()
    return judge(isinstance(end, StreamEnd), describe_end(end))


@conformance_case(
    108,
    MUST,
    "A picker answers what it is sent and nothing else: an answer that is not due breaks the stream.",
    sent="a request and a response, then a half-close",
    expected="one answer to each headers message, and nothing after the last answer that was due",
    source=ENVOY,
)
async def says_nothing_more(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        asked = await conversation.ask(peer.chat())
        answered = await conversation.respond(SHORT_RESPONSE)
        await conversation.close()
    kinds = [*asked.kinds, *answered.kinds]
    extra = RequestOutcome(conversation.extra).kinds
    once = kinds.count("request_headers") == kinds.count("response_headers") == 1
    received = describe_kinds(kinds) + (f"; then {describe_kinds(extra)}" if extra else "")
    return judge(once and not extra, received)


@conformance_case(
    109,
    SHOULD,
    "With `observability_mode` the data plane ignores answers, and none is sent.",
    sent="a request with `observability_mode`, then a half-close",
    expected="no message",
    source=ENVOY,
)
async def is_silent_when_only_observing(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        await conversation.stream.send(*encode_request(replace(peer.chat(), observed=True)))
        end = await conversation.close()
    kinds = RequestOutcome(conversation.extra).kinds
    return judge(not kinds, describe_kinds(kinds) or f"no message, {describe_end(end)}")


CASES = (
    serves_the_service,
    serves_streams_at_once,
    survives_clients_that_leave,
    ignores_the_unknown,
    reads_plain_values,
    assumes_full_duplex,
    ends_after_half_close,
    says_nothing_more,
    is_silent_when_only_observing,
)
