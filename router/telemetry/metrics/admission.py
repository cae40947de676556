"""The door as metrics: who is live, what fits, and who waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric


class ModelAdmissionState(NamedTuple):
    """In front of and behind one model's door."""

    model: str
    waiting: Mapping[str, int]  # by queue
    sessions: float  # live: each counts with the chance that it comes back
    context_tokens: float  # of those
    capacity_tokens: int | None  # None: unknown, so nobody waits


def gate_families(gates: Sequence[ModelAdmissionState]) -> Iterator[Metric]:
    model = ("model",)
    waiting = GaugeMetricFamily(
        "warmroute_admission_waiting_requests",
        "requests that wait for room in the caches, by queue",
        labels=("model", "queue"),
    )
    sessions = GaugeMetricFamily("warmroute_admission_live_sessions", "sessions expected to come back", labels=model)
    context = GaugeMetricFamily("warmroute_admission_context_tokens", "tokens of their contexts", labels=model)
    fits = GaugeMetricFamily(
        "warmroute_admission_capacity_tokens",
        "tokens that fit the caches; none: unknown, and the door is open",
        labels=model,
    )
    for gate in gates:
        for queue, count in gate.waiting.items():
            waiting.add_metric((gate.model, queue), count)
        sessions.add_metric((gate.model,), gate.sessions)
        context.add_metric((gate.model,), gate.context_tokens)
        if gate.capacity_tokens is not None:
            fits.add_metric((gate.model,), gate.capacity_tokens)
    yield from (waiting, sessions, context, fits)
