"""Which of several routers loads ahead."""

from __future__ import annotations

from router.control.preload.preloading import is_first
from router.telemetry.metrics.snapshot import ReplicaReport


def replica(run: str | None, *, own: bool = False, heard_s: float | None = 0.1) -> ReplicaReport:
    return ReplicaReport("host:9004", run, own, True, heard_s, 0.001, 0, 0, 0)


def test_the_first_of_those_that_are_heard() -> None:
    assert is_first("b", [])
    assert is_first("b", [replica("b", own=True), replica("c")])
    assert not is_first("b", [replica("b", own=True), replica("c"), replica("a")])
    assert is_first("b", [replica("a", heard_s=None)])  # it was lost: the next one takes over
    assert is_first("b", [replica(None, heard_s=None)])  # it has not answered yet
