"""`/metrics`: what happened, counted as it happens, and what is the case (`state.py`), read when scraped.

Label sets are closed: paths, models and reasons that nobody configured become `other`, or a client could fill the
memory of the router and of its Prometheus with names. Each router has metrics of its own; nothing is global.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import astuple
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.errors import (
    BadGateway,
    BadRequest,
    DeadlineExceeded,
    Forbidden,
    NoTarget,
    NotFound,
    RequestRefused,
    TooBusy,
    TooLarge,
    Unauthorized,
)
from router.scheduling.policy.record import Attempt, Record, Stages
from router.telemetry.metrics.series import Counter, Histogram, HistogramBuckets
from router.telemetry.metrics.state import TIERS, RouterSnapshot, TargetState, TokenizerState, families

__all__ = ["Metrics", "RouterSnapshot", "TargetState", "TokenizerState"]

OTHER = "other"
MODELS_KEPT = 256  # adapters come and go; their counters stay
ENDPOINTS_KEPT = 64
TOKEN_SOURCES_KEPT = 32
STAGES = tuple(name.removesuffix("_ms") for name in Stages.__struct_fields__)
ENDS = frozenset({"connect", "busy", "died", "broken", "client_gone", "deadline", "prefill"})
REASONS: dict[type[RequestRefused], str] = {
    BadRequest: "bad_request",
    Unauthorized: "unauthorized",
    Forbidden: "forbidden",
    NotFound: "not_found",
    TooLarge: "too_large",
    TooBusy: "too_busy",
    BadGateway: "bad_gateway",
    NoTarget: "no_target",
    DeadlineExceeded: "deadline",
}
WAIT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 120.0, 300.0, 600.0)
ADDED_BOUNDS_S = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


Table = TypeVar("Table", Counter, Histogram)


class LabelValues:
    """Words that may be label values: the first `limit` that `admits` lets in; every other is `other`."""

    def __init__(self, limit: int, admits: Callable[[str], bool] = lambda word: True) -> None:
        self._limit = limit
        self._admits = admits
        self._known: set[str] = set()

    def __call__(self, word: str) -> str:
        if word in self._known:
            return word
        if len(self._known) >= self._limit or not self._admits(word):
            return OTHER
        self._known.add(word)
        return word


class RequestCounters(NamedTuple):
    """Where requests that ended alike are counted: found together, once, instead of table by table."""

    requests: tuple[str, str, str]  # labels: endpoint, model, class of the status
    model: tuple[str]
    source: tuple[str]  # of its tokens
    ttft: HistogramBuckets
    duration: HistogramBuckets


class MetricsPage(Collector):
    """One scrape: everything it will say, already fixed."""

    def __init__(self, tables: Sequence[Counter | Histogram], in_flight: int, now: RouterSnapshot) -> None:
        self._tables = [table.frozen() for table in tables]
        self._in_flight = in_flight
        # Other rooms go on counting in the tables that the snapshot refers to.
        self._now = now._replace(
            targets=[target._replace(skipped=dict(target.skipped)) for target in now.targets],
            policy_faults=dict(now.policy_faults),
            unpaired=dict(now.unpaired),
        )

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("warmroute_in_flight_requests", "requests being answered", value=self._in_flight)
        for table in self._tables:
            yield table.family()
        yield from families(self._now)
        yield from ProcessCollector(registry=None).collect()

    def render(self) -> bytes:
        """Takes tens of milliseconds with hundreds of targets, and may be done in another thread."""
        return generate_latest(self)


class Metrics:
    """`snapshot` is read at every scrape; `knows_model` says which model names may become labels."""

    def __init__(self, snapshot: Callable[[], RouterSnapshot], knows_model: Callable[[str], bool]) -> None:
        self._snapshot = snapshot
        self._model = LabelValues(MODELS_KEPT, knows_model)
        self._endpoint = LabelValues(ENDPOINTS_KEPT)
        self._token_source = LabelValues(TOKEN_SOURCES_KEPT)
        self._in_flight = 0
        self._tables: list[Counter | Histogram] = []
        self._lines: dict[
            tuple[str, str, int | None, str], RequestCounters
        ] = {}  # by the words of records, while they are labels
        self._make_requests()
        self._make_tokens()
        self._make_arms()
        self._make_waits()

    def on_request_start(self) -> None:
        """A request was decided and is being relayed: its record is open."""
        self._in_flight += 1

    def on_request_end(self, record: Record) -> None:
        """The request of a record has ended, in whatever way: to be called once, after `started`."""
        self._in_flight -= 1
        words = record.endpoint, record.model, record.status, record.tokens_from
        line = self._lines.get(words) or self._line(*words)
        endpoint, _, status = line.requests
        self._requests[line.requests] += 1
        self._token_ids[line.source] += 1
        if (reason := _reason(record)) is not None:
            self._errors[endpoint, reason] += 1
        if record.ttft_ms is not None:
            line.ttft.observe(record.ttft_ms / 1000)
        if record.duration_ms is not None:
            line.duration.observe(record.duration_ms / 1000)
        for attempt in record.attempts:
            if attempt.prefill is not None:
                self._halves[(attempt.prefill.end,)] += 1
        for attempt in record.attempts[:-1]:
            self._retries[(attempt.end if attempt.end in ENDS else OTHER,)] += 1
        for buckets, ms in zip(self._stages, astuple(record.stages), strict=True):
            if ms is not None:
                buckets.observe(ms / 1000)
        self._count_tokens(record, line.model)
        if record.arm is not None:
            self._count_arm(record, record.arm, status)

    def _line(self, endpoint: str, model: str, status: int | None, source: str) -> RequestCounters:
        labels = self._endpoint(endpoint), self._model(model), "none" if status is None else f"{status // 100}xx"
        by_endpoint = labels[:2]
        source_labels = (self._token_source(source),)
        line = RequestCounters(labels, labels[1:2], source_labels, self._ttft[by_endpoint], self._duration[by_endpoint])
        if (*by_endpoint, *source_labels) == (endpoint, model, source):  # other words come from clients, without end
            self._lines[endpoint, model, status, source] = line
        return line

    def on_refusal(self, endpoint: str, refusal: RequestRefused) -> None:
        """A request was answered with an error before it had a record. `endpoint` is one that is served, or `other`."""
        endpoint = self._endpoint(endpoint)
        self._requests[endpoint, OTHER, f"{refusal.status // 100}xx"] += 1
        self._errors[endpoint, REASONS.get(type(refusal), OTHER)] += 1

    def on_disconnect(self, endpoint: str) -> None:
        """A client left before its request had a record."""
        endpoint = self._endpoint(endpoint)
        self._requests[endpoint, OTHER, "none"] += 1
        self._errors[endpoint, "client_gone"] += 1

    def on_wait_end(self, model: str, queue: str, end: str, seconds: float) -> None:
        """A request no longer waits for admission. All words are the router's own, or models that engines serve."""
        self._waits[model, queue, end] += 1
        if end == "passed":
            self._waited[model, queue].observe(seconds)

    def page(self) -> MetricsPage:
        """What a scrape would say now. To be called on the event loop's thread."""
        return MetricsPage(self._tables, self._in_flight, self._snapshot())

    async def scrape(self) -> bytes:
        """Fixed here, written elsewhere: the text of a large fleet takes longer than a first token may wait."""
        return await asyncio.to_thread(self.page().render)

    def _kept(self, table: Table) -> Table:
        self._tables.append(table)
        return table

    def _make_requests(self) -> None:
        by_endpoint = ("endpoint", "model")
        self._requests = self._kept(
            Counter("warmroute_requests_total", "requests ended, by class of their status", *by_endpoint, "status")
        )
        self._errors = self._kept(Counter("warmroute_errors_total", "requests not answered well", "endpoint", "reason"))
        self._retries = self._kept(
            Counter("warmroute_retries_total", "second choices, by how the first one ended", "reason")
        )
        self._halves = self._kept(
            Counter("warmroute_prefill_halves_total", "prefill halves of pairs, by how they ended", "end")
        )
        self._poisonous = self._kept(Counter("warmroute_poison_requests_total", "requests on which two engines died"))
        self._ttft = self._kept(
            Histogram("warmroute_ttft_seconds", "arrival to the first byte of the answer", WAIT_BOUNDS_S, *by_endpoint)
        )
        self._duration = self._kept(
            Histogram(
                "warmroute_request_duration_seconds", "arrival to the end of the answer", WAIT_BOUNDS_S, *by_endpoint
            )
        )
        self._added = self._kept(
            Histogram("warmroute_added_seconds", "time that the router itself added, by stage", ADDED_BOUNDS_S, "stage")
        )
        self._stages = [self._added[(stage,)] for stage in STAGES]

    def _make_tokens(self) -> None:
        self._prompt = self._kept(
            Counter("warmroute_prompt_tokens_total", "prompt tokens, by the engines' count", "model")
        )
        self._output = self._kept(
            Counter("warmroute_output_tokens_total", "answer tokens, by the engines' count", "model")
        )
        self._predicted = self._kept(
            Counter(
                "warmroute_predicted_tokens_total",
                "prompt tokens that the index promised on the chosen target, of answers that told what they found",
                "model",
                "tier",
            )
        )
        self._delivered = self._kept(
            Counter("warmroute_delivered_tokens_total", "prompt tokens that engines reported as cached", "model")
        )
        self._token_ids = self._kept(
            Counter(
                "warmroute_token_ids_total",
                "requests by where their token ids came from, or why there are none",
                "source",
            )
        )

    def _make_arms(self) -> None:
        """By the arm that was drawn, a closed set of names. After a rollback the first arm decides for those, too."""
        self._arm_requests = self._kept(
            Counter("warmroute_arm_requests_total", "requests of an experiment's arm ended, by status", "arm", "status")
        )
        self._arm_ttft = self._kept(
            Histogram("warmroute_arm_ttft_seconds", "arrival to the first byte, by arm", WAIT_BOUNDS_S, "arm")
        )
        self._arm_duration = self._kept(
            Histogram(
                "warmroute_arm_duration_seconds", "arrival to the end of the answer, by arm", WAIT_BOUNDS_S, "arm"
            )
        )
        self._arm_prompt = self._kept(
            Counter(
                "warmroute_arm_prompt_tokens_total",
                "prompt tokens, by arm, of answers that told what they found",
                "arm",
            )
        )
        self._arm_delivered = self._kept(
            Counter("warmroute_arm_delivered_tokens_total", "of those, the ones that engines reported as cached", "arm")
        )

    def _make_waits(self) -> None:
        self._waits = self._kept(
            Counter(
                "warmroute_admission_waits_total",
                "requests that waited at the door, by how that ended (passed, refused, client_gone)",
                "model",
                "queue",
                "end",
            )
        )
        self._waited = self._kept(
            Histogram(
                "warmroute_admission_wait_seconds", "how long those waited that passed", WAIT_BOUNDS_S, "model", "queue"
            )
        )

    def _count_arm(self, record: Record, arm: str, status: str) -> None:
        self._arm_requests[arm, status] += 1
        if record.ttft_ms is not None:
            self._arm_ttft[(arm,)].observe(record.ttft_ms / 1000)
        if record.duration_ms is not None:
            self._arm_duration[(arm,)].observe(record.duration_ms / 1000)
        if record.prompt_tokens is not None and record.cached_tokens is not None:
            self._arm_prompt[(arm,)] += record.prompt_tokens
            self._arm_delivered[(arm,)] += record.cached_tokens

    def _count_tokens(self, record: Record, model: tuple[str]) -> None:
        if record.poison:
            self._poisonous[()] += 1
        if record.prompt_tokens is not None:
            self._prompt[model] += record.prompt_tokens
        if record.output_tokens is not None:
            self._output[model] += record.output_tokens
        if record.cached_tokens is None or not record.attempts:
            return
        if record.attempts[-1].prefill is None:  # what was handed over was neither promised nor found
            self._delivered[model] += record.cached_tokens
            self._count_predicted(record.attempts[-1], *model)

    def _count_predicted(self, attempt: Attempt, model: str) -> None:
        """Tiers hold cumulative runs; each label counts what its tier adds."""
        if attempt.pool_tokens is not None:
            self._predicted[model, "pool"] += attempt.pool_tokens
        overlap = attempt.decision.row.overlap
        if overlap is None:
            return
        slower = 0
        for tier, tokens in zip(TIERS, overlap[:3], strict=True):
            self._predicted[model, tier] += tokens - slower
            slower = tokens


def _reason(record: Record) -> str | None:
    """Why the request was not answered well; None: it was. A 4xx is the engine's word on what the client sent."""
    if record.poison:
        return "poison"
    if record.attempts and (end := record.attempts[-1].end) in ENDS:
        return end
    if record.status is None:
        return "client_gone"
    if not record.attempts:
        return "no_target"
    if record.status >= 400:
        return "engine_5xx" if record.status >= 500 else "engine_4xx"
    return None
