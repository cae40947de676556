"""4xx: request bodies with FULL_DUPLEX_STREAMED. What the picker does not send back never reaches an endpoint."""

from __future__ import annotations

from dataclasses import replace

from tests.picker_conformance.case import (
    ENVOY,
    EPP,
    LLMD,
    MUST,
    SHOULD,
    CaseResult,
    conformance_case,
    judge,
    judge_all,
    skip,
)
from tests.picker_conformance.conversation import RequestOutcome
from tests.picker_conformance.describe import (
    count_pieces,
    describe_body,
    describe_kinds,
    describe_request,
    is_same_body,
)
from tests.picker_conformance.messages import RequestVector, chat_body, cut
from tests.picker_conformance.peer import PickerPeer

LONG_CHARS, HUGE_CHARS = 320_000, 6_000_000
ENVOY_PIECE_BYTES = 16_384  # what Envoy reads from a socket at once
ENVOY_BUFFER_BYTES = 1 << 20  # `per_connection_buffer_limit_bytes`, by default
LARGEST_PIECE_BYTES = 64 << 10
TRAILERS = (("x-checksum", "0"),)


async def _ask(peer: PickerPeer, request: RequestVector) -> RequestOutcome:
    async with peer.converse() as conversation:
        return await conversation.ask(request)


def _judge_whole(request: RequestVector, outcome: RequestOutcome) -> CaseResult:
    """Pass when the request was placed and its whole body sent back, with `end_of_stream` where it is due."""
    if outcome.end is not None or outcome.refusal is not None or not outcome.endpoints:
        return judge(False, describe_request(outcome))
    whole = is_same_body(request.body, outcome.body.content)
    ends = request.trailers is not None or outcome.body.ends_once
    return judge(whole and ends, describe_body(outcome.body, request.body))


@conformance_case(
    401,
    MUST,
    "The whole body is sent back as `streamed_response`; fields may be added, and `model` rewritten.",
    sent="a chat completion request in one piece",
    expected="the same JSON object, its last piece with `end_of_stream`, no other one",
    source=ENVOY,
)
async def sends_the_body_back(peer: PickerPeer) -> CaseResult:
    request = peer.chat()
    return _judge_whole(request, await _ask(peer, request))


@conformance_case(
    402,
    MUST,
    "The answer to the headers comes before the body, and trailers come last.",
    sent="a chat completion request with trailers",
    expected="`request_headers` once, `request_body`, `request_trailers` once",
    source=ENVOY,
)
async def keeps_the_order(peer: PickerPeer) -> CaseResult:
    outcome = await _ask(peer, replace(peer.chat(), trailers=TRAILERS))
    order = list(dict.fromkeys(outcome.kinds))
    once = outcome.kinds.count("request_headers") == outcome.kinds.count("request_trailers") == 1
    expected = ["request_headers", "request_body", "request_trailers"]
    return judge(order == expected and once, describe_kinds(outcome.kinds) or describe_request(outcome))


@conformance_case(
    403,
    MUST,
    "A body may be cut anywhere: the picker collects the pieces.",
    sent="a request cut in a JSON string, in a UTF-8 character, and into single bytes",
    expected="a choice and the whole body, each time",
    source=f"{ENVOY}, {LLMD}",
)
async def collects_pieces(peer: PickerPeer) -> CaseResult:
    body = chat_body(peer.fleet.model, "Größe? 🙂 gut")
    in_string, in_character = body.index(b"role") + 2, body.index("🙂".encode()) + 2
    findings = []
    for pieces in (
        (body[:in_string], body[in_string:]),
        (body[:in_character], body[in_character:]),
        cut(body, 1),
    ):
        request = peer.chat(*pieces)
        findings.append(_judge_whole(request, await _ask(peer, request)))
    return judge_all(findings)


@conformance_case(
    404,
    MUST,
    "The last piece may be empty and only say `end_of_stream`.",
    sent="the body in one piece, then an empty one with `end_of_stream`",
    expected="a choice and the whole body",
    source=f"{ENVOY}, {LLMD}",
)
async def takes_an_empty_last_piece(peer: PickerPeer) -> CaseResult:
    request = peer.chat(chat_body(peer.fleet.model), b"")
    return _judge_whole(request, await _ask(peer, request))


@conformance_case(
    405,
    MUST,
    "Trailers end a body as `end_of_stream` does.",
    sent="a body without `end_of_stream`, then `request_trailers`",
    expected="a choice, the whole body, an answer to the trailers",
    source=ENVOY,
)
async def takes_trailers_for_the_end(peer: PickerPeer) -> CaseResult:
    request = replace(peer.chat(), trailers=TRAILERS)
    return _judge_whole(request, await _ask(peer, request))


