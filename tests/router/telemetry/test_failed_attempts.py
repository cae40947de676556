"""The line about the requests that an instance failed."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from router.tasks import Tasks
from router.telemetry import failed_attempts
from router.telemetry.failed_attempts import FailedAttempts
from router.telemetry.record_query import RecordQuery


def record(*ends: tuple[str, str], status: int | None = 200, error: str | None = None) -> Any:
    """A request that ended; `ends`: target and end of each attempt."""
    places = [(SimpleNamespace(target=target), end) for target, end in ends]
    attempts = [SimpleNamespace(decision=decision, end=end, prefill=None) for decision, end in places]
    return SimpleNamespace(attempts=attempts, status=status, error=error, at_wall_s=0.0, done=True)


async def test_one_line_for_each_instance(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_attempts, "SETTLE_S", 0.01)
    tasks = Tasks("test")
    failures = FailedAttempts(tasks)
    records = [
        record(("a/0", "died"), ("b/0", "ok")),
        record(("a/0", "connect"), ("b/0", "died"), ("c/0", "ok")),
        record(("a/0", "continued"), ("b/0", "ok")),
        record(("a/0", "broken"), error="the engine closed the connection"),
        record(("a/0", "died"), status=502, error="died"),
        record(("c/0", "busy"), ("a/0", "ok")),
        record(("c/0", "client_gone"), error="left"),
        record(("c/0", "ok")),
    ]
    for each in records:
        failures.add(each)
    with caplog.at_level(logging.WARNING, "warmroute.request"):
        await asyncio.gather(*tasks._running)
    assert sorted(caplog.messages) == [
        "a/0 failed 5 requests: 2 answered by other engines, 1 stream continued, 2 lost; each: GET "
        "/admin/records?error=attempt&target=a/0",
        "b/0 failed 1 request: 1 answered by other engines, 0 streams continued, 0 lost; each: GET "
        "/admin/records?error=attempt&target=b/0",
    ]
    for target, count in (("a/0", 5), ("b/0", 1), ("c/0", 0), (None, 5)):
        query = RecordQuery(error="attempt", target=target)
        assert sum(query.matches(each) for each in records) == count, target
