"""The shared pool as the status shows it: for the admin API, and for the metrics."""

from __future__ import annotations

from typing import Any

from router.features.pool.report import PoolReport
from router.scheduling.policy.record_view import to_plain
from router.telemetry.metrics.snapshot import PoolState


def describe_pool(report: PoolReport) -> dict[str, Any]:
    """Describe the shared pool: its masters, query outcomes, and how each model's blocks are named."""
    return {
        "leader": report.leader,
        "masters": [to_plain(master) for master in report.masters],
        "answers": count_answers(report),
        "asked": to_plain(report.queries),
        "models": [
            {**to_plain(model), "chain": None if model.chain is None else str(model.chain)} for model in report.models
        ],
        "remembered_digests": report.remembered_digests,
    }


def snapshot_pool(report: PoolReport) -> PoolState:
    """Return the values of the pool's metrics."""
    return PoolState(
        masters={master.instance: master.instance == report.leader for master in report.masters},
        answers=count_answers(report),
        queries=report.queries.questions,
        keys=report.queries.keys,
        query_s=report.queries.answer_s,
        answered=report.queries.answers,
        names={m.model: "refuted" if m.trouble is not None else m.calibration for m in report.models},
    )


def count_answers(report: PoolReport) -> dict[str, int]:
    """Return the number of requests by the pool's answer: held, nothing, or the reason why it is unknown."""
    return {"held": report.hits, "nothing": report.misses} | {str(why): n for why, n in report.unknown.items()}
