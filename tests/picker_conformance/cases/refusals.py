"""5xx: refusals, and requests that are wrong."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

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
    describe_end,
    describe_kinds,
    describe_request,
    is_same_body,
)
from tests.picker_conformance.messages import chat_body
from tests.picker_conformance.peer import PickerPeer
from tests.picker_conformance.stream import StreamEnd

NOWHERE = ["192.0.2.1:8000"]
NOT_JSON = (b"no healthy upstream", b'{"model": "m", "messages": [', b"\xff\xfe\x00")
FLOOD = 64  # requests that are open at the same time


@conformance_case(
    501,
    MUST,
    "Without any ready endpoint a request is refused with 503.",
    sent="a chat completion request, to a picker whose pool is empty",
    expected="`ImmediateResponse` 503",
    source=EPP,
    needs_endpoint=False,
)
async def refuses_without_endpoints(peer: PickerPeer) -> CaseResult:
    if peer.endpoints:
        return skip("the picker has endpoints; run the suite against one whose pool is empty")
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat())
    return judge(outcome.status == 503, describe_request(outcome))


@conformance_case(
    502,
    MUST,
    "A request that is dropped because endpoints are loaded is refused with 429.",
    sent=f"{FLOOD} requests, none of which ends before all are asked",
    expected="`ImmediateResponse` 429 for those that are refused; skipped where none is",
    source=EPP,
)
async def refuses_with_429_when_loaded(peer: PickerPeer) -> CaseResult:
    async with AsyncExitStack() as opened:
        conversations = [await opened.enter_async_context(peer.converse()) for _ in range(FLOOD)]
        requests = [peer.chat(prompt=f"Flood {number}") for number in range(FLOOD)]
        outcomes = await asyncio.gather(
            *(one.ask(request) for one, request in zip(conversations, requests, strict=True))
        )
    placed = sum(bool(one.endpoints) for one in outcomes)
    refused = [one for one in outcomes if one.refusal is not None]
    counts = f"of {FLOOD} open requests {placed} placed, {FLOOD - placed - len(refused)} waiting"
    if not refused:
        return skip(f"{counts}, none refused")
    other = next((one for one in refused if one.status != 429), refused[0])
    return judge(other.status == 429, f"{counts}; {describe_request(other)}")


@conformance_case(
    503,
    MUST,
    "A refusal is an `ImmediateResponse` with a status that is an error.",
    sent="a subset without any endpoint; a body that is not JSON",
    expected="a status from 400 to 599, wherever there is a refusal",
    source=ENVOY,
)
async def refuses_with_an_error_status(peer: PickerPeer) -> CaseResult:
    findings = []
    for request in (peer.within(NOWHERE), peer.chat(NOT_JSON[0])):
        async with peer.converse() as conversation:
            outcome = await conversation.ask(request)
        if outcome.status is not None:
            findings.append(judge(400 <= outcome.status < 600, f"status {outcome.status}"))
    return judge_all(findings) if findings else skip("the picker refused neither")


@conformance_case(
    504,
    MUST,
    "After an `ImmediateResponse` nothing more is sent: it ends the conversation.",
    sent="a subset without any endpoint, with the body in pieces",
    expected="`ImmediateResponse` as the only message, then the end of the stream",
    source=ENVOY,
)
async def says_nothing_after_a_refusal(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        request = peer.within(NOWHERE)
        outcome = await conversation.ask(request)
        end = await conversation.close()
    kinds = [*outcome.kinds, *RequestOutcome(conversation.extra).kinds]
    ended = isinstance(end, StreamEnd) and end.ok
    return judge(kinds == ["immediate_response"] and ended, f"{describe_kinds(kinds)}, {describe_end(end)}")


@conformance_case(
    505,
    SHOULD,
    "A refusal says why, in a body with a content type.",
    sent="a subset without any endpoint",
    expected="a body, and `content-type` among the headers",
    source=LLMD,
)
async def says_why_it_refuses(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.within(NOWHERE))
    if outcome.refusal is None:
        return judge(False, describe_request(outcome))
    types = [
        one.header.raw_value.decode("latin-1")
        for one in outcome.refusal.headers.set_headers
        if one.header.key.lower() == "content-type"
    ]
    received = f"{describe_request(outcome)}; content-type {', '.join(types) or 'missing'}"
    return judge(bool(outcome.refusal.body and types), received)


@conformance_case(
    506,
    MUST,
    "A body that is not JSON is answered: passed on whole, or refused as the client's fault.",
    sent="a text, a JSON object that is cut off, and bytes that are not UTF-8",
    expected="a choice and the whole body, or `ImmediateResponse` 4xx, each time",
    source=ENVOY,
)
async def answers_what_is_not_json(peer: PickerPeer) -> CaseResult:
    findings = []
    for body in NOT_JSON:
        async with peer.converse() as conversation:
            outcome = await conversation.ask(peer.chat(body))
        refused = outcome.status is not None and 400 <= outcome.status < 500
        passed_on = bool(outcome.endpoints) and outcome.body.content == body
        findings.append(judge(refused or passed_on, describe_request(outcome)))
    return judge_all(findings)


@conformance_case(
    507,
    SHOULD,
    "A body that is not JSON is refused with 400.",
    sent="a text as the body of a chat completion request",
    expected="`ImmediateResponse` 400",
    source=LLMD,
)
async def refuses_what_is_not_json(peer: PickerPeer) -> CaseResult:
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat(NOT_JSON[0]))
    return judge(outcome.status == 400, describe_request(outcome))


@conformance_case(
    508,
    MUST,
    "A request without `model` is answered: passed on whole, or refused as the client's fault.",
    sent="a chat completion request without `model`",
    expected="a choice and the whole body, or `ImmediateResponse` 4xx",
    source=ENVOY,
)
async def answers_without_a_model(peer: PickerPeer) -> CaseResult:
    body = chat_body("").replace(b'"model": "", ', b"")
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat(body))
    refused = outcome.status is not None and 400 <= outcome.status < 500
    passed_on = bool(outcome.endpoints) and is_same_body(body, outcome.body.content)
    return judge(refused or passed_on, describe_request(outcome))


@conformance_case(
    509,
    SHOULD,
    "A request without `model` is refused with 400.",
    sent="a chat completion request without `model`",
    expected="`ImmediateResponse` 400",
    source=LLMD,
)
async def refuses_without_a_model(peer: PickerPeer) -> CaseResult:
    body = chat_body("").replace(b'"model": "", ', b"")
    async with peer.converse() as conversation:
        outcome = await conversation.ask(peer.chat(body))
    return judge(outcome.status == 400, describe_request(outcome))


CASES = (
    refuses_without_endpoints,
    refuses_with_429_when_loaded,
    refuses_with_an_error_status,
    says_nothing_after_a_refusal,
    says_why_it_refuses,
    answers_what_is_not_json,
    refuses_what_is_not_json,
    answers_without_a_model,
    refuses_without_a_model,
)
