"""6xx: responses with FULL_DUPLEX_STREAMED. What the picker does not send back never reaches the client."""

from __future__ import annotations

from router.picker import ext_proc_pb2 as pb
from tests.picker_conformance.case import (
    ENVOY,
    EPP,
    LLMD,
    LWEPP,
    MAY,
    MUST,
    SHOULD,
    CaseResult,
    conformance_case,
    judge,
    judge_all,
    skip,
)
from tests.picker_conformance.conversation import RequestOutcome, ResponseOutcome, StreamedBody
from tests.picker_conformance.describe import (
    describe_body,
    describe_end,
    describe_kinds,
    describe_request,
    describe_response,
    is_same_body,
)
from tests.picker_conformance.messages import ResponseVector, cut, encode_response
from tests.picker_conformance.peer import PickerPeer

ANSWER = (
    '{"id": "1", "choices": [{"message": {"role": "assistant", "content": "Größer 🙂"}}], '
    '"usage": {"prompt_tokens": 7, "completion_tokens": 10, "total_tokens": 17}}'
).encode()
EVENTS = tuple(b'data: {"choices": [{"delta": {"content": "%d "}}]}\n\n' % number for number in range(20))
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 20, "total_tokens": 27}}\n\n'
DONE = b"data: [DONE]\n\n"
SSE = "text/event-stream"
TRAILERS = (("x-checksum", "0"),)
SERVED_HEADER = "x-conformance-test-served-endpoint"
PIECES = 300


async def _respond(peer: PickerPeer, response: ResponseVector) -> tuple[RequestOutcome, ResponseOutcome]:
    """Place a request and send its response."""
    async with peer.converse() as conversation:
        asked = await conversation.ask(peer.chat())
        return asked, await conversation.respond(response)


def _judge_whole(response: ResponseVector, outcome: ResponseOutcome, exact: bool = True) -> CaseResult:
    """Pass when the whole body was sent back, with `end_of_stream` where it is due."""
    if outcome.end is not None:
        lost = f"{len(outcome.body.content):,} of {len(response.body):,} bytes"
        return judge(False, f"{lost}; {describe_response(outcome)}")
    content = outcome.body.content
    whole = content == response.body if exact else is_same_body(response.body, content)
    ends = response.trailers is not None or outcome.body.ends_once
    return judge(whole and ends, describe_body(outcome.body, response.body))


