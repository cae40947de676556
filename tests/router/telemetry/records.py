"""Finished records for tests of the decision log, and waiting for its thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from router.config import schema
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from scorers.contract import View
from tests.patience import PATIENCE_S
from tests.suites.views import a_load, a_row, a_view, an_overlap

POLICY = build_policy(
    "default", schema.PolicyConfig.model_validate({"scorers": [{"name": "queue_depth", "weight": 2}]})
)
VIEW = a_view(a_row("a", an_overlap(32, disk=48), a_load(requests=3)), a_row("b"), session="5e55", prompt_tokens=60)


def a_record(number: int = 0, view: View = VIEW, **known: Any) -> Record:
    record = Record(
        f"run-{number}", number, 12.5, 1_700_000_000.25, "/v1/completions", "m", True, "local", 60, Stages(0.25),
        policy=POLICY, attempts=[Attempt(POLICY.decide(view), 32, 36, None, "ok")], status=200, ttft_ms=80.0,
        duration_ms=950.0, prompt_tokens=61, cached_tokens=32, output_tokens=7, done=True,
    )  # fmt: skip
    for name, value in known.items():
        setattr(record, name, value)
    return record


def until(true: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.005)
