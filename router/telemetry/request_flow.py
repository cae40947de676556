"""Sums of recent requests, by time and by target, for the live page.

recent records -> `RequestFlow`, one per worker -> `FlowUpdate`, what changed -> `MergedFlow`, all workers together

Nothing is counted as requests pass. A caller that wants the sums creates a `RequestFlow`, which reads the recent
records, and then calls `update` every second or so, which reads the new records and those that have ended
meanwhile. So only a viewer causes the cost, about 3 us per request. Records are read `RECORDS_PER_TURN` at a time,
so that requests continue meanwhile.

Latencies are counted in logarithmic bins: bin `i` has the times from `exp(i / 8)` to `exp((i + 1) / 8)` ms, 13 %
wide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from math import log
from typing import Any, NamedTuple

import msgspec

from router.clock import Clock
from router.scheduling.policy.record import Attempt, Record
from router.scheduling.policy.timeline import is_blind
from router.telemetry.failed_attempts import FAILED
from router.telemetry.failure import CLIENTS_OWN, describe_end, failure_reason
from router.telemetry.recent_records import RecentRecords

BUCKET_S = 5
WINDOW_S = 900
SLOT_S = 30  # of the sums by target
TARGET_WINDOW_S = 300
BINS_PER_E = 8.0
SHORTEST_MS = 1e-3  # counted in the lowest bin
RECORDS_PER_TURN = 200  # of the event loop: about 0.6 ms
ENGINE_ERRORS = FAILED | {"busy", "deadline", "engine_5xx"}  # ends of attempts that count as errors of the target
PREFILL_ERRORS = frozenset(("connect", "busy", "died", "failed", "deadline"))  # the same of prefill halves


class FlowBucket(msgspec.Struct, array_like=True):
    """The requests of one arm (or policy, outside of an experiment) that arrived within `BUCKET_S`."""

    start_s: int  # wall clock, seconds
    lane: str  # the arm, or the policy
    placed: int = 0
    ended: int = 0
    failed: int = 0  # for a reason that is not the client's own
    blind: int = 0  # placed without the ids of their prompts
    returning: int = 0  # of sessions that had a target
    stayed: int = 0  # of `returning`, sent to that target again
    prompt_tokens: int = 0  # of answers whose cached tokens the engine reported
    delivered_tokens: int = 0  # of `prompt_tokens`, those cached
    promised_prompt_tokens: int = 0  # of `prompt_tokens`, those of requests whose cached tokens the index estimated
    predicted_tokens: int = 0  # of `promised_prompt_tokens`, cached as the index predicted
    compared_tokens: int = 0  # of `promised_prompt_tokens`, cached as the engine reported
    pool_tokens: int = 0  # of `prompt_tokens`, predicted from the shared pool beyond the target's own
    ttft: dict[int, int] = {}  # requests by bin of the time to first byte
    own: dict[int, int] = {}  # requests by bin of the router's own time


class TargetFlow(msgspec.Struct, array_like=True):
    """The requests of one arm or policy at one target, of the last `TARGET_WINDOW_S`."""

    target: str
    lane: str
    placed: int = 0  # attempts; a request that failed here and was answered elsewhere counts at both
    failed: int = 0  # attempts and prefill halves that the target failed
    prompt_tokens: int = 0
    delivered_tokens: int = 0
    promised_prompt_tokens: int = 0
    predicted_tokens: int = 0
    compared_tokens: int = 0


class FlowUpdate(msgspec.Struct):
    """The changes since the last update: whole buckets, with all their requests. `targets` has every target."""

    since_s: float | None  # wall clock: how far back the records go; None: there were no records
    buckets: list[FlowBucket]
    targets: list[TargetFlow]


class TargetRequest(NamedTuple):
    """One of the last requests of a target."""

    id: str
    at_s: float  # wall clock
    lane: str
    end: str
    status: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    predicted_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None  # of streamed answers only: others begin after their last token
    duration_ms: float | None
    alone: bool  # no other request was prefilling or waiting at the target when this one was placed


class RequestFlow:
    """The sums of one process."""

    def __init__(self, records: RecentRecords, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._seen = records.added - len(records)
        self._running: list[tuple[Record, int]] = []  # with the number of attempts that are counted
        self._buckets: dict[tuple[int, str], FlowBucket] = {}
        self._slots: dict[int, dict[tuple[str, str], TargetFlow]] = {}  # by start
        self._changed: set[tuple[int, str]] = set()
        self._since_s: float | None = None

    async def update(self) -> FlowUpdate:
        """Count the new records and the requests that ended. Return the changes; at the first call, everything."""
        oldest_s = self._clock.wall() - WINDOW_S
        new = self._records.latest(self._records.added - self._seen)
        self._seen += len(new)
        for n, record in enumerate(reversed(new)):
            if record.at_wall_s >= oldest_s:
                self._place(record)
            if n % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await asyncio.sleep(0)
        running, self._running = self._running, []
        for n, (record, counted) in enumerate(running):
            if record.done:
                self._end(record, counted)
            else:
                self._running.append((record, counted))
            if n % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._forget(oldest_s)
        changed, self._changed = self._changed, set()
        buckets = [self._buckets[key] for key in sorted(changed) if key in self._buckets]
        return FlowUpdate(self._since_s, buckets, self._sum_targets())

    def _place(self, record: Record) -> None:
        if self._since_s is None:
            self._since_s = record.at_wall_s
        bucket = self._bucket(record)
        bucket.placed += 1
        bucket.blind += is_blind(record.tokens_from)
        if record.attempts:
            attempt = record.attempts[0]
            last = attempt.decision.view.last_target
            if last is not None:
                bucket.returning += 1
                bucket.stayed += last == attempt.decision.target
            self._target(record, attempt.decision.target).placed += 1
        self._running.append((record, min(1, len(record.attempts))))

    def _end(self, record: Record, counted: int) -> None:
        """Count a request that has ended, of whose attempts the first `counted` are counted as placed."""
        bucket = self._bucket(record)
        attempt = record.attempts[-1] if record.attempts else None
        reason = failure_reason(record)
        failed = reason is not None and reason not in CLIENTS_OWN
        bucket.ended += 1
        bucket.failed += failed
        if record.ttft_ms is not None and record.stream and not failed:
            _count(bucket.ttft, record.ttft_ms)
        if (own_ms := own_time_ms(record)) is not None:
            _count(bucket.own, own_ms)
        if attempt is None:
            return
        for further in record.attempts[counted:]:
            self._target(record, further.decision.target).placed += 1
        for failed_at in _failed_targets(record):
            self._target(record, failed_at).failed += 1
        target = self._target(record, attempt.decision.target)
        if record.cached_tokens is None or record.prompt_tokens is None:
            return
        bucket.pool_tokens += attempt.pool_tokens or 0
        leg = attempt if attempt.prefill is None else attempt.prefill  # the half that computed the prompt
        for sums in (bucket, target):
            sums.prompt_tokens += record.prompt_tokens
            sums.delivered_tokens += record.cached_tokens
            if leg.predicted_tokens is not None:
                sums.promised_prompt_tokens += record.prompt_tokens
                sums.predicted_tokens += leg.predicted_tokens
                sums.compared_tokens += record.cached_tokens

    def _bucket(self, record: Record) -> FlowBucket:
        key = int(record.at_wall_s) // BUCKET_S * BUCKET_S, lane_of(record)
        self._changed.add(key)
        if (bucket := self._buckets.get(key)) is None:
            bucket = self._buckets[key] = FlowBucket(*key)
        return bucket

    def _target(self, record: Record, target: str) -> TargetFlow:
        slot = self._slots.setdefault(int(record.at_wall_s) // SLOT_S * SLOT_S, {})
        key = target, lane_of(record)
        if (sums := slot.get(key)) is None:
            sums = slot[key] = TargetFlow(*key)
        return sums

    def _sum_targets(self) -> list[TargetFlow]:
        return merge_targets(sums for slot in self._slots.values() for sums in slot.values())

    def _forget(self, oldest_s: float) -> None:
        for key in [key for key in self._buckets if key[0] + BUCKET_S < oldest_s]:
            del self._buckets[key]
        for start_s in [start for start in self._slots if start + SLOT_S < oldest_s + WINDOW_S - TARGET_WINDOW_S]:
            del self._slots[start_s]


class MergedFlow:
    """The sums of all workers. A worker is named by the run with which its records' ids begin."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.buckets: dict[tuple[int, str], FlowBucket] = {}
        self.targets: list[TargetFlow] = []
        self._parts: dict[tuple[int, str], dict[str, FlowBucket]] = {}

    def apply(self, updates: dict[str, FlowUpdate], oldest_s: float) -> list[FlowBucket]:
        """Add the workers' updates and drop buckets before `oldest_s`. Return the buckets that changed."""
        changed = set()
        for run, update in updates.items():
            for bucket in update.buckets:
                key = bucket.start_s, bucket.lane
                self._parts.setdefault(key, {})[run] = bucket
                changed.add(key)
            if update.since_s is not None:
                self.since_s = update.since_s if self.since_s is None else min(self.since_s, update.since_s)
        for key in changed:
            self.buckets[key] = _merge_buckets(list(self._parts[key].values()))
        for key in [key for key in self.buckets if key[0] < oldest_s]:
            del self.buckets[key], self._parts[key]
        self.targets = merge_targets(sums for update in updates.values() for sums in update.targets)
        return [self.buckets[key] for key in sorted(changed) if key in self.buckets]


