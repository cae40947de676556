"""A query for some of the recent records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import Final, Literal

import msgspec

from router.scheduling.policy.record import Record
from router.telemetry.failed_attempts import FAILED
from router.telemetry.failure import CLIENTS_OWN, failure_reason

RequestTime = Literal["ttft_ms", "duration_ms"]
"""ttft_ms: until the first byte, of streams only, since other answers begin when they are complete; duration_ms:
until the end.
"""

ANY_FAULT: Final = "any"  # an `error`
FAILED_ATTEMPT: Final = "attempt"  # an `error`
NO_STATUS: Final = "none"  # a `status`


class RecordQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """Selects the records that match every given field, and of these returns `limit`: the newest, or the slowest."""

    limit: int = 50
    id: str | None = None  # the beginning of the record's id
    sessions: tuple[str, ...] = ()  # pseudonyms of the session, any of them
    client: str | None = None  # the name of the request's API key, or its sender
    model: str | None = None  # as the request named it
    target: str | None = None  # of any attempt, or of the prefill half of one
    since_s: float | None = None  # earliest wall time of the record's choice, in seconds
    until_s: float | None = None
    status: str | None = None  # a status or its class (5xx), or `NO_STATUS`: the client left before
    error: str | None = None
    """A `failure_reason`; `ANY_FAULT`: any that is not the client's own; `FAILED_ATTEMPT`: an engine (`target`, if that
    is given) failed the request, whether or not another one answered it.
    """
    slowest: RequestTime | None = None  # None: the newest

    def matches(self, record: Record) -> bool:
        """Return whether the record matches every given field, regardless of `limit`. A record does not match
        `slowest` if its time is unknown.
        """
        at_s = record.at_wall_s
        return (
            (self.since_s is None or at_s >= self.since_s)
            and (self.until_s is None or at_s <= self.until_s)
            and (self.id is None or record.id.startswith(self.id))
            and (self.client is None or self.client in (record.client, record.sender))
            and (self.model is None or record.model == self.model)
            and (not self.sessions or _session(record) in self.sessions)
            and (self.target is None or self.target in _targets(record))
            and (self.status is None or self.status in _statuses(record))
            and (self.error is None or self._matches_error(record))
            and (self.slowest is None or time_ms(record, self.slowest) is not None)
        )

    def _matches_error(self, record: Record) -> bool:
        if not record.done:
            return False
        if self.error == FAILED_ATTEMPT:
            failed = [attempt.decision.target for attempt in record.attempts if attempt.end in FAILED]
            return bool(failed) if self.target is None else self.target in failed
        reason = failure_reason(record)
        return reason not in CLIENTS_OWN and reason is not None if self.error == ANY_FAULT else reason == self.error

    def select_slowest(self, matching: Iterable[Record]) -> list[Record]:
        """Return those of the matching records that the query asks for, slowest first. Only with `slowest`."""
        assert self.slowest is not None
        which = self.slowest
        return nlargest(self.limit, matching, key=lambda record: time_ms(record, which) or 0.0)

    def sort_encoded(self, records: list[bytes]) -> list[bytes]:
        """Return those of the matching records, encoded as JSON, that the query asks for, in its order."""
        decode, by = msgspec.json.Decoder(RecordTimes).decode, self.slowest or "at_wall_s"
        return sorted(records, key=lambda record: getattr(decode(record), by), reverse=True)[: self.limit]


class RecordTimes(msgspec.Struct):
    """The part of an encoded record by which records are ordered. A time is known where a query orders by it."""

    at_wall_s: float
    ttft_ms: float | None
    duration_ms: float | None


def time_ms(record: Record, which: RequestTime) -> float | None:
    """Return a time of a request, None if it is unknown."""
    if which == "duration_ms":
        return record.duration_ms
    return record.ttft_ms if record.stream else None


def _statuses(record: Record) -> tuple[str, ...]:
    """Return the texts that stand for a record's status; none while the request runs and has no status."""
    if record.status is not None:
        return str(record.status), f"{record.status // 100}xx"
    return (NO_STATUS,) if record.done else ()


def _session(record: Record) -> str | None:
    return record.attempts[0].decision.view.session if record.attempts else None


def _targets(record: Record) -> Iterator[str]:
    for attempt in record.attempts:
        yield attempt.decision.target
        if attempt.prefill is not None:
            yield attempt.prefill.target