@conformance_case(
    601,
    MUST,
    "Response headers are answered, and the body is sent back whole.",
    sent="a JSON answer in four pieces, cut anywhere",
    expected="`response_headers` once, the whole body, its last piece with `end_of_stream`",
    source=f"{ENVOY}, {LLMD}",
)
async def passes_json_in_pieces(peer: PickerPeer) -> CaseResult:
    response = ResponseVector(cut(ANSWER, len(ANSWER) // 4 + 1))
    _, outcome = await _respond(peer, response)
    if outcome.kinds.count("response_headers") != 1:
        return judge(False, describe_response(outcome))
    return _judge_whole(response, outcome, exact=False)


@conformance_case(
    602,
    MUST,
    "An answer that is not the JSON it says it is passes unchanged.",
    sent="a text and bytes that are not UTF-8, both as `application/json`",
    expected="the same bytes",
    source=f"{ENVOY}, {LLMD}",
)
async def passes_what_is_not_json(peer: PickerPeer) -> CaseResult:
    findings = []
    for body in (b"no healthy upstream", b"\xff\xfe\x00\x01"):
        response = ResponseVector((body,))
        _, outcome = await _respond(peer, response)
        findings.append(_judge_whole(response, outcome))
    return judge_all(findings)


@conformance_case(
    603,
    MUST,
    "The last piece may be empty and only say `end_of_stream`.",
    sent="a JSON answer in one piece, then an empty one with `end_of_stream`",
    expected="the whole body, with `end_of_stream` at its end",
    source=f"{ENVOY}, {LLMD}",
)
async def passes_an_empty_last_piece(peer: PickerPeer) -> CaseResult:
    response = ResponseVector((ANSWER, b""))
    _, outcome = await _respond(peer, response)
    return _judge_whole(response, outcome, exact=False)


@conformance_case(
    604,
    MUST,
    "A stream of tokens is passed on as it comes: no piece waits for the next one.",
    sent="20 events of a `text/event-stream`, each after the one before was sent back",
    expected="the bytes of each event before the next one is sent",
    source=EPP,
)
async def streams_token_by_token(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        await conversation.ask(peer.chat())
        head, *bodies = encode_response(ResponseVector((*EVENTS, DONE), content_type=SSE))
        await conversation.stream.send(head)
        answers: list[pb.ProcessingResponse] = []
        sent = b""
        for number, message in enumerate(bodies, 1):
            sent += message.response_body.body
            await conversation.stream.send(message)
            while len(StreamedBody([m.response_body for m in answers]).content) < len(sent):
                received = await conversation.stream.receive()
                if not isinstance(received, pb.ProcessingResponse):
                    conversation.abandon()
                    return judge(False, f"after piece {number}: {describe_end(received)}")
                answers.append(received)
        await conversation.close()
    content = StreamedBody([m.response_body for m in answers]).content
    return judge(content == sent, f"{len(bodies)} pieces, each at once")


@conformance_case(
    605,
    MUST,
    "A stream with `usage` before `[DONE]` passes unchanged, wherever it is cut.",
    sent="events, then `usage` and `[DONE]`: in one piece, in two cut within the number, and with an empty last piece",
    expected="the same bytes",
    source=f"{ENVOY}, {LLMD}",
)
async def passes_usage(peer: PickerPeer) -> CaseResult:
    middle = USAGE.index(b"27") + 1
    findings = []
    for pieces in (
        (b"data: {}", USAGE + DONE),
        (*EVENTS, USAGE[:middle], USAGE[middle:] + DONE),
        (*EVENTS, USAGE, DONE, b""),
    ):
        response = ResponseVector(pieces, content_type=SSE)
        _, outcome = await _respond(peer, response)
        findings.append(_judge_whole(response, outcome))
    return judge_all(findings)


@conformance_case(
    606,
    MUST,
    "Response trailers are answered, after the body.",
    sent="a stream without `end_of_stream`, then `response_trailers`",
    expected="the whole body, then an answer to the trailers",
    source=ENVOY,
)
async def passes_trailers(peer: PickerPeer) -> CaseResult:
    response = ResponseVector((*EVENTS, DONE), content_type=SSE, trailers=TRAILERS)
    _, outcome = await _respond(peer, response)
    if outcome.kinds.count("response_trailers") != 1 or outcome.kinds[-1] != "response_trailers":
        return judge(False, describe_response(outcome))
    return _judge_whole(response, outcome)


@conformance_case(
    607,
    MUST,
    "A response without a body is answered at its headers.",
    sent="`response_headers` with `end_of_stream`, status 204",
    expected="one answer",
    source=ENVOY,
)
async def passes_a_response_without_body(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        await conversation.ask(peer.chat())
        outcome = await conversation.respond(ResponseVector(None, status=204))
        await conversation.close()
    kinds = [*outcome.kinds, *ResponseOutcome(conversation.extra).kinds]
    return judge(kinds == ["response_headers"], describe_kinds(kinds) or describe_end(outcome.end))


@conformance_case(
    608,
    MUST,
    "An answer of the data plane itself, or an error of an endpoint, passes like any other response.",
    sent="503 with a text, as Envoy answers when the endpoint refuses the connection; 500 with JSON",
    expected="the whole body",
    source=ENVOY,
)
async def passes_errors(peer: PickerPeer) -> CaseResult:
    refused = b"upstream connect error or disconnect/reset before headers. reset reason: connection refused"
    findings = []
    for response in (
        ResponseVector((refused,), status=503, content_type="text/plain"),
        ResponseVector((b'{"error": {"message": "out of memory", "code": 500}}',), status=500),
    ):
        _, outcome = await _respond(peer, response)
        findings.append(_judge_whole(response, outcome, exact=False))
    return judge_all(findings)


@conformance_case(
    609,
    MUST,
    "The picker stays to the end of the response: when it ends its stream before, the rest is lost.",
    sent=f"a stream of {PIECES} pieces",
    expected="the same bytes",
    source=ENVOY,
)
async def stays_to_the_end(peer: PickerPeer) -> CaseResult:
    response = ResponseVector((*EVENTS * (PIECES // len(EVENTS)), USAGE, DONE), content_type=SSE)
    _, outcome = await _respond(peer, response)
    return _judge_whole(response, outcome)


@conformance_case(
    610,
    MUST,
    "The endpoint that served is told in the response's metadata, and need not be the first choice.",
    sent="`x-gateway-destination-endpoint-served`, and the attribute `upstream.address`, with the first and the last "
    "endpoint, with an unknown address, and not at all",
    expected="the whole body each time, and a choice for the next request",
    source=EPP,
)
async def takes_the_served_endpoint(peer: PickerPeer) -> CaseResult:
    findings = []
    for served in (peer.endpoints[0], peer.endpoints[-1], "192.0.2.1:8000", None):
        response = ResponseVector((ANSWER,), served=served)
        _, outcome = await _respond(peer, response)
        findings.append(_judge_whole(response, outcome, exact=False))
    async with peer.converse() as conversation:
        after = await conversation.ask(peer.chat())
    return judge_all([*findings, judge(bool(after.endpoints), f"then {describe_request(after)}")])


@conformance_case(
    611,
    MAY,
    f"The served endpoint is shown in the response header `{SERVED_HEADER}`, for tests of gateways.",
    sent="`x-gateway-destination-endpoint-served` with an endpoint",
    expected="the header with this endpoint; skipped where there is no such header",
    source=LWEPP,
)
async def shows_the_served_endpoint(peer: PickerPeer) -> CaseResult:
    served = peer.endpoints[0]
    _, outcome = await _respond(peer, ResponseVector((ANSWER,), served=served))
    shown = outcome.set_headers.get(SERVED_HEADER)
    if shown is None:
        return skip("the picker sets no such header")
    return judge(shown == served, f"served {served}, header {shown}")


@conformance_case(
    612,
    SHOULD,
    "A stream that begins with the response is passed on: requests may have been placed by somebody else.",
    sent="a response without a request before it",
    expected="an answer to the headers, and the whole body",
    source=LLMD,
)
async def passes_a_response_alone(peer: PickerPeer) -> CaseResult:
    response = ResponseVector((ANSWER,))
    async with peer.converse() as conversation:
        outcome = await conversation.respond(response)
    return _judge_whole(response, outcome, exact=False)


@conformance_case(
    613,
    SHOULD,
    "No piece that is sent back has `end_of_stream` when trailers follow.",
    sent="a stream without `end_of_stream`, then `response_trailers`",
    expected="pieces without `end_of_stream`",
    source=ENVOY,
)
async def ends_with_the_trailers(peer: PickerPeer) -> CaseResult:
    response = ResponseVector((*EVENTS, DONE), content_type=SSE, trailers=TRAILERS)
    _, outcome = await _respond(peer, response)
    return judge(bool(outcome.body.pieces) and not outcome.body.ends, describe_body(outcome.body, response.body))


CASES = (
    passes_json_in_pieces,
    passes_what_is_not_json,
    passes_an_empty_last_piece,
    streams_token_by_token,
    passes_usage,
    passes_trailers,
    passes_a_response_without_body,
    passes_errors,
    stays_to_the_end,
    takes_the_served_endpoint,
    shows_the_served_endpoint,
    passes_a_response_alone,
    ends_with_the_trailers,
)
