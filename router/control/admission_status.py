"""Admission control as the status shows it: for the admin API, and for the metrics."""

from __future__ import annotations

from typing import Any

from router.request.admission.controller import QUEUES
from router.request.admission.model_admission import ModelAdmission
from router.telemetry.metrics.snapshot import ModelAdmissionState

LISTED = 100  # requests that wait, and tenants, in an answer


def describe_admission(admission: ModelAdmission, now: float) -> dict[str, Any]:
    """Describe a model's live sessions, the capacity for them, its queues, its tenants where they have fair shares, and
    the first requests in the queues, in order.
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


def snapshot_admission(admission: ModelAdmission) -> ModelAdmissionState:
    """Return the same for the metrics."""
    state = admission.state(listed=0)
    waiting: dict[str, int] = {queue: state.queued[queue] for queue in QUEUES}
    live = state.live
    sessions, context_tokens = (None, None) if live is None else (live.programs, live.context_tokens)
    return ModelAdmissionState(admission.model, waiting, sessions, context_tokens, state.capacity_tokens)
