"""The bounded memory of records."""

from __future__ import annotations

from router.scheduling.policy.record import Record, Stages
from router.telemetry.recent_records import RecentRecords


def record(id: str) -> Record:
    return Record(
        id=id, number=0, arrived_s=0.0, at_wall_s=0.0, endpoint="/v1/completions", model="m", stream=False,
        tokens_from="given", prompt_tokens_counted=None, stages=Stages(),
    )  # fmt: skip


def test_newest_first() -> None:
    ring = RecentRecords(10)
    for id in "abc":
        ring.add(record(id))
    assert [r.id for r in ring.latest(2)] == ["c", "b"]
    assert [r.id for r in ring.latest(99)] == ["c", "b", "a"]
    assert ring.latest(0) == []


def test_a_record_in_flight_is_found_and_seen_changing() -> None:
    ring = RecentRecords(2)
    running = record("a")
    ring.add(running)
    running.status = 200
    found = ring.get("a")
    assert found is running
    assert found.status == 200


def test_the_oldest_is_forgotten_when_full() -> None:
    ring = RecentRecords(3)
    for n in range(10):
        ring.add(record(f"r{n}"))
    assert len(ring) == 3
    assert [r.id for r in ring.latest(10)] == ["r9", "r8", "r7"]
    assert ring.get("r6") is None
    assert ring.get("r7") is not None


def test_unknown_is_none() -> None:
    assert RecentRecords(1).get("nobody") is None
