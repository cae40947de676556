"""Watches of the health service: thousands of them cost one look at each service."""

from __future__ import annotations

from collections import Counter

import pytest

from router.picker import health as module
from router.picker.grpc_stream import GrpcHandler
from router.picker.health import PickerHealth
from router.picker.health_pb2 import NOT_SERVING, SERVING, HealthRequest, HealthResponse
from tests.fakes.engines import eventually
from tests.fakes.http2 import WATCH


class Stream:
    """Keeps the statuses that it was told."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def send(self, data: bytes) -> None:
        self.statuses.append(HealthResponse.FromString(data).status)


async def test_all_watches_of_a_service_are_told_by_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    looks = Counter[str]()
    stops = False

    def unready_reason() -> str | None:
        looks["engine"] += 1
        return None

    def stopping() -> bool:
        looks["stopping"] += 1
        return stops

    health = PickerHealth(unready_reason, stopping)
    streams = [Stream() for _ in range(1000)]
    calls: list[GrpcHandler] = []
    for number, stream in enumerate(streams):
        calls.append(health.services()[WATCH](stream))  # type: ignore[arg-type]
        calls[-1].on_message(HealthRequest(service="readiness" if number % 2 else "").SerializeToString())
    assert all(stream.statuses == [SERVING] for stream in streams)
    looks.clear()
    stops = True
    await eventually(lambda: streams[-1].statuses == [SERVING, NOT_SERVING])
    assert all(stream.statuses == [SERVING, NOT_SERVING] for stream in streams)
    assert looks["stopping"] < 100, "two a round"
    for call in calls:
        call.on_gone()
    looks.clear()
    await eventually(lambda: health._timer is None)
    assert looks["stopping"] == 0
