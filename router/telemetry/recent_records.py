"""The last N decision records, in memory: what `/admin/records` shows.

A record is added when its request is decided, not when it ends, so that a request in flight can be inspected too.
Bounded by count; adding, finding and dropping take constant time whatever the bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import msgspec

from router.scheduling.policy.record import Record
from router.scheduling.policy.record_view import describe_record

RECORDS_PER_TURN = 8  # of the event loop: in a large fleet one takes a millisecond to describe


class RecentRecords:
    """The newest `keep` records."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._order: deque[Record] = deque()
        self._by_id: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, record: Record) -> None:
        """Add a record with a new id; drop the oldest beyond the bound."""
        self._order.append(record)
        self._by_id[record.id] = record
        if len(self._order) > self._keep:
            del self._by_id[self._order.popleft().id]

    def get(self, record_id: str) -> Record | None:
        return self._by_id.get(record_id)

    def latest(self, limit: int) -> list[Record]:
        """Return at most `limit` records, newest first."""
        return list(islice(reversed(self._order), limit))

    async def encode_latest(self, limit: int) -> list[bytes]:
        """Return at most `limit` records as JSON, newest first. Requests go on meanwhile."""
        encoded: list[bytes] = []
        for record in self.latest(limit):
            encoded.append(msgspec.json.encode(describe_record(record, parts=False)))
            if len(encoded) % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return encoded
