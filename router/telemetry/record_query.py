"""A query for some of the recent records."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from router.scheduling.policy.record import Record


class RecordQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """Selects the records that match every given field, and of these returns the newest `limit`."""

    limit: int = 50
    id: str | None = None  # the beginning of the record's id
    sessions: tuple[str, ...] = ()  # pseudonyms of the session, any of them
    client: str | None = None  # the name of the request's API key, or its sender
    model: str | None = None  # as the request named it
    target: str | None = None  # of any attempt, or of the prefill half of one
    since_s: float | None = None  # earliest wall time of the record's choice, in seconds
    until_s: float | None = None

    def matches(self, record: Record) -> bool:
        """Return whether the record matches every given field, regardless of `limit`."""
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
