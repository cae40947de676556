"""One attempt at a request: to one engine, or to a prefill/decode pair in the way in which its KV is handed over."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass

from router.backends.vllm.disaggregation import NIXL_PREFILL, decode_body, mooncake_params, prefill_body
from router.prompt.prompt import Prompt
from router.proxy.call import ClientRequest
from router.proxy.disaggregated import PrefillLeg, relay_after, relay_beside
from router.proxy.headers import ForwardedHeaders
from router.proxy.relay import OutgoingRequest, RelayEnd, RelayNotStarted, relay
from router.proxy.upstreams import Upstream, UpstreamRequest
from router.request.response_observer import HandedOverKv, ResponseObserver
from router.request.services import PreparedRequest, Services
from router.request.token_ids import with_token_ids
from router.scheduling.ticket import PrefillBooking, Ticket


@dataclass(slots=True)
class EarlierAttempts:
    """The result of earlier attempts at a request that the next one needs."""

    failed: set[str]  # target ids
    handed_over: HandedOverKv | None = None


async def attempt(
    call: ClientRequest,
    request: PreparedRequest,
    headers: ForwardedHeaders,
    ticket: Ticket,
    earlier: EarlierAttempts,
    services: Services,
) -> RelayEnd:
    """Relay the request to the target of `ticket`. The booking is given back whatever happens."""
    observer = ResponseObserver(ticket, request, services)
    try:
        with with_token_ids(request, ticket, services) as upstreams, observer:
            outgoing = build_outgoing(call, request.prompt, headers, ticket)
            end = await send(call, outgoing, ticket, earlier.handed_over, upstreams, observer, services)
            observer.on_end(end)
    finally:
        services.scheduler.settle(ticket)
    if isinstance(end, RelayNotStarted):
        earlier.handed_over = keep_handed_over(observer.handed_over or earlier.handed_over, end, services.clock.now())
        culprit = ticket.prefill.target if end.prefill and ticket.prefill is not None else ticket.target
        earlier.failed.add(culprit.id)
        if end.reason != "busy":
            services.health.suspect(culprit.instance.id)
    return end


def send(
    call: ClientRequest,
    outgoing: OutgoingRequest,
    ticket: Ticket,
    handed_over: HandedOverKv | None,
    upstreams: Upstream,
    observer: ResponseObserver,
    services: Services,
) -> Awaitable[RelayEnd]:
    """Relay to one engine, or to a pair by the transfer that its instances use (Mooncake or Nixl)."""
    limits, half = services.config.limits, ticket.prefill
    if half is None:
        if handed_over is not None:
            outgoing = outgoing._replace(body=decode_body(outgoing.body, handed_over.params))
        return relay(call, upstreams, outgoing, limits, observer)
    if (peer := services.scheduler.peers.mooncake_peer(half.target)) is None:
        return relay_after(call, upstreams, build_prefill(outgoing, half, NIXL_PREFILL), outgoing, limits, observer)
    transfer_id = f"xfer-{ticket.record.id}-{len(ticket.record.attempts)}"  # of this attempt only
    params = mooncake_params(transfer_id, peer.bootstrap_url, peer.engine_id)
    prefill = build_prefill(outgoing, half, params.prefill)
    outgoing = outgoing._replace(body=decode_body(outgoing.body, params.decode))
    return relay_beside(call, upstreams, prefill, outgoing, limits, observer)


def keep_handed_over(handed_over: HandedOverKv | None, end: RelayNotStarted, now: float) -> HandedOverKv | None:
    """Return handed-over KV that another engine may still fetch. An engine that took the request may have fetched and
    so freed it; one that turned the request away drops it.
    """
    return handed_over if handed_over is not None and end.reason == "connect" and now < handed_over.until_s else None


def build_outgoing(call: ClientRequest, prompt: Prompt, headers: ForwardedHeaders, ticket: Ticket) -> OutgoingRequest:
    target = ticket.target
    return OutgoingRequest(
        instance=target.instance.id,
        target=target.id,
        record=ticket.record.id,
        method=call.method,
        path=call.target,
        headers=headers,
        body=prompt.body,
        rank=target.rank if target.instance.has_ranks else None,
        hides=prompt.hide_usage,
        endpoint=prompt.endpoint,
        waited_ms=ticket.record.stages.admission_ms,
    )


def build_prefill(outgoing: OutgoingRequest, half: PrefillBooking, params: bytes) -> PrefillLeg:
    """Return the prefill half of the request that goes out to the answering target."""
    target = half.target
    rank = target.rank if target.instance.has_ranks else None
    body = prefill_body(outgoing.endpoint, outgoing.body, params)
    request = UpstreamRequest(outgoing.method, outgoing.path, outgoing.headers, body, rank)
    return PrefillLeg(target.instance.id, target.id, outgoing.record, outgoing.endpoint, request)
