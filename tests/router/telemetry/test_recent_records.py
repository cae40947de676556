"""The bounded memory of records."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from router.config import schema
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from router.telemetry.recent_records import COMPARED_PER_TURN, RecentRecords
from router.telemetry.record_query import RecordQuery
from tests.suites.views import a_row, a_view

LEAST = build_policy("least", schema.PolicyConfig.model_validate({"scorers": [{"name": "least_requests"}]}))


def record(id: str, at_wall_s: float = 0.0, model: str = "m", **known: Any) -> Record:
    return Record(
        id=id, number=0, arrived_s=0.0, at_wall_s=at_wall_s, endpoint="/v1/completions", model=model, stream=False,
        tokens_from="given", prompt_tokens_counted=None, stages=Stages(), **known,
    )  # fmt: skip


def attempt_at(name: str, session: str | None = None) -> Attempt:
    return Attempt(LEAST.decide(a_view(a_row(name), session=session)), None, None)


def test_none_may_be_kept() -> None:
    ring = RecentRecords(0)
    ring.add(record("a"))
    ring.add(record("b"))
    assert (len(ring), ring.added, ring.latest(9), ring.get("b")) == (0, 2, [], None)


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


def a_ring() -> RecentRecords:
    """Five records, one a second."""
    ring = RecentRecords(10)
    retried = record("1f-2", 12.0, client="team", sender="team")
    retried.attempts = [attempt_at("a", "ana"), attempt_at("b", "ana")]
    pair = record("1f-3", 13.0, sender="10.0.0.7")
    pair.attempts = [attempt_at("b", "bea")]
    pair.attempts[0].prefill = PrefillRecord(LEAST.decide(a_view(a_row("p"))), None, None)
    of_bea = record("1f-10", 14.0, "other", client="team", sender="team")
    of_bea.attempts = [attempt_at("a", "bea")]
    for one in (record("2c-1", 11.0), retried, pair, of_bea, record("1f-20", 15.0)):
        ring.add(one)
    return ring


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (RecordQuery(), ["1f-20", "1f-10", "1f-3", "1f-2", "2c-1"]),
        (RecordQuery(limit=2), ["1f-20", "1f-10"]),
        (RecordQuery(id="1f-2"), ["1f-20", "1f-2"]),
        (RecordQuery(id="1f-2", limit=1), ["1f-20"]),
        (RecordQuery(id="f"), []),
        (RecordQuery(sessions=("ana",)), ["1f-2"]),
        (RecordQuery(sessions=("ana", "bea")), ["1f-10", "1f-3", "1f-2"]),
        (RecordQuery(client="team"), ["1f-10", "1f-2"]),
        (RecordQuery(client="10.0.0.7"), ["1f-3"]),
        (RecordQuery(model="other"), ["1f-10"]),
        (RecordQuery(target="a/0"), ["1f-10", "1f-2"]),
        (RecordQuery(target="b/0"), ["1f-3", "1f-2"]),
        (RecordQuery(target="p/0"), ["1f-3"]),
        (RecordQuery(since_s=13.0), ["1f-20", "1f-10", "1f-3"]),
        (RecordQuery(until_s=12.0), ["1f-2", "2c-1"]),
        (RecordQuery(since_s=12.0, until_s=13.0), ["1f-3", "1f-2"]),
        (RecordQuery(client="team", target="b/0"), ["1f-2"]),
        (RecordQuery(client="team", since_s=20.0), []),
    ],
)
async def test_finding_by_any_of_it_and_by_all_together(query: RecordQuery, found: list[str]) -> None:
    assert [one.id for one in await a_ring().find(query)] == found
    assert msgspec.json.decode(msgspec.json.encode(query), type=RecordQuery) == query  # as other workers get it
    assert [msgspec.json.decode(one)["id"] for one in await a_ring().encode(query)] == found


def a_troubled_ring() -> RecentRecords:
    """One record a second: slow, fast, a 503 of the router, a 500 of the engine, a client that left, one running."""
    ring = RecentRecords(10)
    for id, at_s, known in [
        ("slow", 11.0, {"status": 200, "stream": True, "ttft_ms": 900.0, "duration_ms": 950.0}),
        ("fast", 12.0, {"status": 200, "stream": True, "ttft_ms": 30.0, "duration_ms": 80.0}),
        ("refused", 13.0, {"status": 503, "duration_ms": 20.0, "attempts": []}),
        ("engine", 14.0, {"status": 500, "duration_ms": 70.0}),
        ("left", 15.0, {"status": None, "duration_ms": 9000.0}),
        ("whole", 16.0, {"status": 200, "stream": False, "ttft_ms": 4000.0, "duration_ms": 4000.0}),
        ("running", 17.0, {"status": None, "done": False}),
    ]:
        one = record(id, at_s)
        one.attempts, one.done = [attempt_at("a", None)], True
        one.attempts[0].end = "ok"
        for name, value in known.items():
            setattr(one, name, value)
        ring.add(one)
    return ring


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (RecordQuery(status="200"), ["whole", "fast", "slow"]),
        (RecordQuery(status="5xx"), ["engine", "refused"]),
        (RecordQuery(status="503"), ["refused"]),
        (RecordQuery(status="none"), ["left"]),
        (RecordQuery(error="any"), ["engine", "refused"]),
        (RecordQuery(error="client_gone"), ["left"]),
        (RecordQuery(error="engine_5xx"), ["engine"]),
        (RecordQuery(error="no_target", since_s=14.0), []),
        (RecordQuery(slowest="ttft_ms"), ["slow", "fast"]),
        (RecordQuery(slowest="duration_ms"), ["left", "whole", "slow", "fast", "engine", "refused"]),
        (RecordQuery(2, slowest="duration_ms", status="200"), ["whole", "slow"]),
    ],
)
async def test_finding_the_failed_and_the_slowest(query: RecordQuery, found: list[str]) -> None:
    assert [one.id for one in await a_troubled_ring().find(query)] == found
    assert msgspec.json.decode(msgspec.json.encode(query), type=RecordQuery) == query
    encoded = await a_troubled_ring().encode(query)
    assert query.sort_encoded(encoded[::-1]) == encoded  # as those of several workers are sorted


async def test_requests_go_on_while_many_are_looked_through() -> None:
    ring = RecentRecords(3 * COMPARED_PER_TURN)
    for n in range(3 * COMPARED_PER_TURN):
        ring.add(record(f"r-{n}"))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            ring.add(record(f"later-{turns}"))
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    assert [one.id for one in await ring.find(RecordQuery(id="r-7", limit=9999))][-1] == "r-7"
    beside.cancel()
    assert turns >= 3
