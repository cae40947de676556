"""Relays a prefill/decode pair: one engine computes the prompt and hands its KV to another, which answers.

    relay_beside    Mooncake: both halves at once; the decode engine waits for the KV by itself
    relay_after     Nixl: the prefill half's answer names the location of the KV and goes into the decode half, at
                    once, because the KV is retained only under a lease

The prefill half's answer is not relayed. If that half fails before the decode half has begun to answer, the decode
half is cancelled, because it would wait for KV that will never arrive. Nothing was sent to the client then, so the
caller may try another pair, or let the decode engine do the whole request. Once bytes have been sent to the client,
the prefill half no longer matters. A client that disconnects ends both halves.
"""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple, Protocol

from router.backends.vllm.disaggregation import decode_body, ended_by_length, read_kv_params
from router.prompt.prompt import Endpoint
from router.proxy.call import ClientRequest
from router.proxy.headers import content_encoding
from router.proxy.relay import (
    BUSY,
    EngineRefusal,
    OutgoingRequest,
    RelayDeadline,
    RelayEnd,
    RelayNotStarted,
    RelayRejected,
    RelayWatch,
    read_refusal,
    relay,
    relay_answer,
    send,
)
from router.proxy.upstreams import Upstream, UpstreamExchange, UpstreamTimeouts, UpstreamUnanswered
from router.tasks import Tasks

ANSWER_BYTES = 2 * 1024 * 1024  # the location of the KV of a million tokens takes 0.5 MB


class PrefillLeg(NamedTuple):
    """The prefill half on its way to one instance. `beside`: the decode half is sent at once, and waits for the KV
    by itself; otherwise the decode half is sent when the prefill half has ended.
    """

    outgoing: OutgoingRequest
    endpoint: Endpoint
    beside: bool


class PrefillResult(NamedTuple):
    """The end of a prefill half. `body`: of a good answer; `refusal`: a refusal that may be sent to the client."""

    end: Literal["ok", "rejected", "connect", "busy", "died", "failed", "deadline"]
    status: int | None = None
    body: bytes = b""
    refusal: EngineRefusal | None = None
    detail: str = ""


class PairWatch(RelayWatch, Protocol):
    def on_prefill_end(self, result: PrefillResult) -> None:
        """Handle the end of the prefill half. Not called if the half was cancelled: the pair ended."""


async def relay_beside(
    call: ClientRequest,
    upstreams: Upstream,
    prefill: PrefillLeg,
    outgoing: OutgoingRequest,
    limits: UpstreamTimeouts,
    watch: PairWatch,
) -> RelayEnd:
    """Run both halves at once. `outgoing` is the decode half, complete."""
    legs = Tasks("pair")
    until_begin = asyncio.timeout(None)  # for the decode half to begin; expires when the prefill half fails
    failure: PrefillResult | None = None

    async def run_beside() -> None:
        nonlocal failure
        result = await run_prefill(upstreams, prefill.outgoing, limits)
        if result.end == "ok" and not ended_by_length(prefill.endpoint, result.body):
            result = PrefillResult("failed", result.status, detail="it stopped early and dropped the KV")
        watch.on_prefill_end(result)
        if result.end != "ok" and waiting:
            failure = result
            until_begin.reschedule(asyncio.get_running_loop().time())

    waiting = True
    legs.spawn("prefill", run_beside())
    try:
        async with until_begin:
            answer = await send(upstreams, outgoing, limits)
        waiting = False
        return await relay_answer(call, answer, outgoing, watch)
    except TimeoutError:
        if failure is None:
            raise
        return pair_end(failure)
    finally:
        await legs.close()


async def relay_after(
    call: ClientRequest,
    upstreams: Upstream,
    prefill: PrefillLeg,
    outgoing: OutgoingRequest,
    limits: UpstreamTimeouts,
    watch: PairWatch,
) -> RelayEnd:
    """Run the prefill half, then the decode half. `outgoing` is the client's request, to which the parameters that
    the prefill half hands over are added; without any, the decode engine computes the prompt itself.
    """
    result = await run_prefill(upstreams, prefill.outgoing, limits)
    watch.on_prefill_end(result)
    if result.end != "ok":
        return pair_end(result)
    if (kv_transfer_params := read_kv_params(result.body)) is not None:
        outgoing = outgoing.with_body(decode_body(outgoing.request.body, kv_transfer_params))
    return await relay(call, upstreams, outgoing, limits, watch)


async def run_prefill(upstreams: Upstream, prefill: OutgoingRequest, limits: UpstreamTimeouts) -> PrefillResult:
    """Run the prefill half alone, to its end."""
    answer = await send(upstreams, prefill, limits)
    if isinstance(answer, UpstreamUnanswered):
        match answer.reason:
            case "late":
                return PrefillResult("deadline", detail=answer.detail)
            case "stuck":  # not of a prefill half, which nobody abandons
                return PrefillResult("died", detail=answer.detail)
            case reason:
                return PrefillResult(reason, detail=answer.detail)
    with answer:
        if answer.status >= 400:
            return await _read_failure(answer, prefill)
        body = await answer.read_all(ANSWER_BYTES)
        if answer.failure is not None:
            return PrefillResult("died", answer.status, detail=answer.failure.value)
        readable = body is not None and not content_encoding(answer.headers)
        return PrefillResult("ok", answer.status, body if readable and body is not None else b"")


async def _read_failure(answer: UpstreamExchange, prefill: OutgoingRequest) -> PrefillResult:
    refusal = await read_refusal(answer, prefill.labels)
    detail = f"the prefill engine answered {answer.status}"
    if answer.status == BUSY:
        return PrefillResult("busy", answer.status, refusal=refusal, detail=detail)
    if answer.status < 500 and refusal is not None:
        return PrefillResult("rejected", answer.status, refusal=refusal, detail=detail)
    return PrefillResult("failed", answer.status, detail=detail)


def pair_end(result: PrefillResult) -> RelayNotStarted | RelayDeadline | RelayRejected:
    """Return the end of a pair whose prefill half failed."""
    match result:
        case PrefillResult(end="rejected", refusal=refusal) if refusal is not None:
            return RelayRejected(refusal)
        case PrefillResult(end="connect" | "busy" | "died" | "failed" as end):
            return RelayNotStarted(end, result.detail, result.refusal, prefill=True)
        case _:
            return RelayDeadline()
