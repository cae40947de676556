"""The data path of a proxy: one attempt is relayed to an engine, or to a prefill/decode pair in the way in which its KV
is handed over.
"""

from __future__ import annotations

from collections.abc import Awaitable

from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.vllm.disaggregation import NIXL_PREFILL, decode_body, mooncake_params, prefill_body
from router.prompt.answer_ids import ContinuationBudget
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Endpoint, Prompt
from router.proxy.call import ClientRequest
from router.proxy.disaggregated import PrefillLeg, relay_after, relay_beside
from router.proxy.headers import ForwardedHeaders, HeaderRules, TraceHeader
from router.proxy.relay import OutgoingRequest, RelayEnd, relay
from router.proxy.token_ids import TokenIdUpstreams
from router.proxy.upstreams import Upstream, UpstreamRequest, Upstreams, UpstreamTimeouts
from router.request.data_path import AttemptWatch
from router.request.request import Request
from router.request.token_ids import AttemptPassthrough, offer_token_ids
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.ticket import PrefillBooking, Ticket
from router.telemetry.trace_context import PREFILL, TraceContext, attempt_number


class AttemptHeaders:
    """The headers for the engine that answers, and for the one that computes the prompt, where there is one."""

    def __init__(self, answer: ForwardedHeaders, prefill: ForwardedHeaders) -> None:
        self.answer = answer
        self.prefill = prefill


class RelayPath:
    """A `DataPath` (`data_path.py`)."""

    def __init__(
        self,
        upstreams: Upstreams,
        passthrough: TokenIdPassthrough,
        header_rules: HeaderRules,
        limits: UpstreamTimeouts,
        peers: PrefillPeers,
        *,
        continuation_bytes: int = 0,
    ) -> None:
        self._budget = ContinuationBudget(continuation_bytes)
        self._upstreams = upstreams
        self._passthrough = passthrough
        self._header_rules = header_rules
        self._limits = limits
        self._peers = peers

    @property
    def renames(self) -> bool:
        return True

    @property
    def implies_model(self) -> bool:
        return True  # as vLLM does

    def excludes(self, call: ClientRequest) -> set[str]:
        return set()

    def follow(self, prompt: Prompt) -> ContinuableStream | None:
        if prompt.uncontinuable is not None:
            return None
        return ContinuableStream(
            self._budget,
            chat=prompt.endpoint is Endpoint.CHAT,
            tools=prompt.has_tools,
            stop=prompt.stop,
            hide_ids=prompt.hide_ids,
            hide_usage=prompt.hide_usage,
        )

    async def run(
        self, call: ClientRequest, request: Request, ticket: Ticket, handed: bytes | None, watch: AttemptWatch
    ) -> RelayEnd:
        headers = self._build_headers(call, request, ticket)
        outgoing = build_outgoing(call, request, headers.answer, ticket)
        offered: AttemptPassthrough | None = None
        if request.known is not None:
            offered = offer_token_ids(request, ticket, self._passthrough)
        if offered is None:
            with watch:
                end = await self._send(call, outgoing, headers.prefill, ticket, handed, self._upstreams, watch)
                watch.on_end(end)
            return end
        with offered, watch:
            upstreams: Upstream = self._upstreams
            if offered.instances:
                answering = ticket.target.instance.id
                upstreams = TokenIdUpstreams(
                    upstreams, outgoing.body, answering, offered.ids, offered.instances, offered.on_refusal
                )
            end = await self._send(call, outgoing, headers.prefill, ticket, handed, upstreams, watch)
            watch.on_end(end)
        return end

    def _build_headers(self, call: ClientRequest, request: Request, ticket: Ticket) -> AttemptHeaders:
        """Return the headers of the attempt; with tracing each call to an engine gets a `traceparent` of its own."""
        record, trace = ticket.record, request.trace
        if trace is None:
            headers = self._header_rules.forward(call.headers, record.id)
            return AttemptHeaders(headers, headers)
        number = attempt_number(len(record.attempts) - 1)
        answer = prefill = self._forward(call, record.id, trace, number)
        if ticket.prefill is not None:
            prefill = self._forward(call, record.id, trace, number + PREFILL)
        return AttemptHeaders(answer, prefill)

    def _forward(self, call: ClientRequest, record: str, trace: TraceContext, number: int) -> ForwardedHeaders:
        return self._header_rules.forward(call.headers, record, TraceHeader(trace.traceparent(number), trace.begun))

    def _send(
        self,
        call: ClientRequest,
        outgoing: OutgoingRequest,
        prefill_headers: ForwardedHeaders,
        ticket: Ticket,
        handed: bytes | None,
        upstreams: Upstream,
        watch: AttemptWatch,
    ) -> Awaitable[RelayEnd]:
        """Relay to one engine, or to a pair by the transfer that its instances use (Mooncake or Nixl)."""
        limits, half = self._limits, ticket.prefill
        if half is None:
            if handed is not None:
                outgoing = outgoing.with_body(decode_body(outgoing.body, handed))
            return relay(call, upstreams, outgoing, limits, watch)
        if (peer := self._peers.mooncake_peer(half.target)) is None:
            prefill = build_prefill(outgoing, prefill_headers, half, NIXL_PREFILL)
            return relay_after(call, upstreams, prefill, outgoing, limits, watch)
        transfer_id = f"xfer-{ticket.record.id}-{len(ticket.record.attempts)}"  # of this attempt only
        params = mooncake_params(transfer_id, peer.bootstrap_url, peer.engine_id)
        prefill = build_prefill(outgoing, prefill_headers, half, params.prefill)
        outgoing = outgoing.with_body(decode_body(outgoing.body, params.decode))
        return relay_beside(call, upstreams, prefill, outgoing, limits, watch)


def build_outgoing(call: ClientRequest, request: Request, headers: ForwardedHeaders, ticket: Ticket) -> OutgoingRequest:
    prompt, target = request.prompt, ticket.target
    return OutgoingRequest(
        instance=target.instance.id,
        target=target.id,
        record=ticket.record.id,
        method=call.method,
        path=call.target,
        headers=headers,
        body=prompt.body,
        rank=target.rank if target.instance.has_ranks else None,
        hides=prompt.hide_usage or prompt.hide_ids,
        endpoint=prompt.endpoint,
        waited_ms=ticket.record.stages.admission_ms,
        model=request.other_model,
        renames=request.rename is not None,
    )


def build_prefill(
    outgoing: OutgoingRequest, headers: ForwardedHeaders, half: PrefillBooking, params: bytes
) -> PrefillLeg:
    """Return the prefill half of the request that goes out to the answering target."""
    target = half.target
    rank = target.rank if target.instance.has_ranks else None
    body = prefill_body(outgoing.endpoint, outgoing.body, params)
    request = UpstreamRequest(outgoing.method, outgoing.path, headers, body, rank)
    return PrefillLeg(target.instance.id, target.id, outgoing.record, outgoing.endpoint, request)
