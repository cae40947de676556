"""The parts of one worker's state that other workers change or query."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from router.control.workers import metrics_merge
from router.control.workers.messages import ResponseStored, SessionMoved
from router.control.workers.scheduler import SyncedScheduler
from router.scheduling.policy.record_view import describe_record
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.recent_records import RecentRecords


class LocalState(NamedTuple):
    run_id: str
    scheduler: SyncedScheduler
    recent_records: RecentRecords
    metrics: Metrics

    def apply(self, message: SessionMoved | ResponseStored) -> None:
        if isinstance(message, SessionMoved):
            self.scheduler.apply_session(message)
        else:
            self.scheduler.apply_response(message)

    async def encode_families(self) -> bytes:
        """Encode the counters as of now; the encoding runs in a thread."""
        return await asyncio.to_thread(metrics_merge.encode_families, self.metrics.page())

    def encode_record(self, id: str) -> bytes:
        """Encode a record as JSON; empty when it is not kept."""
        record = self.recent_records.get(id)
        return b"" if record is None else msgspec.json.encode(describe_record(record))

    def encode_records(self, limit: int) -> bytes:
        """Encode the newest records as a JSON list, the newest first."""
        return msgspec.json.encode([describe_record(record) for record in self.recent_records.latest(limit)])
