"""2xx: the destination endpoint."""

from __future__ import annotations

from contextlib import AsyncExitStack

from router.picker.names import DESTINATION
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
from tests.picker_conformance.conversation import RequestOutcome, apply_option, is_endpoint
from tests.picker_conformance.describe import describe_kinds, describe_request, is_same_body
from tests.picker_conformance.peer import MODELS_PATH, PickerPeer

ELSEWHERE = "192.0.2.1:8000"  # a documentation address (RFC 5737): no endpoint of anybody


@conformance_case(
    201,
    MUST,
    f"The choice is set as the request header `{DESTINATION}`.",
    sent="a chat completion request",
    expected="the header, in the header mutation of the answer to the request's headers",
    source=EPP,
)
async def sets_the_header(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    early = outcome.choosing is not None and outcome.choosing.HasField("request_headers")
    return judge(early and bool(outcome.header), describe_request(outcome))


@conformance_case(
    202,
    MUST,
    f"The choice is set as dynamic metadata `{DESTINATION}` in the namespace `envoy.lb`.",
    sent="a chat completion request",
    expected="the metadata, in the message that sets the header",
    source=EPP,
)
async def sets_the_metadata(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    if outcome.metadata is None:
        return judge(False, f"no metadata; {describe_request(outcome)}")
    carrier = outcome.choosing or outcome.messages[0]
    return judge(
        "envoy.lb" in carrier.dynamic_metadata.fields,
        f"metadata {outcome.metadata} in {describe_kinds(outcome.kinds)}",
    )


@conformance_case(
    203,
    MUST,
    "Header and metadata never differ.",
    sent="four requests: two with a body, two without",
    expected="the same value in both, for each that is placed",
    source=EPP,
)
async def header_and_metadata_agree(peer: PickerPeer) -> CaseResult:
    findings = []
    for request in (peer.chat(), peer.get(), peer.chat(prompt="And now?"), peer.get()):
        async with peer.converse() as conversation:
            outcome = await conversation.ask(request)
        if request.pieces is not None or outcome.refusal is None:
            same = outcome.header is not None and outcome.header == outcome.metadata
            findings.append(judge(same, f"header {outcome.header}, metadata {outcome.metadata}"))
    return judge_all(findings)


@conformance_case(
    204,
    MUST,
    "The value is one `ip:port`, or several with commas between them in the order in which to try them.",
    sent="a chat completion request",
    expected="addresses, not names; IPv6 in brackets",
    source=EPP,
)
async def names_addresses(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    well_formed = bool(outcome.endpoints) and all(map(is_endpoint, outcome.endpoints))
    return judge(well_formed, describe_request(outcome))


@conformance_case(
    205,
    MUST,
    "The header's value is in `raw_value`, which is what Envoy reads; `value` does not say anything else.",
    sent="a chat completion request",
    expected="`raw_value` set, `value` empty or the same",
    source=ENVOY,
)
async def uses_raw_value(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    option = outcome.header_option
    if option is None:
        return judge(False, describe_request(outcome))
    raw, text = option.header.raw_value, option.header.value
    return judge(
        bool(raw) and text in ("", raw.decode("latin-1")), f"raw_value {raw.decode('latin-1')!r}, value {text!r}"
    )


@conformance_case(
    206,
    MUST,
    "The header replaces one that the client sent: a client does not choose its own destination.",
    sent=f"a request whose client set `{DESTINATION}: {ELSEWHERE}`",
    expected="a mutation that leaves the picker's choice alone, whether the header was there or not",
    source=EPP,
)
async def replaces_the_client_s_header(peer: PickerPeer) -> CaseResult:
    client = ((DESTINATION, ELSEWHERE),)
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat(headers=client))
    option = outcome.header_option
    if option is None:
        return judge(False, describe_request(outcome))
    with_it, without_it = apply_option(option, client), apply_option(option, ())
    received = f"append_action {option.append_action}: {with_it} where the client set it, {without_it} where not"
    return judge(ELSEWHERE not in outcome.endpoints and with_it == without_it == [outcome.metadata], received)


@conformance_case(
    207,
    MUST,
    "A request without a body is answered at its headers.",
    sent="a GET, whose `request_headers` has `end_of_stream`",
    expected="one answer: a choice, or an `ImmediateResponse`",
    source=EPP,
)
async def places_a_request_without_body(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.get())
        await conversation.close()
    kinds = [*outcome.kinds, *RequestOutcome(conversation.extra).kinds]
    decided = bool(outcome.endpoints) or outcome.refusal is not None
    received = describe_request(outcome) if len(kinds) < 2 else describe_kinds(kinds)
    return judge(decided and len(kinds) == 1, received)


@conformance_case(
    208,
    MUST,
    "Without a subset the choice is among the endpoints of the pool.",
    sent="eight requests",
    expected="only endpoints that --endpoint named",
    source=EPP,
)
async def chooses_from_the_pool(peer: PickerPeer) -> CaseResult:
    if not peer.pool:
        return skip("the endpoints of the pool are not known; name them with --endpoint")
    chosen: set[str] = set()
    for number in range(8):
        async with peer.converse() as conversation:
            chosen.update((await conversation.ask(peer.chat(prompt=f"Number {number}"))).endpoints)
    return judge(bool(chosen) and chosen <= set(peer.pool), f"chose {', '.join(sorted(chosen)) or 'nothing'}")


@conformance_case(
    209,
    SHOULD,
    "The answer that sets the header clears the route cache, for routes that depend on the header.",
    sent="a chat completion request",
    expected="`clear_route_cache`",
    source=LLMD,
)
async def clears_the_route_cache(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    cleared = outcome.choosing is not None and outcome.choosing.request_headers.response.clear_route_cache
    return judge(cleared, f"clear_route_cache: {str(cleared).lower()}")


@conformance_case(
    210,
    SHOULD,
    "`x-request-id` is not the key of a request: it may be missing, or be the same in several.",
    sent="a request without the header, and two at once with the same one",
    expected="a choice for each, and the whole body",
    source=LLMD,
)
async def needs_no_request_id(peer: PickerPeer) -> CaseResult:
    named = (("x-request-id", "made-up"),)
    requests = (peer.chat(), peer.chat(headers=named, prompt="First"), peer.chat(headers=named, prompt="Second"))
    findings = []
    async with AsyncExitStack() as opened:
        for request in requests:
            conversation = await opened.enter_async_context(peer.converse())
            outcome = await conversation.ask(request)
            whole = is_same_body(request.body, outcome.body.content)
            findings.append(judge(bool(outcome.endpoints) and whole, describe_request(outcome)))
    return judge_all(findings)


@conformance_case(
    211,
    SHOULD,
    "`GET /v1/models` has an answer: it is placed, or the picker answers by itself.",
    sent="`GET /v1/models`",
    expected="a choice, or `ImmediateResponse` 200",
    source=LLMD,
)
async def answers_for_the_models(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.get(path=MODELS_PATH))
    return judge(bool(outcome.endpoints) or outcome.status == 200, describe_request(outcome))


CASES = (
    sets_the_header,
    sets_the_metadata,
    header_and_metadata_agree,
    names_addresses,
    uses_raw_value,
    replaces_the_client_s_header,
    places_a_request_without_body,
    chooses_from_the_pool,
    clears_the_route_cache,
    needs_no_request_id,
    answers_for_the_models,
)
