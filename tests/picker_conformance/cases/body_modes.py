"""7xx: body modes other than FULL_DUPLEX_STREAMED, which the protocol does not ask for.

"Thin" is a request with FULL_DUPLEX_STREAMED and a response with STREAMED: there a picker may end its stream after
the first piece, and the data plane passes on the rest by itself.
"""

from __future__ import annotations

from dataclasses import replace

from tests.picker_conformance.case import (
    ENVOY,
    MAY,
    CaseResult,
    conformance_case,
    judge,
    judge_all,
    skip,
)
from tests.picker_conformance.conversation import (
    SHORT_RESPONSE,
    RequestOutcome,
    ResponseOutcome,
)
from tests.picker_conformance.describe import (
    describe_body,
    describe_end,
    describe_kinds,
    describe_request,
    describe_response,
    is_same_body,
)
from tests.picker_conformance.messages import (
    BUFFERED,
    BUFFERED_BOTH,
    NONE,
    STREAMED,
    THIN,
    BodyModes,
    RequestVector,
    ResponseVector,
    chat_body,
    cut,
    encode_response,
)
from tests.picker_conformance.peer import PickerPeer
from tests.picker_conformance.stream import StreamEnd

NOWHERE = ["192.0.2.1:8000"]
EVENTS = ResponseVector(
    (*(b'data: {"choices": [{"delta": {"content": "%d "}}]}\n\n' % n for n in range(9)), b"data: [DONE]\n\n"),
    content_type="text/event-stream",
)


async def _exchange(
    peer: PickerPeer, request: RequestVector, modes: BodyModes, response: ResponseVector
) -> tuple[RequestOutcome, ResponseOutcome]:
    async with peer.converse() as conversation:
        asked = await conversation.ask(replace(request, modes=modes))
        if asked.end is not None or asked.refusal is not None:
            return asked, ResponseOutcome(())
        return asked, await conversation.respond(response)


def _streamed_pieces(outcome: RequestOutcome | ResponseOutcome) -> int:
    return len(outcome.body.pieces)


def _changes(outcome: ResponseOutcome) -> int:
    """The number of answers that change the body."""
    return sum(answer.response.body_mutation.WhichOneof("mutation") is not None for answer in outcome.body.answers)


