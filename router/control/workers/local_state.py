"""The rooms of one worker that the others have a part in; and what every worker does alike with what it hears."""

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
    core: SyncedScheduler
    ring: RecentRecords
    metrics: Metrics

    def heard(self, told: SessionMoved | ResponseStored) -> None:
        if isinstance(told, SessionMoved):
            self.core.apply_session(told)
        else:
            self.core.apply_response(told)

    async def families(self) -> bytes:
        """For `merging`: fixed now, written in another thread."""
        return await asyncio.to_thread(metrics_merge.encode_families, self.metrics.page())

    def record(self, id: str) -> bytes:
        """JSON; nothing: it is not kept."""
        found = self.ring.get(id)
        return b"" if found is None else msgspec.json.encode(describe_record(found))

    def records(self, limit: int) -> bytes:
        """A JSON list, the newest first."""
        return msgspec.json.encode([describe_record(record) for record in self.ring.latest(limit)])