@conformance_case(
    406,
    MUST,
    "Long prompts go through.",
    sent="a body of 320 KB in pieces of 16 KiB, as Envoy sends it",
    expected="a choice and the whole body",
    source=EPP,
)
async def passes_a_long_body(peer: PickerPeer) -> CaseResult:
    request = peer.chat(*cut(chat_body(peer.fleet.model, "word " * (LONG_CHARS // 5)), ENVOY_PIECE_BYTES))
    return _judge_whole(request, await _ask(peer, request))


@conformance_case(
    407,
    SHOULD,
    "Very long bodies go through, or are refused with 413.",
    sent="a body of 6 MB in pieces of 16 KiB",
    expected="a choice and the whole body, or `ImmediateResponse` 413",
    source=LLMD,
)
async def passes_a_huge_body(peer: PickerPeer) -> CaseResult:
    request = peer.chat(*cut(chat_body(peer.fleet.model, "word " * (HUGE_CHARS // 5)), ENVOY_PIECE_BYTES))
    outcome = await _ask(peer, request)
    if outcome.status == 413:
        return judge(True, describe_request(outcome))
    return _judge_whole(request, outcome)


@conformance_case(
    408,
    SHOULD,
    "One piece may be as large as the data plane's buffer: Envoy's holds 1 MiB unless it is told otherwise.",
    sent="a body of 1 MiB in one piece",
    expected="a choice and the whole body, or `ImmediateResponse` 413",
    source=ENVOY,
)
async def takes_a_large_piece(peer: PickerPeer) -> CaseResult:
    frame = len(chat_body(peer.fleet.model, ""))
    request = peer.chat(chat_body(peer.fleet.model, "x" * (ENVOY_BUFFER_BYTES - frame)))
    outcome = await _ask(peer, request)
    if outcome.status == 413:
        return judge(True, describe_request(outcome))
    return _judge_whole(request, outcome)


@conformance_case(
    409,
    SHOULD,
    "Pieces that are sent back have 64 KiB at most: some data planes take no larger ones.",
    sent="a body of 320 KB in pieces of 16 KiB",
    expected="no larger piece",
    source=ENVOY,
)
async def sends_small_pieces(peer: PickerPeer) -> CaseResult:
    request = peer.chat(*cut(chat_body(peer.fleet.model, "word " * (LONG_CHARS // 5)), ENVOY_PIECE_BYTES))
    outcome = await _ask(peer, request)
    largest = max((len(piece.body) for piece in outcome.body.pieces), default=0)
    received = f"{count_pieces(outcome.body)}, the largest of {largest:,} bytes"
    return judge(0 < largest <= LARGEST_PIECE_BYTES, received if largest else describe_request(outcome))


@conformance_case(
    410,
    SHOULD,
    "A `content-length` that the picker sets is that of the body which it sends back.",
    sent="a chat completion request",
    expected="the same number of bytes; skipped where the picker sets none",
    source=ENVOY,
)
async def sets_the_right_length(peer: PickerPeer) -> CaseResult:
    outcome = await _ask(peer, peer.chat())
    if outcome.choosing is None:
        return judge(False, describe_request(outcome))
    options = outcome.choosing.request_headers.response.header_mutation.set_headers
    lengths = [one.header.raw_value.decode("latin-1") for one in options if one.header.key.lower() == "content-length"]
    if not lengths:
        return skip("the picker sets no content-length")
    real = len(outcome.body.content)
    return judge(lengths == [str(real)], f"content-length {', '.join(lengths)}, body of {real:,} bytes")


@conformance_case(
    411,
    SHOULD,
    "No piece that is sent back has `end_of_stream` when trailers follow.",
    sent="a body without `end_of_stream`, then `request_trailers`",
    expected="pieces without `end_of_stream`",
    source=ENVOY,
)
async def ends_with_the_trailers(peer: PickerPeer) -> CaseResult:
    request = replace(peer.chat(), trailers=TRAILERS)
    outcome = await _ask(peer, request)
    return judge(bool(outcome.body.pieces) and not outcome.body.ends, describe_body(outcome.body, request.body))


CASES = (
    sends_the_body_back,
    keeps_the_order,
    collects_pieces,
    takes_an_empty_last_piece,
    takes_trailers_for_the_end,
    passes_a_long_body,
    passes_a_huge_body,
    takes_a_large_piece,
    sends_small_pieces,
    sets_the_right_length,
    ends_with_the_trailers,
)