@conformance_case(
    701,
    MAY,
    "Thin: the request is placed as in the conforming mode.",
    sent="modes FULL_DUPLEX_STREAMED and STREAMED; a request in two pieces, and a subset without any endpoint",
    expected="a choice and the whole body; `ImmediateResponse` 503",
    source=ENVOY,
)
async def thin_places(peer: PickerPeer) -> CaseResult:
    body = chat_body(peer.fleet.model)
    placed, _ = await _exchange(peer, peer.chat(*cut(body, len(body) // 2 + 1)), THIN, SHORT_RESPONSE)
    refused, _ = await _exchange(peer, peer.within(NOWHERE), THIN, SHORT_RESPONSE)
    whole = bool(placed.endpoints) and placed.body.ends_once and is_same_body(body, placed.body.content)
    received = describe_body(placed.body, body) if placed.endpoints else describe_request(placed)
    return judge_all((judge(whole, received), judge(refused.status == 503, describe_request(refused))))


@conformance_case(
    702,
    MAY,
    "Thin: response headers and pieces are answered one by one, without a change of the body.",
    sent="modes FULL_DUPLEX_STREAMED and STREAMED; a response of 10 pieces, the second one after 1 s",
    expected="one answer to each message, without `streamed_response`, until the picker ends its stream",
    source=ENVOY,
)
async def thin_answers_each_piece(peer: PickerPeer) -> CaseResult:
    asked, answered = await _exchange(peer, peer.chat(), THIN, EVENTS)
    if not asked.endpoints:
        return judge(False, describe_request(asked))
    due = ["response_headers", *["response_body"] * len(EVENTS.pieces or ())]
    in_order = bool(answered.kinds) and answered.kinds == due[: len(answered.kinds)]
    ended = answered.end is None or (isinstance(answered.end, StreamEnd) and answered.end.ok)
    changed = _changes(answered)
    received = describe_response(answered) + (f"; {changed} changed the body" if changed else "")
    return judge(in_order and ended and not changed, received)


@conformance_case(
    703,
    MAY,
    "Thin: a picker that ends its stream before the response ends does so with status OK, after a piece of the body.",
    sent="modes FULL_DUPLEX_STREAMED and STREAMED; a response of 10 pieces, the second one after 1 s",
    expected="answers up to the first piece, then OK; skipped where the picker stays to the end",
    source=ENVOY,
)
async def thin_ends_early(peer: PickerPeer) -> CaseResult:
    asked, answered = await _exchange(peer, peer.chat(), THIN, EVENTS)
    if not asked.endpoints:
        return judge(False, describe_request(asked))
    if answered.end is None:
        return skip("the picker stays to the end of the response")
    ended = isinstance(answered.end, StreamEnd) and answered.end.ok
    return judge(ended and "response_body" in answered.kinds, describe_response(answered))


@conformance_case(
    704,
    MAY,
    "BUFFERED: headers and body of a request are answered with one message each, and a choice is in them.",
    sent="mode BUFFERED; a chat completion request",
    expected="`request_headers`, `request_body`; header and metadata in one of them; no `streamed_response`",
    source=ENVOY,
)
async def buffered_places(peer: PickerPeer) -> CaseResult:
    asked, _ = await _exchange(peer, peer.chat(), BUFFERED_BOTH, SHORT_RESPONSE)
    agreed = asked.header is not None and asked.header == asked.metadata
    one_each = asked.kinds == ["request_headers", "request_body"]
    received = f"{describe_kinds(asked.kinds)}: {describe_request(asked)}"
    return judge(one_each and agreed and not _streamed_pieces(asked), received)


@conformance_case(
    705,
    MAY,
    "BUFFERED: a request without any eligible endpoint is refused in one of the two answers.",
    sent="mode BUFFERED; a subset without any endpoint",
    expected="`ImmediateResponse` 503",
    source=ENVOY,
)
async def buffered_refuses(peer: PickerPeer) -> CaseResult:
    asked, _ = await _exchange(peer, peer.within(NOWHERE), BUFFERED_BOTH, SHORT_RESPONSE)
    return judge(asked.status == 503, describe_request(asked))


@conformance_case(
    706,
    MAY,
    "BUFFERED: a response is answered with one message each for headers and body, unchanged.",
    sent="mode BUFFERED; a JSON answer",
    expected="`response_headers`, `response_body`; no `streamed_response`",
    source=ENVOY,
)
async def buffered_passes(peer: PickerPeer) -> CaseResult:
    asked, answered = await _exchange(peer, peer.chat(), BUFFERED_BOTH, SHORT_RESPONSE)
    if not asked.endpoints:
        return judge(False, describe_request(asked))
    one_each = answered.kinds == ["response_headers", "response_body"]
    return judge(one_each and not _streamed_pieces(answered), describe_response(answered))


@conformance_case(
    707,
    MAY,
    "BUFFERED request, STREAMED response: each by its own rules.",
    sent="modes BUFFERED and STREAMED; a request, and a response of 10 pieces, the second one after 1 s",
    expected="a choice in two answers; one answer to each piece, until the picker ends its stream with OK",
    source=ENVOY,
)
async def buffered_then_streamed(peer: PickerPeer) -> CaseResult:
    asked, answered = await _exchange(peer, peer.chat(), BodyModes(BUFFERED, STREAMED), EVENTS)
    if asked.kinds != ["request_headers", "request_body"] or not asked.endpoints:
        return judge(False, f"{describe_kinds(asked.kinds)}: {describe_request(asked)}")
    ended = answered.end is None or (isinstance(answered.end, StreamEnd) and answered.end.ok)
    right = ended and "response_body" in answered.kinds and not _changes(answered)
    return judge(right, describe_response(answered))


@conformance_case(
    708,
    MAY,
    "Without a request body (mode NONE) the choice is made at the headers.",
    sent="modes NONE; `request_headers` of a POST without `end_of_stream`, then `response_headers`",
    expected="a choice in one answer, then one answer",
    source=ENVOY,
)
async def places_at_the_headers(peer: PickerPeer) -> CaseResult:
    request = replace(peer.chat(), modes=BodyModes(NONE, NONE))
    async with peer.converse() as conversation:
        outcome = await conversation.ask_headers(request)
        if not outcome.endpoints:
            return judge(False, describe_request(outcome))
        head = encode_response(SHORT_RESPONSE)[0]
        await conversation.stream.send(head)
        end = await conversation.close()
    kinds = [*outcome.kinds, *RequestOutcome(conversation.extra).kinds]
    return judge(kinds == ["request_headers", "response_headers"], f"{describe_kinds(kinds)}, {describe_end(end)}")


CASES = (
    thin_places,
    thin_answers_each_piece,
    thin_ends_early,
    buffered_places,
    buffered_refuses,
    buffered_passes,
    buffered_then_streamed,
    places_at_the_headers,
)
