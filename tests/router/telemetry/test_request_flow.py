"""Sums of recent requests: when they are counted, how far back they go, and several workers' as one's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.clock import ManualClock
from router.scheduling.policy.record import Attempt, Record
from router.telemetry.recent_records import RecentRecords
from router.telemetry.request_flow import (
    BUCKET_S,
    TARGET_WINDOW_S,
    WINDOW_S,
    FlowUpdate,
    MergedFlow,
    RequestFlow,
    list_target_requests,
)
from tests.router.telemetry.records import POLICY, a_record
from tests.suites.views import a_row, a_view

WALL = 1_700_000_000.0


class Watched:
    """A flow over records that a test adds."""

    def __init__(self) -> None:
        self.clock = ManualClock(wall=WALL)
        self.records = RecentRecords(10_000)
        self.flow = RequestFlow(self.records, self.clock)
        self.number = 0

    def add(self, **known: Any) -> Record:
        self.number += 1
        record = a_record(self.number, at_wall_s=self.clock.wall(), **known)
        self.records.add(record)
        return record


async def test_a_request_is_placed_at_once_and_ends_later() -> None:
    watched = Watched()
    record = watched.add(done=False)
    (bucket,) = (await watched.flow.update()).buckets
    assert (bucket.start_s, bucket.lane, bucket.placed, bucket.ended) == (WALL, "default", 1, 0)
    assert (await watched.flow.update()).buckets == []
    record.done = True
    watched.clock.advance(3 * BUCKET_S)
    (bucket,) = (await watched.flow.update()).buckets
    assert (bucket.start_s, bucket.placed, bucket.ended, bucket.failed) == (WALL, 1, 1, 0)
    assert (bucket.prompt_tokens, bucket.predicted_tokens, bucket.compared_tokens) == (61, 32, 32)
    assert sum(bucket.ttft.values()) == sum(bucket.own.values()) == 1


async def test_records_from_before_anybody_looked_are_counted() -> None:
    watched = Watched()
    for _ in range(500):
        watched.add()
        watched.clock.advance(0.02)
    late = RequestFlow(watched.records, watched.clock)
    update = await late.update()
    assert sum(bucket.placed for bucket in update.buckets) == 500
    assert update.since_s == WALL
    (target,) = update.targets
    assert (target.target, target.placed, target.prompt_tokens) == ("b/0", 500, 500 * 61)


async def test_what_is_older_than_the_window_is_forgotten() -> None:
    watched = Watched()
    watched.add()
    assert (await watched.flow.update()).targets[0].placed == 1
    watched.clock.advance(TARGET_WINDOW_S + 60)
    assert (await watched.flow.update()).targets == []
    watched.clock.advance(WINDOW_S)
    watched.add()
    (bucket,) = (await watched.flow.update()).buckets
    assert bucket.start_s > WALL + WINDOW_S


async def test_requests_without_the_ids_of_their_prompts_are_blind() -> None:
    watched = Watched()
    for source in ("local", "remote", "given", "not_needed", "media", "late"):
        watched.add(tokens_from=source)
    (bucket,) = (await watched.flow.update()).buckets
    assert (bucket.placed, bucket.blind) == (6, 2)


async def test_what_is_unknown_is_not_counted_as_nothing() -> None:
    watched = Watched()
    record = watched.add(cached_tokens=None)
    unpromised = watched.add()
    unpromised.attempts[0].predicted_tokens = None
    (bucket,) = (await watched.flow.update()).buckets
    assert (bucket.ended, bucket.prompt_tokens, bucket.delivered_tokens) == (2, 61, 32), record.id
    assert (bucket.promised_prompt_tokens, bucket.compared_tokens) == (0, 0), (
        "nothing was promised, so nothing is compared"
    )


@pytest.mark.parametrize(("end", "failed"), [("ok", 0), ("client_gone", 0), ("died", 1), ("connect", 1)])
async def test_only_the_fleets_faults_are_failures(end: str, failed: int) -> None:
    watched = Watched()
    watched.add().attempts[0].end = end  # type: ignore[assignment]
    (bucket,) = (await watched.flow.update()).buckets
    assert bucket.failed == failed


async def test_an_error_of_the_engine_fails_the_request_and_an_error_of_the_client_does_not() -> None:
    watched = Watched()
    for status in (200, 400, 500):
        watched.add(status=status)
    update = await watched.flow.update()
    assert (update.buckets[0].failed, update.targets[0].failed) == (1, 1)


async def test_an_attempt_counts_where_it_failed_and_the_request_where_it_was_answered() -> None:
    watched = Watched()
    record = watched.add()
    died = Attempt(POLICY.decide(a_view(a_row("sick"))), None, None, None, "died")
    record.attempts = [died, *record.attempts]
    update = await watched.flow.update()
    assert update.buckets[0].failed == 0
    assert {t.target: (t.placed, t.failed) for t in update.targets} == {"sick/0": (1, 1), "b/0": (1, 0)}


async def test_workers_add_up() -> None:
    here, there = Watched(), Watched()
    here.add(done=False)
    there.add()
    there.add()
    merged = MergedFlow()

    async def apply(oldest_s: float = 0.0) -> list[Any]:
        updates = {"a": await here.flow.update(), "b": await there.flow.update()}
        sent = {run: msgspec.msgpack.decode(msgspec.msgpack.encode(u), type=FlowUpdate) for run, u in updates.items()}
        return merged.apply(sent, oldest_s)

    (bucket,) = await apply()
    assert (bucket.placed, bucket.ended, sum(bucket.ttft.values())) == (3, 2, 2)
    assert merged.targets[0].placed == 3
    assert await apply() == []
    there.add()
    (bucket,) = await apply()
    assert bucket.placed == 4, "the other worker's part is still in it"
    assert await apply(oldest_s=WALL + 1) == []
    assert merged.buckets == {}


async def test_last_requests_of_a_target() -> None:
    watched = Watched()
    for _ in range(5):
        watched.add()
    found = await list_target_requests(watched.records, "b/0", 3)
    assert [request.id for request in found] == ["run-5", "run-4", "run-3"]
    assert (found[0].lane, found[0].predicted_tokens, found[0].ttft_ms, found[0].alone) == ("default", 32, 80.0, True)
    assert await list_target_requests(watched.records, "a/0", 3) == []
