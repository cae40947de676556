"""Each request gets its place in a trace, and its spans are exported when it has ended."""

from __future__ import annotations

from typing import final

from router.clock import Clock
from router.errors import RequestRefused, TooBusy
from router.proxy.call import ClientRequest
from router.request.request import Held, Request
from router.request.services import Services
from router.scheduling.policy.record import Record
from router.telemetry.metrics.label_values import OTHER
from router.telemetry.metrics.prometheus import REASONS, Metrics
from router.telemetry.tracing.context import TraceContext
from router.telemetry.tracing.spans import RefusedRequest
from router.telemetry.tracing.tracing import Tracing


class TracedRequest(Held):
    def __init__(self, trace: TraceContext, tracing: Tracing, metrics: Metrics) -> None:
        self._trace = trace
        self._tracing = tracing
        self._metrics = metrics

    def on_record(self, record: Record) -> None:
        record.trace_id = self._trace.trace_id

    def release(self, request: Request) -> None:
        if request.record is not None and self._tracing.end(self._trace, request.record):
            self._metrics.on_trace(request.record)


@final
class TracingStage:
    def __init__(self, tracing: Tracing, metrics: Metrics, clock: Clock) -> None:
        self._tracing = tracing
        self._metrics = metrics
        self._clock = clock

    def enter(self, request: Request, services: Services) -> None:
        """Continue the client's trace, where it has sent one, or begin one."""
        request.trace = self._tracing.begin(request.call.fields)
        request.hold(TracedRequest(request.trace, self._tracing, self._metrics))

    def on_refusal(self, call: ClientRequest, refusal: RequestRefused, endpoint: str, arrived_s: float) -> None:
        """Export a span of a request that was turned away, but for those that are the client's mistake."""
        if refusal.status < 500 and not isinstance(refusal, TooBusy):
            return
        now_s = self._clock.wall()
        reason = refusal.code or REASONS.get(type(refusal), OTHER)
        started_s = now_s - (self._clock.now() - arrived_s)
        self._tracing.refuse(call.fields, RefusedRequest(endpoint, refusal.status, reason, started_s, now_s))
