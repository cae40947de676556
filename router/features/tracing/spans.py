"""The spans of a request, from its finished record: plain values, without OpenTelemetry's SDK.

    chat qwen                  the request, from its arrival to its end
      tokens, admission, pool  before the first choice
      match, decide            of each choice
      attempt                  at one engine, whose own spans are below it; a retry links to the previous attempt
        prefill                the half of a pair that another engine computes

Names and attributes follow the GenAI semantic conventions
(https://github.com/open-telemetry/semantic-conventions -genai) if these define one; other attributes are
`warmroute.*`. No attribute contains any part of a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.record import Attempt, PrefillRecord, Record
from router.scheduling.policy.timeline import build_timeline, predict_ttft_ms
from router.telemetry.failure import CLIENTS_OWN, failure_reason
from router.telemetry.trace_context import (
    ADMISSION,
    DECIDE,
    MATCH,
    POOL,
    PREFILL,
    TOKENS,
    TraceContext,
    attempt_number,
)

Attributes = Mapping[str, str | int | float | bool | None]
"""None: unknown, not exported."""

Address = tuple[str, int]
"""Host and port."""

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
PROVIDER = "vllm"
UNFAILED_ENDS = frozenset({"ok", "running", "client_gone", "cancelled", "rejected"})


class RequestSpan(NamedTuple):
    """One span. Ids are in hex, times in seconds since the epoch."""

    name: str
    span_id: str
    parent_id: str | None
    kind: Literal["server", "client", "internal"]
    start_s: float
    end_s: float
    attributes: Attributes = {}
    error: bool = False
    link: str | None = None  # to another span of the same trace
    first_byte_s: float | None = None


class RefusedRequest(NamedTuple):
    """A request that was refused before it had a record. Times in seconds since the epoch."""

    path: str
    status: int
    reason: str
    start_s: float
    end_s: float


def build_refusal(trace: TraceContext, request: RefusedRequest) -> RequestSpan:
    """Return the span of a refused request, the only span of its trace."""
    operation = OPERATIONS.get(request.path)
    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "url.path": request.path,
        "http.response.status_code": request.status,
        "error.type": request.reason,
    }
    name, failed = operation or request.path, request.status >= 500
    times = request.start_s, request.end_s
    return RequestSpan(name, trace.span, trace.parent, "server", *times, attributes, error=failed)


def build_spans(trace: TraceContext, record: Record, address: Callable[[str], Address | None]) -> list[RequestSpan]:
    """Return the spans of a finished record, the request's span first. `address` returns a target's address."""
    return _SpanBuilder(trace, record, address).build()


class _SpanBuilder:
    def __init__(self, trace: TraceContext, record: Record, address: Callable[[str], Address | None]) -> None:
        self._trace, self._record, self._address = trace, record, address
        self._prepared_ms = record.prepared_ms or 0.0
        self._arrived_s = record.at_wall_s - self._prepared_ms / 1e3
        self._operation = OPERATIONS.get(record.endpoint)
        self._stages = {(stage.name, stage.attempt): stage for stage in build_timeline(record)}
        self._spans: list[RequestSpan] = []

    def build(self) -> list[RequestSpan]:
        self._add_request()
        self._add_preparation()
        for number, attempt in enumerate(self._record.attempts):
            self._add_attempt(number, attempt)
        return self._spans

    def _add(self, number: int, name: str, attempt: int | None, attributes: Attributes) -> None:
        """Add an internal span of the stage `name` below the request's span, if the stage ran."""
        if (times := self._find(name, attempt)) is not None:
            span_id, parent = self._trace.span_id(number), self._trace.span
            self._spans.append(RequestSpan(name, span_id, parent, "internal", *times, attributes))

    def _find(self, stage: str, attempt: int | None) -> tuple[float, float] | None:
        """Return the begin and the end of a stage, in seconds since the epoch; None if it did not run."""
        found = self._stages.get((stage, attempt))
        if found is None or found.start_ms is None or found.duration_ms is None:
            return None
        return self._at(found.start_ms), self._at(found.start_ms + found.duration_ms)

    def _at(self, ms: float) -> float:
        return self._arrived_s + ms / 1e3

    def _add_request(self) -> None:
        record = self._record
        reason = failure_reason(record)
        last = record.attempts[-1] if record.attempts else None
        attributes: Attributes = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": record.model or None,
            "gen_ai.request.stream": record.stream,
            "gen_ai.conversation.id": None if last is None else last.decision.view.session,  # a pseudonym
            "gen_ai.response.time_to_first_chunk": None if record.ttft_ms is None else record.ttft_ms / 1e3,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "url.path": record.endpoint,
            "http.response.status_code": record.status,
            "error.type": reason,
            "warmroute.record": record.id,
            "warmroute.policy": None if record.policy is None else record.policy.name,
            "warmroute.arm": record.arm,
            "warmroute.target": record.target,
            "warmroute.attempts": len(record.attempts),
        }
        name = " ".join(filter(None, (self._operation or record.endpoint, record.model)))
        end_s, failed = self._at(record.duration_ms or self._prepared_ms), reason not in (None, *CLIENTS_OWN)
        self._spans.append(
            RequestSpan(
                name, self._trace.span, self._trace.parent, "server", self._arrived_s, end_s, attributes, error=failed,
                first_byte_s=None if record.ttft_ms is None else self._at(record.ttft_ms),
            )
        )  # fmt: skip

    def _add_preparation(self) -> None:
        """Add the spans of the stages before the first choice."""
        record = self._record
        pooled = record.attempts[0].decision.view.pool if record.attempts else None
        counted = {"warmroute.tokens_from": record.tokens_from, "warmroute.tokens": record.prompt_tokens_counted}
        self._add(TOKENS, "tokens", None, counted)
        self._add(ADMISSION, "admission", None, {"warmroute.admission_rule": record.admission_rule})
        self._add(POOL, "pool", None, {"warmroute.pool_tokens": None if pooled is None else pooled.tokens})

    def _add_attempt(self, index: int, attempt: Attempt) -> None:
        record, number, decision = self._record, attempt_number(index), attempt.decision
        self._add(number + MATCH, "match", index + 1, {"warmroute.candidates": len(decision.view.rows)})
        self._add(number + DECIDE, "decide", index + 1, _describe_decision(decision))
        last = index == len(record.attempts) - 1
        begun_ms = self._prepared_ms if attempt.start_ms is None else attempt.start_ms
        sent_ms = begun_ms + (attempt.match_ms or 0.0) + (attempt.decide_ms or 0.0)
        times = self._at(sent_ms), self._at(begun_ms + (attempt.duration_ms or 0.0))
        span = self._call_engine("attempt", number, self._trace.span, decision, attempt, times)
        self._spans.append(
            span._replace(
                attributes={
                    **span.attributes,
                    "warmroute.pool_tokens": attempt.pool_tokens,
                    "warmroute.served": attempt.served,
                    "gen_ai.usage.cache_read.input_tokens": record.cached_tokens if last else None,
                    "http.response.status_code": record.status if last and attempt.end == "ok" else None,
                },
                link=self._trace.span_id(attempt_number(index - 1)) if index else None,
                first_byte_s=self._at(record.ttft_ms) if last and record.ttft_ms is not None else None,
            )
        )
        leg, times_of_leg = attempt.prefill, self._find("prefill", index + 1)
        if leg is not None and times_of_leg is not None:
            half = self._call_engine("prefill", number + PREFILL, span.span_id, leg.decision, leg, times_of_leg)
            delivered = {**half.attributes, "gen_ai.usage.cache_read.input_tokens": leg.cached_tokens}
            self._spans.append(half._replace(attributes=delivered))

    def _call_engine(
        self,
        name: str,
        number: int,
        parent_id: str,
        decision: Decision,
        attempt: Attempt | PrefillRecord,
        times: tuple[float, float],
    ) -> RequestSpan:
        """Return the span of a call to an engine; `times` are its begin and end, in seconds since the epoch."""
        address = self._address(decision.target)
        failed = attempt.end not in UNFAILED_ENDS
        attributes: Attributes = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._record.model or None,
            "server.address": None if address is None else address[0],
            "server.port": None if address is None else address[1],
            "error.type": attempt.end if failed else None,
            "warmroute.target": decision.target,
            "warmroute.end": attempt.end,
            "warmroute.overlap_tokens": attempt.predicted_tokens,
        }
        span_id = self._trace.span_id(number)
        return RequestSpan(name, span_id, parent_id, "client", *times, attributes, error=failed)


def _describe_decision(decision: Decision) -> Attributes:
    """Return the attributes of a choice. The predicted TTFT is the yardstick's, whatever the policy minimises."""
    return {
        "warmroute.policy": decision.policy,
        "warmroute.target": decision.target,
        "warmroute.candidates": len(decision.rows),
        "warmroute.margin": decision.margin,
        "warmroute.predicted_ttft_ms": predict_ttft_ms(decision),
    }
