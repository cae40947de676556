"""Which target stores each response that clients may go on from (`previous_response_id`): it is state of its
engine.

Bounded, and shared fairly: when there is one too many, the oldest of the tenant that holds most is forgotten, so
that a tenant which stores without end loses its own. Where nobody says who it is, all are of one tenant: the oldest
goes.
"""

from __future__ import annotations

from typing import NamedTuple

from router.kvcache.events import TargetId


class StoredResponse(NamedTuple):
    """`tenant` is empty where clients need not say who they are."""

    id: str
    target: TargetId
    tenant: str


class ResponseTargets:
    """At most `limit` responses."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored: dict[str, StoredResponse] = {}  # by id, the oldest first
        self._ids: dict[str, dict[str, None]] = {}  # by tenant, the oldest first
        self._holders: dict[int, dict[str, None]] = {}  # tenants by how many they hold, so that no search is needed
        self._most = 0  # that a tenant holds

    def put(self, response: StoredResponse) -> None:
        """Remember a response as the newest, and forget another one where there are too many."""
        if (before := self._stored.get(response.id)) is not None:
            self._remove(before)
        self._stored[response.id] = response
        ids = self._ids.setdefault(response.tenant, {})
        ids[response.id] = None
        self._move(response.tenant, len(ids) - 1, len(ids))
        if len(self._stored) > self._limit:
            fullest = next(iter(self._holders[self._most]))
            self._remove(self._stored[next(iter(self._ids[fullest]))])

    def target(self, id: str) -> TargetId | None:
        """Return the target that stores a response; None: it is not known."""
        found = self._stored.get(id)
        return None if found is None else found.target

    def all(self) -> list[StoredResponse]:
        """Return all, the oldest first."""
        return list(self._stored.values())

    def _remove(self, response: StoredResponse) -> None:
        del self._stored[response.id]
        ids = self._ids[response.tenant]
        del ids[response.id]
        if not ids:
            del self._ids[response.tenant]
        self._move(response.tenant, len(ids) + 1, len(ids))

    def _move(self, tenant: str, before: int, after: int) -> None:
        """Note that a tenant holds one more or one less."""
        if before:
            del self._holders[before][tenant]
            if not self._holders[before]:
                del self._holders[before]
        if after:
            self._holders.setdefault(after, {})[tenant] = None
        if after > self._most or self._most not in self._holders:
            self._most = after
