"""Decides which requests are traced, and exports their spans from a thread of its own.

    begin() when a request arrives -> end() with its record -> a bounded queue -> the thread: build spans, post them

A request that is not sampled costs only the decision, and a header if it goes to an engine. The thread builds spans
from complete records, in batches with rests between them. An unreachable receiver is retried after a pause, and
logged once; meanwhile the queue fills up, and requests that do not fit are dropped and counted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol, final

from router.clock import Clock
from router.errors import RequestRefused, TooBusy
from router.features.tracing.spans import Address, RefusedRequest, RequestSpan, build_refusal, build_spans
from router.proxy.call import ClientRequest
from router.request.request import Held, Request
from router.request.services import Services
from router.scheduling.policy.record import Record
from router.telemetry.failure import CLIENTS_OWN, failure_reason
from router.telemetry.metrics.label_values import OTHER
from router.telemetry.metrics.prometheus import REASONS, Metrics
from router.telemetry.trace_context import HeadSampler, TraceContext

log = logging.getLogger("warmroute.tracing")

BATCH = 32  # requests in one post
REST_S, WORK = 0.0005, 8  # a rest after so many requests, long enough for a waiting thread to get the interpreter
IDLE_S = 0.25  # how long an ended request may wait for others
RETRY_S = 10.0  # after a failed post


class SpanSender(Protocol):
    """Posts spans; `otlp.py` has the only implementation."""

    def build(self, trace: TraceContext, spans: Sequence[RequestSpan]) -> list[Any]:
        """Return one trace's spans in the form that `send` accepts."""

    def send(self, spans: Sequence[Any]) -> bool:
        """Post spans, and return whether they were accepted. May block for 10 seconds."""

    def close(self) -> None:
        """Make a waiting `send` give up."""


class TracingStats(NamedTuple):
    """Requests whose spans were to be exported, since the start."""

    exported: int
    dropped: int  # the queue was full
    failed: int  # the receiver did not accept them


class TracedRequest(Held):
    """A request with a place in a trace."""

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
class Tracing:
    """The traces of one process. Requests slower than `slow_s` are exported in any case; None: no such limit."""

    def __init__(
        self,
        sampler: HeadSampler,
        sender: SpanSender,
        address: Callable[[str], Address | None],
        clock: Clock,
        *,
        slow_s: float | None,
        queue: int,
    ) -> None:
        self.begin: Callable[[Mapping[bytes, bytes]], TraceContext] = sampler.begin
        self._sender, self._address, self._clock = sender, address, clock
        self._slow_ms = float("inf") if slow_s is None else slow_s * 1e3
        self._queue: deque[tuple[TraceContext, Record | RefusedRequest]] = deque()
        self._queue_limit = queue
        self._dropped = 0  # set by the event loop; the fields below are set by the thread
        self._exported = self._failed = 0
        self._unreachable = False
        self._closing, self._filled = Event(), Event()
        self._close_by = 0.0
        self._thread = Thread(target=self._run, name="warmroute-tracing", daemon=True)

    # called on the event loop

    def start(self) -> None:
        """Start the thread, once."""
        self._thread.start()

    def enter(self, request: Request, services: Services) -> None:
        """Continue the client's trace if the client sent one, or begin a trace, as the stage of a request."""
        request.trace = self.begin(request.call.fields)
        request.hold(TracedRequest(request.trace, self, services.metrics))

    def on_refusal(self, call: ClientRequest, refusal: RequestRefused, endpoint: str, arrived_s: float) -> None:
        """Export a span of a refused request, unless the refusal was the client's mistake."""
        if refusal.status < 500 and not isinstance(refusal, TooBusy):
            return
        now_s = self._clock.wall()
        reason = refusal.code or REASONS.get(type(refusal), OTHER)
        started_s = now_s - (self._clock.now() - arrived_s)
        self.refuse(call.fields, RefusedRequest(endpoint, refusal.status, reason, started_s, now_s))

    def end(self, trace: TraceContext, record: Record) -> bool:
        """Queue the record of a request that has ended, and return whether it is exported. The record must not
        change any more.
        """
        if not trace.sampled and (record.duration_ms or 0.0) <= self._slow_ms:
            reason = failure_reason(record)
            if reason is None or reason in CLIENTS_OWN:
                return False
        return self._add(trace, record)

    def refuse(self, fields: Mapping[bytes, bytes], request: RefusedRequest) -> None:
        """Queue a request that was refused before it had a record. If it is not sampled, it is exported only if it
        failed.
        """
        trace = self.begin(fields)
        if trace.sampled or request.status >= 500:
            self._add(trace, request)

    def _add(self, trace: TraceContext, request: Record | RefusedRequest) -> bool:
        if len(self._queue) >= self._queue_limit:
            self._dropped += 1
            return False
        self._queue.append((trace, request))
        if not self._filled.is_set():  # else the thread is awake
            self._filled.set()
        return True

    def close(self, within_s: float = 2.0) -> None:
        """Send the queued spans and end the thread; blocks, but hardly longer than `within_s`."""
        self._queue_limit = 0
        self._close_by = self._clock.now() + within_s
        self._closing.set()
        self._filled.set()
        self._thread.join(within_s)
        self._sender.close()

    @property
    def stats(self) -> TracingStats:
        return TracingStats(self._exported, self._dropped, self._failed)

    # run by the thread

    def _run(self) -> None:
        """Repeatedly sleep until there is something to export, gather for a moment, and export all of it."""
        while not self._closing.is_set():
            self._filled.wait()
            self._closing.wait(IDLE_S)
            self._filled.clear()
            while self._queue and not self._closing.is_set():
                self._closing.wait(self._export())
        while self._queue and not self._unreachable and self._clock.now() < self._close_by:
            self._export()

    def _export(self) -> float:
        """Export a batch; return how long to wait before the next one, in seconds."""
        spans: list[Any] = []
        taken = 0
        while self._queue and taken < BATCH:
            trace, request = self._queue.popleft()
            taken += 1
            try:
                spans += self._sender.build(trace, self._build(trace, request))
            except Exception:  # values may come from a plug-in; one without a span's form must not stop the rest
                self._failed += 1
                taken -= 1
                log.exception("the spans of trace %s cannot be built and are dropped", trace.trace_id)
            if taken % WORK == 0:
                self._closing.wait(REST_S)
        if not spans:
            return 0.0
        if self._sender.send(spans):
            self._exported += taken
            if self._unreachable:
                self._unreachable = False
                log.warning(
                    "the trace receiver accepts spans again; %d traces dropped so far", self._dropped + self._failed
                )
            return 0.0 if len(self._queue) >= BATCH else IDLE_S
        self._failed += taken
        if not self._unreachable:
            self._unreachable = True
            log.error("the trace receiver accepts no spans; retrying every %g s", RETRY_S)
        return RETRY_S

    def _build(self, trace: TraceContext, request: Record | RefusedRequest) -> list[RequestSpan]:
        if isinstance(request, RefusedRequest):
            return [build_refusal(trace, request)]
        return build_spans(trace, request, self._address)
