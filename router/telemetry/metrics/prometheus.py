"""Counts the events that the `/metrics` page (`page.py`) shows, as they happen.

Label sets are closed: paths, models and reasons that are not configured become `other`, because otherwise a client
could fill the memory of the router and of its Prometheus with names. Each router has its own metrics; nothing is
global.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import astuple

from router.errors import (
    BadGateway,
    BadRequest,
    DeadlineExceeded,
    Forbidden,
    InternalError,
    MethodNotAllowed,
    NoTarget,
    NotFound,
    PoisonRefused,
    RequestRefused,
    TenantOverLimit,
    TooBusy,
    TooLarge,
    Unauthorized,
    UnsupportedCoding,
    UpgradeRequired,
)
from router.scheduling.policy.record import Attempt, Record, Stages
from router.telemetry.failure import ENDS, describe_end, failure_reason
from router.telemetry.metrics.buckets import WAIT_BOUNDS_S, Exemplar, HistogramBuckets
from router.telemetry.metrics.engine_tables import EngineTables
from router.telemetry.metrics.label_values import OTHER, TIERS, LabelValues
from router.telemetry.metrics.series import Counter, Histogram

MAX_MODELS = 256  # adapters come and go, but their counters stay
MAX_ENDPOINTS = 64
MAX_TOKEN_SOURCES = 32
RETRIED = ENDS | {"engine_5xx"}
STAGES = tuple(name.removesuffix("_ms") for name in Stages.__struct_fields__)
INTERNAL = "internal_error"
REASONS: dict[type[RequestRefused], str] = {
    BadRequest: "bad_request",
    Unauthorized: "unauthorized",
    Forbidden: "forbidden",
    NotFound: "not_found",
    MethodNotAllowed: "method_not_allowed",
    TooLarge: "too_large",
    UnsupportedCoding: "unsupported_coding",
    PoisonRefused: "poison_refused",
    UpgradeRequired: "upgrade_required",
    TooBusy: "too_busy",
    TenantOverLimit: "tenant_limit",
    InternalError: INTERNAL,
    BadGateway: "bad_gateway",
    NoTarget: "no_target",
    DeadlineExceeded: "deadline",
}
ADDED_BOUNDS_S = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class RequestCounters:
    """The series of requests that ended alike, looked up together once instead of table by table. `requests` are
    labels: endpoint, model, class of the status; `source` is the source of the token ids.
    """

    __slots__ = ("duration", "model", "requests", "source", "ttft")

    def __init__(
        self, requests: tuple[str, str, str], source: tuple[str], ttft: HistogramBuckets, duration: HistogramBuckets
    ) -> None:
        self.requests = requests
        self.model = (requests[1],)
        self.source = source
        self.ttft = ttft
        self.duration = duration


class Metrics:
    """The counters of one router. `knows_model` returns whether a model name may become a label, `knows_engine`
    whether an engine is in the fleet.
    """

    def __init__(self, knows_model: Callable[[str], bool], knows_engine: Callable[[str], bool]) -> None:
        self.model_label = LabelValues(MAX_MODELS, knows_model)
        self._endpoint = LabelValues(MAX_ENDPOINTS)
        self._token_source = LabelValues(MAX_TOKEN_SOURCES)
        self.in_flight = 0
        self.tables: list[Counter | Histogram] = []
        self._counters: dict[tuple[str, str, int | None, str], RequestCounters] = {}  # only where all values are labels
        self._create_request_tables()
        self._create_token_tables()
        self._engines = EngineTables(self.counter, self.histogram, knows_engine)
        self._create_arm_tables()
        self._moved = self.counter("picker_moved_total", "answers of another endpoint than the picker had chosen")
        self._moved[()] += 0

    def on_request_start(self) -> None:
        """Count a request whose record was opened."""
        self.in_flight += 1

    def on_request_end(self, record: Record) -> None:
        """Count a request that ended, in whatever way: once, after `on_request_start`."""
        self.in_flight -= 1
        key = record.endpoint, record.model, record.status, record.tokens_from
        counters = self._counters.get(key) or self._look_up(*key)
        endpoint, _, status = counters.requests
        self._requests[counters.requests] += 1
        self._token_ids[counters.source] += 1
        if (reason := failure_reason(record)) is not None:
            self._errors[endpoint, reason] += 1
        if record.ttft_ms is not None:
            counters.ttft.observe(record.ttft_ms / 1000)
        if record.duration_ms is not None:
            counters.duration.observe(record.duration_ms / 1000)
        self._count_attempts(record, counters.model)
        for stage, ms in enumerate(astuple(record.stages)):
            if ms is not None:
                self._stages[stage].observe(ms / 1000)
        self._engines.on_request_end(record, self._count_tokens(record, counters.model))
        if record.arm is not None:
            self._count_arm(record, record.arm, status)

    def _count_attempts(self, record: Record, model: tuple[str]) -> None:
        attempts = record.attempts
        for attempt in attempts:
            if attempt.prefill is not None:
                self._halves[(attempt.prefill.end,)] += 1
            if attempt.panic:
                self._panics[model] += 1
        if len(attempts) > 1:
            for attempt in attempts[:-1]:
                if attempt.end != "continued":
                    end = describe_end(attempt, None)
                    self._retries[(end if end in RETRIED else OTHER,)] += 1
        self._count_continued(record)

    def _count_continued(self, record: Record) -> None:
        """Count an answer that broke off, by its outcome."""
        if record.uncontinued is not None:
            self._broken[(record.uncontinued,)] += 1
        elif any(attempt.end == "continued" for attempt in record.attempts):
            by_text = any(attempt.continued_by == "text" for attempt in record.attempts)
            self._broken[("continued_text" if by_text else "continued",)] += 1

    def on_trace(self, record: Record) -> None:
        """Make a counted request whose spans are exported the exemplar of the buckets of its latencies."""
        if record.trace_id is None:
            return
        counters = self._look_up(record.endpoint, record.model, record.status, record.tokens_from)
        for buckets, ms in ((counters.ttft, record.ttft_ms), (counters.duration, record.duration_ms)):
            if ms is not None:
                buckets.exemplify(Exemplar(record.trace_id, ms / 1000, record.at_wall_s))

    def _look_up(self, endpoint: str, model: str, status: int | None, source: str) -> RequestCounters:
        labels = self._endpoint(endpoint), self.model_label(model), "none" if status is None else f"{status // 100}xx"
        by_endpoint = labels[:2]
        source_labels = (self._token_source(source),)
        ttft, duration = self._ttft[by_endpoint], self._duration[by_endpoint]
        counters = RequestCounters(labels, source_labels, ttft, duration)
        if (*by_endpoint, *source_labels) == (endpoint, model, source):  # other values come from clients, unbounded
            self._counters[endpoint, model, status, source] = counters
        return counters

    def on_refusal(self, endpoint: str, refusal: RequestRefused) -> None:
        """Count a request that was refused before it had a record. `endpoint` is one that is served, or `other`."""
        endpoint = self._endpoint(endpoint)
        self._requests[endpoint, OTHER, f"{refusal.status // 100}xx"] += 1
        self._errors[endpoint, REASONS.get(type(refusal), OTHER)] += 1

    def on_own_answer(self, endpoint: str) -> None:
        """Count a request that the router answered by itself, without a record."""
        self._requests[self._endpoint(endpoint), OTHER, "2xx"] += 1

    def on_unfit(self, status: int) -> None:
        """Count a request that a connection refused: no valid HTTP, or too slow."""
        self._requests[OTHER, OTHER, f"{status // 100}xx"] += 1
        self._errors[OTHER, "unfit"] += 1

    def on_crash(self, endpoint: str) -> None:
        """Count a request with a record that ended in an unexpected exception."""
        self._errors[self._endpoint(endpoint), INTERNAL] += 1

    def on_disconnect(self, endpoint: str) -> None:
        """Count a client that disconnected before its request had a record."""
        endpoint = self._endpoint(endpoint)
        self._requests[endpoint, OTHER, "none"] += 1
        self._errors[endpoint, "client_gone"] += 1

    def on_engine_left(self, engine: str) -> None:
        """Remove the series of an engine that leaves the fleet."""
        self._engines.forget(engine)

    def on_moved(self) -> None:
        """Count a picker's exchange that an endpoint other than the chosen one answered."""
        self._moved[()] += 1

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Add a counter to the page, with the help text `meaning`."""
        counter = Counter(f"warmroute_{name}", meaning, *labels)
        self.tables.append(counter)
        return counter

    def histogram(self, name: str, meaning: str, bounds: Sequence[float], *labels: str) -> Histogram:
        """Add a histogram with these upper bounds to the page."""
        histogram = Histogram(f"warmroute_{name}", meaning, bounds, *labels)
        self.tables.append(histogram)
        return histogram

    def _create_request_tables(self) -> None:
        by_endpoint = ("endpoint", "model")
        self._requests = self.counter("requests_total", "requests ended, by class of status", *by_endpoint, "status")
        self._errors = self.counter("errors_total", "requests that failed, by reason", "endpoint", "reason")
        self._retries = self.counter("retries_total", "second attempts, by how the first one ended", "reason")
        broken = "answers whose engine failed in the middle: continued (by text: continued_text), or why not"
        self._broken = self.counter("broken_answers_total", broken, "outcome")
        self._broken[("continued",)] += 0
        self._halves = self.counter("prefill_halves_total", "prefill halves of pairs, by how they ended", "end")
        panics = "attempts for which breakers or late health probes were ignored, as all targets had those (panic)"
        self._panics = self.counter("panic_attempts_total", panics, "model")
        self._poisonous = self.counter("poison_requests_total", "requests on which two engines died")
        self._poisonous[()] += 0  # from the start: a rule's `increase` misses the first value of a new series
        first, last = "arrival to the first byte of the answer", "arrival to the end of the answer"
        self._ttft = self.histogram("ttft_seconds", first, WAIT_BOUNDS_S, *by_endpoint)
        self._duration = self.histogram("request_duration_seconds", last, WAIT_BOUNDS_S, *by_endpoint)
        added = self.histogram("added_seconds", "time that the router itself added, by stage", ADDED_BOUNDS_S, "stage")
        self._stages = [added[(stage,)] for stage in STAGES]

    def _create_token_tables(self) -> None:
        self._prompt = self.counter("prompt_tokens_total", "prompt tokens, as the engines counted them", "model")
        self._output = self.counter("output_tokens_total", "answer tokens, as the engines counted them", "model")
        predicted = "prompt tokens that the index predicted for the chosen target, of answers that reported a hit count"
        self._predicted = self.counter("predicted_tokens_total", predicted, "model", "tier")
        delivered = "prompt tokens that engines reported as cached"
        self._delivered = self.counter("delivered_tokens_total", delivered, "model")
        sources = "requests by where their token ids came from, or why there are none"
        self._token_ids = self.counter("token_ids_total", sources, "source")

    def _create_arm_tables(self) -> None:
        """Create the tables by the arm that was drawn (a closed set of names), even after a rollback to the first
        arm.
        """
        ended = "requests of an experiment's arm ended, by status"
        self._arm_requests = self.counter("arm_requests_total", ended, "arm", "status")
        first, last = "arrival to the first byte, by arm", "arrival to the end of the answer, by arm"
        self._arm_ttft = self.histogram("arm_ttft_seconds", first, WAIT_BOUNDS_S, "arm")
        self._arm_duration = self.histogram("arm_duration_seconds", last, WAIT_BOUNDS_S, "arm")
        prompt = "prompt tokens, by arm, of answers that reported cached tokens"
        self._arm_prompt = self.counter("arm_prompt_tokens_total", prompt, "arm")
        delivered = "of those, the ones that engines reported as cached"
        self._arm_delivered = self.counter("arm_delivered_tokens_total", delivered, "arm")

    def _count_arm(self, record: Record, arm: str, status: str) -> None:
        self._arm_requests[arm, status] += 1
        if record.ttft_ms is not None:
            self._arm_ttft[(arm,)].observe(record.ttft_ms / 1000)
        if record.duration_ms is not None:
            self._arm_duration[(arm,)].observe(record.duration_ms / 1000)
        if record.prompt_tokens is not None and record.cached_tokens is not None:
            self._arm_prompt[(arm,)] += record.prompt_tokens
            self._arm_delivered[(arm,)] += record.cached_tokens

    def _count_tokens(self, record: Record, model: tuple[str]) -> int | None:
        """Return the tokens that were predicted to be cached; None if they cannot be compared with a hit count."""
        if record.poison:
            self._poisonous[()] += 1
        if record.prompt_tokens is not None:
            self._prompt[model] += record.prompt_tokens
        if record.output_tokens is not None:
            self._output[model] += record.output_tokens
        if record.cached_tokens is None or not record.attempts:
            return None
        if record.attempts[-1].prefill is not None:  # KV from a hand-off was neither predicted nor found
            return None
        self._delivered[model] += record.cached_tokens
        return self._count_predicted(record.attempts[-1], *model)

    def _count_predicted(self, attempt: Attempt, model: str) -> int:
        """Count what each tier adds, as the overlap has cumulative runs. Return the sum."""
        pooled = attempt.pool_tokens
        if pooled is not None:
            self._predicted[model, "pool"] += pooled
        overlap = attempt.decision.row.overlap
        slower = 0
        if overlap is not None:
            for tier, tokens in zip(TIERS, overlap[:3], strict=True):
                self._predicted[model, tier] += tokens - slower
                slower = tokens
        return slower + (pooled or 0)
