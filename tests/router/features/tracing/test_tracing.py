"""The thread that exports traces: what it is given, what it drops, and how it bears a receiver that is away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace

from router.clock import SystemClock
from router.features.tracing import tracing as module
from router.features.tracing.spans import RequestSpan
from router.features.tracing.tracing import Tracing, TracingStats
from router.telemetry.trace_context import HeadSampler, TraceContext, draw_ids
from tests.router.telemetry.records import a_record, until

SAMPLED = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", None, sampled=True)
UNSAMPLED = replace(SAMPLED, sampled=False)


class Sender:
    """Keeps what is sent. `takes`: the receiver is there; `let`: it answers."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.takes = True
        self.let, self.asked = Event(), Event()
        self.let.set()

    def build(self, trace: TraceContext, spans: Sequence[RequestSpan]) -> list[Any]:
        if trace.trace_id == "bad":
            raise TypeError("no form")
        return [str(spans[0].attributes["warmroute.record"])]

    def send(self, spans: Sequence[Any]) -> bool:
        self.asked.set()
        self.let.wait(10)
        self.sent += spans
        return self.takes

    def close(self) -> None:
        self.let.set()


@contextmanager
def running(sender: Sender, queue: int = 100, slow_s: float | None = None) -> Iterator[Tracing]:
    sampler = HeadSampler(0.5, draw_ids().__next__)
    tracing = Tracing(sampler, sender, lambda target: None, SystemClock(), slow_s=slow_s, queue=queue)
    tracing.start()
    try:
        yield tracing
    finally:
        tracing.close()


def test_what_is_sampled_is_sent() -> None:
    sender = Sender()
    with running(sender) as tracing:
        assert tracing.end(SAMPLED, a_record(1))
        until(lambda: tracing.stats.exported == 1)
        assert tracing.end(SAMPLED, a_record(2))
    assert sender.sent == ["run-1", "run-2"]
    assert tracing.stats == TracingStats(2, 0, 0)


@pytest.mark.parametrize(
    ("known", "exported"),
    [
        ({}, False),
        ({"status": 500}, True),
        ({"status": 400}, False),
        ({"status": None}, False),  # the client left
        ({"status": 503, "attempts": []}, True),
        ({"poison": True, "status": 502}, True),
        ({"duration_ms": 2001.0}, True),
        ({"duration_ms": 1999.0}, False),
    ],
)
def test_what_is_exported_although_it_is_not_sampled(known: dict[str, Any], exported: bool) -> None:
    with running(Sender(), slow_s=2.0) as tracing:
        assert tracing.end(UNSAMPLED, a_record(1, **known)) is exported


def test_a_full_queue_drops_and_counts() -> None:
    sender = Sender()
    sender.let.clear()
    with running(sender, queue=3) as tracing:
        tracing.end(SAMPLED, a_record(0))
        assert sender.asked.wait(10)
        taken = [tracing.end(SAMPLED, a_record(number)) for number in range(1, 6)]
        assert taken == [True, True, True, False, False]
        assert tracing.stats.dropped == 2
        sender.let.set()
    assert sender.sent == ["run-0", "run-1", "run-2", "run-3"]


def test_a_receiver_that_takes_nothing_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    sender = Sender()
    sender.takes = False
    with running(sender) as tracing:
        for number in range(3):
            tracing.end(SAMPLED, a_record(number))
            until(lambda n=number: tracing.stats.failed == n + 1)  # type: ignore[misc]
        sender.takes = True
        tracing.end(SAMPLED, a_record(3))
        until(lambda: tracing.stats.exported == 1)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert tracing.stats == TracingStats(1, 0, 3)


def test_a_record_without_spans_does_not_stop_the_rest() -> None:
    sender = Sender()
    with running(sender) as tracing:
        tracing.end(replace(SAMPLED, trace_id="bad"), a_record(1))
        tracing.end(SAMPLED, a_record(2))
        until(lambda: tracing.stats == TracingStats(1, 0, 1))
    assert sender.sent == ["run-2"]


def test_closing_does_not_wait_for_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender()
    sender.let.clear()
    with running(sender) as tracing:
        tracing.end(SAMPLED, a_record(1))
        assert sender.asked.wait(10)
        tracing.close(within_s=0.05)
    assert not tracing.end(SAMPLED, a_record(2))