def merge_targets(parts: Iterable[TargetFlow]) -> list[TargetFlow]:
    """Return one sum per target and lane."""
    totals: dict[tuple[str, str], TargetFlow] = {}
    for part in parts:
        key = part.target, part.lane
        if (total := totals.get(key)) is None:
            total = totals[key] = TargetFlow(*key)
        total.placed += part.placed
        total.failed += part.failed
        total.prompt_tokens += part.prompt_tokens
        total.delivered_tokens += part.delivered_tokens
        total.promised_prompt_tokens += part.promised_prompt_tokens
        total.predicted_tokens += part.predicted_tokens
        total.compared_tokens += part.compared_tokens
    return list(totals.values())


def _merge_buckets(parts: list[FlowBucket]) -> FlowBucket:
    if len(parts) == 1:
        return parts[0]
    values: list[Any] = [parts[0].start_s, parts[0].lane]
    for field in FlowBucket.__struct_fields__[2:]:
        of_parts = [getattr(part, field) for part in parts]
        if field in ("ttft", "own"):
            values.append({bin: sum(p.get(bin, 0) for p in of_parts) for bin in set().union(*of_parts)})
        else:
            values.append(sum(of_parts))
    return FlowBucket(*values)


def _failed_targets(record: Record) -> Iterator[str]:
    """Yield the target of every attempt and prefill half that failed by the target's fault."""
    for attempt in record.attempts:
        if describe_end(attempt, record.status) in ENGINE_ERRORS:
            yield attempt.decision.target
        if attempt.prefill is not None and attempt.prefill.end in PREFILL_ERRORS:
            yield attempt.prefill.target


