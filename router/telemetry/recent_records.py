"""The last N decision records, in memory, as shown by `/admin/records`.

A record is added when its request is decided, not when it ends, so that a request in flight can be inspected too.
The number of records is bounded; adding, dropping, and finding a record by its id take constant time whatever the
bound. A search by anything else reads all records, in slices between which requests continue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import msgspec
from mypy_extensions import mypyc_attr

from router.scheduling.policy.record import Record
from router.scheduling.policy.record_view import describe_record
from router.telemetry.failure import failure_reason
from router.telemetry.record_query import RecordQuery

RECORDS_PER_TURN = 8  # of the event loop: in a large fleet one record takes a millisecond to describe
COMPARED_PER_TURN = 256  # under a millisecond


@mypyc_attr(allow_interpreted_subclasses=True)
class RecentRecords:
    """The newest `keep` records."""

    def __init__(self, keep: int) -> None:
        self.added = 0  # since the start
        self._keep = keep
        self._order: deque[Record] = deque()
        self._by_id: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, record: Record) -> None:
        """Add a record with a new id; drop the oldest beyond the bound."""
        self.added += 1
        self._order.append(record)
        self._by_id[record.id] = record
        if len(self._order) > self._keep:
            del self._by_id[self._order.popleft().id]

    def get(self, record_id: str) -> Record | None:
        return self._by_id.get(record_id)

    def latest(self, limit: int) -> list[Record]:
        """Return at most `limit` records, newest first."""
        return list(islice(reversed(self._order), limit))

    async def find(self, query: RecordQuery) -> list[Record]:
        """Return the records that match, newest first, or slowest first if the query says so. Requests continue
        meanwhile; their records are not included.
        """
        found: list[Record] = []
        for n, record in enumerate(self.latest(len(self)), 1):
            if query.matches(record):
                found.append(record)
                if query.slowest is None and len(found) == query.limit:
                    break
            if n % COMPARED_PER_TURN == 0:
                await asyncio.sleep(0)
        return found if query.slowest is None else query.select_slowest(found)

    async def encode(self, query: RecordQuery) -> list[bytes]:
        """Return the records that match as JSON, in the order of `find`. Requests continue meanwhile."""
        encoded: list[bytes] = []
        for record in await self.find(query):
            described = describe_record(record, in_full=False)
            described["reason"] = failure_reason(record) if record.done else None
            encoded.append(msgspec.json.encode(described))
            if len(encoded) % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return encoded
