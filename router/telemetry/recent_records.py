"""The last N decision records, in memory: what `/admin/records` shows.

A record is added when its request is decided, not when it ends, so that a request in flight can be inspected too.
Bounded by count; adding, dropping and finding one by its id take constant time whatever the bound. Finding some by
anything else reads all of them, in slices between which requests go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from router.kvcache.recent_prompts import RecentPrompts
from router.scheduling.policy.record import Record
from router.scheduling.policy.record_view import describe_record

RECORDS_PER_TURN = 8  # of the event loop: in a large fleet one takes a millisecond to describe
COMPARED_PER_TURN = 256  # under a millisecond


class RecordQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which records to return: those that match everything that is given, and of these the newest `limit`."""

    limit: int = 50
    id: str | None = None  # its beginning
    sessions: tuple[str, ...] = ()  # pseudonyms of the session, any of them
    client: str | None = None  # the name of its API key, or its sender
    model: str | None = None  # as the request named it
    target: str | None = None  # of any attempt, or of the prefill half of one
    since_s: float | None = None  # wall time of its choice, in seconds
    until_s: float | None = None

    def matches(self, record: Record) -> bool:
        """Return whether the record is one of those."""
        at_s = record.at_wall_s
        return (
            (self.since_s is None or at_s >= self.since_s)
            and (self.until_s is None or at_s <= self.until_s)
            and (self.id is None or record.id.startswith(self.id))
            and (self.client is None or self.client in (record.client, record.sender))
            and (self.model is None or record.model == self.model)
            and (not self.sessions or _session(record) in self.sessions)
            and (self.target is None or self.target in _targets(record))
        )


def _session(record: Record) -> str | None:
    return record.attempts[0].decision.view.session if record.attempts else None


def _targets(record: Record) -> Iterator[str]:
    for attempt in record.attempts:
        yield attempt.decision.target
        if attempt.prefill is not None:
            yield attempt.prefill.target


class RecentRecords:
    """The newest `keep` records, and the beginnings of recent prompts as token ids within `prompt_bytes`."""

    def __init__(self, keep: int, prompt_bytes: int = 0) -> None:
        self.added = 0  # since the start
        self.prompts = RecentPrompts(prompt_bytes)
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
        """Return the records that match, newest first. Requests go on meanwhile; records of these are not looked at."""
        found: list[Record] = []
        for n, record in enumerate(self.latest(len(self)), 1):
            if query.matches(record):
                found.append(record)
                if len(found) == query.limit:
                    break
            if n % COMPARED_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    async def encode(self, query: RecordQuery) -> list[bytes]:
        """Return the records that match as JSON, newest first. Requests go on meanwhile."""
        encoded: list[bytes] = []
        for record in await self.find(query):
            encoded.append(msgspec.json.encode(describe_record(record, in_full=False)))
            if len(encoded) % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return encoded
