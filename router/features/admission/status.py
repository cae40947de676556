"""The status of admission control, for the admin API and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import Metric

from router.features.admission.controller import QUEUES
from router.features.admission.model_admission import ModelAdmission
from router.telemetry.metrics.family import build_family, by_label

LISTED = 100  # waiting requests, and tenants, in an answer


def describe_admission(admission: ModelAdmission, now: float) -> dict[str, Any]:
    """Describe a model's live sessions, the capacity for them, its queues, its tenants if they have fair shares,
    and the first requests in the queues, in order.
    """
    state = admission.state(listed=LISTED)
    live = state.live
    return {
        "model": admission.model,
        "capacity_tokens": state.capacity_tokens,
        "context_tokens": None if live is None else round(live.context_tokens),
        "mean_context_tokens": None if live is None else live.mean_tokens,
        "live_sessions": None if live is None else round(live.programs, 1),
        "known_sessions": state.known,
        "queued": state.queued,
        "tenants": [
            {
                "tenant": share.name,
                "weight": share.weight,
                "waiting": share.waiting,
                "running": share.running,
                "charged_tokens": round(share.charged_tokens),
                "ahead_tokens": round(share.ahead_tokens),
            }
            for share in state.shares
        ],
        "waiting": [
            {
                "position": queued.position,
                "queue": queued.admission.queue,
                "prompt_tokens": queued.admission.prompt_tokens or None,
                "waited_s": round(now - queued.admission.since_s, 3),
                "expected_s": None if queued.expected_s is None else round(queued.expected_s, 3),
            }
            for queued in state.waiting
        ],
    }


def list_families(models: Iterable[ModelAdmission]) -> Iterator[Metric]:
    """Return the metrics of admission, by model."""
    states = {one.model: one.state(listed=0) for one in models}
    live = {model: state.live for model, state in states.items()}
    waiting = (((model, queue), state.queued[queue]) for model, state in states.items() for queue in QUEUES)
    sessions = {model: None if found is None else found.programs for model, found in live.items()}
    contexts = {model: None if found is None else found.context_tokens for model, found in live.items()}
    capacity = {model: state.capacity_tokens for model, state in states.items()}
    labels, queued = ("model",), "requests that wait for admission, by queue"
    yield build_family("admission_waiting_requests", queued, ("model", "queue"), waiting)
    yield build_family("admission_live_sessions", "sessions expected to come back", labels, by_label(sessions))
    of_contexts = "tokens of the contexts of those sessions"
    yield build_family("admission_context_tokens", of_contexts, labels, by_label(contexts))
    fits = "tokens that fit the KV caches; no sample while unknown: everything is admitted"
    yield build_family("admission_capacity_tokens", fits, labels, by_label(capacity))