def lane_of(record: Record) -> str:
    """Return the arm that decided, or the policy outside of an experiment; empty if none decided."""
    return record.arm or (record.policy.name if record.policy is not None else "")


def own_time_ms(record: Record) -> float | None:
    """Return the milliseconds that the router computed for a request, without waiting for others. None if
    unknown.
    """
    stages = record.stages
    known = [
        ms
        for ms in (stages.parse_ms, stages.tokens_ms, stages.keys_ms, stages.match_ms, stages.decide_ms)
        if ms is not None
    ]
    return sum(known) if known else None


async def list_target_requests(records: RecentRecords, target: str, limit: int) -> list[TargetRequest]:
    """Return the newest requests whose last attempt was at `target`, newest first."""
    found: list[TargetRequest] = []
    for n, record in enumerate(records.latest(len(records))):
        if record.attempts and record.attempts[-1].decision.target == target:
            found.append(_summarize(record, record.attempts[-1]))
            if len(found) == limit:
                break
        if n % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
            await asyncio.sleep(0)
    return found


def _summarize(record: Record, attempt: Attempt) -> TargetRequest:
    row = next((row for row in attempt.decision.rows if row.target == attempt.decision.target), None)
    return TargetRequest(
        record.id,
        record.at_wall_s,
        lane_of(record),
        attempt.end,
        record.status,
        record.prompt_tokens if record.prompt_tokens is not None else record.prompt_tokens_counted,
        record.cached_tokens,
        attempt.predicted_tokens,
        record.output_tokens,
        record.ttft_ms if record.stream else None,
        record.duration_ms,
        row is not None and not row.load.prefilling and not row.load.waiting,
    )


def _count(bins: dict[int, int], ms: float) -> None:
    bin = int(log(max(ms, SHORTEST_MS)) * BINS_PER_E // 1)
    bins[bin] = bins.get(bin, 0) + 1
