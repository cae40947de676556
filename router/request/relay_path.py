"""The data path of a proxy: it relays an attempt to an engine, or to a prefill/decode pair by the pair's KV
transfer protocol.
"""

from __future__ import annotations

from contextlib import nullcontext

from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.vllm.disaggregation import NIXL_PREFILL, decode_body, mooncake_params, prefill_body
from router.fleet.instance import Target
from router.prompt.answer_ids import ContinuationBudget
from router.prompt.continuable_stream import ContinuableStream
from router.prompt.prompt import Endpoint, Prompt
from router.proxy.call import ClientRequest
from router.proxy.disaggregated import PrefillLeg, relay_after, relay_beside
from router.proxy.headers import ForwardedHeaders, HeaderRules, TraceHeader
from router.proxy.relay import OutgoingRequest, RelayEnd, relay
from router.proxy.token_ids import TokenIdUpstreams
from router.proxy.upstreams import ExchangeHandle, Upstream, UpstreamRequest, Upstreams, UpstreamTimeouts
from router.request.data_path import AttemptWatch, label_answer
from router.request.request import Request
from router.request.stuck_engines import StuckEngines
from router.request.token_ids import offer_token_ids
from router.scheduling.prefill_peers import PrefillPeers
from router.scheduling.ticket import Ticket
from router.telemetry.trace_context import PREFILL, TraceContext, attempt_number

NOTHING = nullcontext()


class AttemptHeaders:
    """The headers for the answering engine, and for the prefill engine if the attempt is a pair."""

    def __init__(self, answer: ForwardedHeaders, prefill: ForwardedHeaders) -> None:
        self.answer = answer
        self.prefill = prefill


class RelayPath:
    """The `DataPath` (`data_path.py`) of a proxy."""

    def __init__(
        self,
        upstreams: Upstreams,
        passthrough: TokenIdPassthrough,
        header_rules: HeaderRules,
        limits: UpstreamTimeouts,
        peers: PrefillPeers,
        stuck_engines: StuckEngines,
        *,
        continuation_bytes: int = 0,
    ) -> None:
        self._budget = ContinuationBudget(continuation_bytes)
        self._upstreams = upstreams
        self._passthrough = passthrough
        self._header_rules = header_rules
        self._limits = limits
        self._peers = peers
        self._stuck_engines = stuck_engines

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
        self, request: Request, ticket: Ticket, kv_transfer_params: bytes | None, watch: AttemptWatch
    ) -> RelayEnd:
        outgoing, prefill = self._prepare(request, ticket, kv_transfer_params)
        offered = offer_token_ids(request, ticket, self._passthrough)
        upstreams: Upstream = self._upstreams
        if offered is not None and offered.instances:
            plain, answering = request.prompt.body, ticket.target.instance.id
            upstreams = TokenIdUpstreams(
                upstreams, plain, answering, offered.ids, offered.instances, offered.on_refusal
            )
        handle = outgoing.request.handle = ExchangeHandle()
        with offered or NOTHING, watch, self._stuck_engines.watch(request, ticket, watch, handle):
            if prefill is None:
                end = await relay(request.call, upstreams, outgoing, self._limits, watch)
            else:
                relay_pair = relay_beside if prefill.beside else relay_after
                end = await relay_pair(request.call, upstreams, prefill, outgoing, self._limits, watch)
            watch.on_end(end)
        return end

    def _prepare(
        self, request: Request, ticket: Ticket, kv_transfer_params: bytes | None
    ) -> tuple[OutgoingRequest, PrefillLeg | None]:
        """Return the request for the answering engine, and the request for the prefill engine; the latter is None
        if the answering engine computes the prompt.
        """
        headers, prompt, half = self._build_headers(request, ticket), request.prompt, ticket.prefill
        if half is None:
            body = prompt.body if kv_transfer_params is None else decode_body(prompt.body, kv_transfer_params)
            return build_outgoing(request, ticket, ticket.target, headers.answer, body), None
        if (peer := self._peers.mooncake_peer(half.target)) is None:
            body, params = prompt.body, NIXL_PREFILL
        else:
            transfer_id = f"xfer-{ticket.record.id}-{len(ticket.record.attempts)}"  # of this attempt only
            both = mooncake_params(transfer_id, peer.bootstrap_url, peer.engine_id)
            body, params = decode_body(prompt.body, both.decode), both.prefill
        outgoing = build_outgoing(request, ticket, ticket.target, headers.answer, body)
        body = prefill_body(prompt.endpoint, prompt.body, params)
        prefill = build_outgoing(request, ticket, half.target, headers.prefill, body)
        return outgoing, PrefillLeg(prefill, prompt.endpoint, beside=peer is not None)

    def _build_headers(self, request: Request, ticket: Ticket) -> AttemptHeaders:
        """Return the headers of the attempt. With tracing, each request to an engine gets its own `traceparent`."""
        call, record, trace = request.call, ticket.record, request.trace
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


def build_outgoing(
    request: Request, ticket: Ticket, target: Target, headers: ForwardedHeaders, body: bytes
) -> OutgoingRequest:
    """Return the request to send to `target`, which is one half of a pair or the only target."""
    call, prompt = request.call, request.prompt
    return OutgoingRequest(
        target.instance.id,
        UpstreamRequest(call.method, call.target, headers, body, target.requested_rank),
        label_answer(request, ticket.record, target),
        hides=prompt.hide_usage or prompt.hide_ids,
        renames=request.rename is not None,
    )
