"""Counts by engine how attempts at requests ended, how soon answers began, and what was predicted and delivered.

They show which engine is at fault when the metrics of all engines (`prometheus.py`) show that one is. Each engine has
about twenty series, so these tables have no label for models or paths, and at most `MAX_ENGINES` engines have series of
their own. The series of an engine that leaves are removed: names of pods never come back.
"""

from __future__ import annotations

from collections.abc import Callable

from router.scheduling.policy.record import Attempt, Record
from router.telemetry.failure import describe_end
from router.telemetry.metrics.label_values import OTHER, LabelValues
from router.telemetry.metrics.series import Counter, Histogram

MAX_ENGINES = 256  # then 5,000 series and 0.4 MB, a quarter of what the page of such a fleet has besides
FIRST_BYTE_BOUNDS_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)


class EngineTables:
    """The tables by engine. Attempts at an engine beyond the limit, or not in the fleet, count as `other`, so that
    sums over all engines are right. `knows_engine` returns whether an engine is in the fleet.
    """

    def __init__(
        self,
        counter: Callable[..., Counter],
        histogram: Callable[..., Histogram],
        knows_engine: Callable[[str], bool],
    ) -> None:
        self._label = LabelValues(MAX_ENGINES, knows_engine)
        ended = "attempts at requests, and prefill halves of pairs, by how they ended (ok, or as in errors and retries)"
        self._attempts = counter("engine_attempts_total", ended, "engine", "end")
        first = "choice of the engine to the first byte of its answer"
        self._ttft = histogram("engine_ttft_seconds", first, FIRST_BYTE_BOUNDS_S, "engine")
        predicted = "of `warmroute_predicted_tokens_total`, those of the engine, in all tiers"
        self._predicted = counter("engine_predicted_tokens_total", predicted, "engine")
        delivered = "of `warmroute_delivered_tokens_total`, those of the engine"
        self._delivered = counter("engine_delivered_tokens_total", delivered, "engine")

    def on_request_end(self, record: Record, predicted_tokens: int | None) -> None:
        """Count the attempts of a request that ended. `predicted_tokens` is None if no hit count was reported."""
        answering: Attempt | None = None  # the attempt with the answer's first byte: the last, or the first continued
        engine = first = OTHER  # of the last attempt, and of `answering`
        for attempt in record.attempts:
            engine = self._find_label(attempt)
            self._attempts[engine, describe_end(attempt, record.status)] += 1
            if attempt.prefill is not None:
                half = attempt.prefill
                self._attempts[self._label(half.decision.row.instance), half.end] += 1
            if answering is None or answering.end != "continued":
                answering, first = attempt, engine
        if answering is None:
            return
        if record.ttft_ms is not None and answering.start_ms is not None:
            self._ttft[(first,)].observe((record.ttft_ms - answering.start_ms) / 1000)
        if predicted_tokens is not None and record.cached_tokens is not None:
            self._predicted[(engine,)] += predicted_tokens
            self._delivered[(engine,)] += record.cached_tokens

    def forget(self, engine: str) -> None:
        """Remove the series of an engine that leaves the fleet."""
        self._label.forget(engine)
        self._ttft.pop((engine,), None)
        for table in (self._attempts, self._predicted, self._delivered):
            for labels in [labels for labels in table if labels[0] == engine]:
                del table[labels]

    def _find_label(self, attempt: Attempt) -> str:
        """Return the label of the engine that answered; `other` where a gateway sent the request elsewhere."""
        return OTHER if attempt.served is not None else self._label(attempt.decision.row.instance)
