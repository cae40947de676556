"""A pair: one engine computes the prompt and hands its KV to another, which answers.

    relay_beside    Mooncake: both halves at once; the decode engine waits for the KV by itself
    relay_after     Nixl: the prefill half's answer says where the KV lies and goes into the decode half, at once: the
                    KV is kept under a lease

The prefill half's answer itself is for nobody. Where that half fails before the other has begun to answer, the decode
half is taken back, because it would wait for KV that will not come: nothing was sent to the client, and the caller may
try another pair, or let the decode engine do it all. Once bytes have gone out the prefill half matters no more. The
client's leaving ends both.
"""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple, Protocol

from router.backends.vllm.disaggregation import decode_body, read_cut, read_handed
from router.prompt.prompt import Endpoint
from router.proxy.call import ClientRequest
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
)
from router.proxy.relay import ask as ask_decode
from router.proxy.upstreams import Upstream, UpstreamExchange, UpstreamRequest, UpstreamTimeouts, UpstreamUnanswered
from router.tasks import Tasks

ANSWER_BYTES = 8 * 1024 * 1024


class PrefillLeg(NamedTuple):
    """The prefill half on its way to one target."""

    instance: str
    target: str
    record: str
    endpoint: Endpoint
    question: UpstreamRequest


class PrefillResult(NamedTuple):
    """How it ended. `body`: of a good answer; `refusal`: of one that may be the client's to see."""

    end: Literal["ok", "rejected", "connect", "busy", "died", "failed", "deadline"]
    status: int | None = None
    body: bytes = b""
    refusal: EngineRefusal | None = None
    detail: str = ""


class PairWatch(RelayWatch, Protocol):
    def prefilled(self, prefilled: PrefillResult) -> None:
        """The prefill half is over. Not called when it was cut: the pair was over before it."""


async def relay_beside(
    call: ClientRequest,
    upstreams: Upstream,
    prefill: PrefillLeg,
    outgoing: OutgoingRequest,
    limits: UpstreamTimeouts,
    watch: PairWatch,
) -> RelayEnd:
    """Both halves at once. `outgoing` is the decode half, complete."""
    legs = Tasks("pair")
    beginning = asyncio.timeout(None)  # of the answer; it runs out when the prefill half has failed
    failure: PrefillResult | None = None

    async def beside() -> None:
        nonlocal failure
        prefilled = await ask_prefill(upstreams, prefill, limits)
        if prefilled.end == "ok" and not read_cut(prefill.endpoint, prefilled.body):
            prefilled = PrefillResult("failed", prefilled.status, detail="it stopped early and dropped the KV")
        watch.prefilled(prefilled)
        if prefilled.end != "ok" and waiting:
            failure = prefilled
            beginning.reschedule(asyncio.get_running_loop().time())

    waiting = True
    legs.spawn("prefill", beside())
    try:
        async with beginning:
            answer = await ask_decode(upstreams, outgoing, limits)
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
    """One half, then the other. `outgoing` is the client's request, to which is added what the first half hands over;
    where it hands nothing over, the decode engine computes the prompt itself.
    """
    prefilled = await ask_prefill(upstreams, prefill, limits)
    watch.prefilled(prefilled)
    if prefilled.end != "ok":
        return pair_end(prefilled)
    if (handed := read_handed(prefilled.body)) is not None:
        outgoing = outgoing._replace(body=decode_body(outgoing.body, handed))
    return await relay(call, upstreams, outgoing, limits, watch)


async def ask_prefill(upstreams: Upstream, prefill: PrefillLeg, limits: UpstreamTimeouts) -> PrefillResult:
    """The prefill half alone, to its end."""
    answer = await upstreams.ask(
        prefill.instance, prefill.question, first_byte_s=limits.first_byte_timeout_s, idle_s=limits.idle_timeout_s
    )
    if isinstance(answer, UpstreamUnanswered):
        return PrefillResult("deadline" if answer.reason == "late" else answer.reason, detail=answer.detail)
    with answer:
        if answer.status >= 400:
            return await _refused(answer, prefill)
        body = await answer.whole(ANSWER_BYTES)
        if answer.trouble is not None:
            return PrefillResult("died", answer.status, detail=answer.trouble.value)
        return PrefillResult("ok", answer.status, body or b"")


async def _refused(answer: UpstreamExchange, prefill: PrefillLeg) -> PrefillResult:
    refusal = await read_refusal(answer, prefill.target, prefill.record)
    detail = f"the prefill engine answered {answer.status}"
    if answer.status == BUSY:
        return PrefillResult("busy", answer.status, refusal=refusal, detail=detail)
    if answer.status < 500 and refusal is not None:
        return PrefillResult("rejected", answer.status, refusal=refusal, detail=detail)
    return PrefillResult("failed", answer.status, detail=detail)


def pair_end(prefilled: PrefillResult) -> RelayNotStarted | RelayDeadline | RelayRejected:
    """What a failed prefill half comes to for the pair."""
    match prefilled:
        case PrefillResult(end="rejected", refusal=refusal) if refusal is not None:
            return RelayRejected(refusal)
        case PrefillResult(end="connect" | "busy" | "died" | "failed" as end):
            return RelayNotStarted(end, prefilled.detail, prefilled.refusal, prefill=True)
        case _:
            return RelayDeadline()
