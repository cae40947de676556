"""Maps each stored response that clients may continue from (`previous_response_id`) to the target that stores it:
a stored response is state of its engine.

The map is bounded and shared fairly: when it is full, the oldest response of the tenant with the most responses is
forgotten, so a tenant that stores without end loses only its own. Where clients need not identify themselves, all
responses belong to one tenant, so the oldest of all is forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

from router.kvcache.events import TargetId


class StoredResponse(NamedTuple):
    """A stored response. `tenant` is empty where clients need not identify themselves."""

    id: str
    target: TargetId
    tenant: str


class ResponseTargets:
    """The targets of at most `limit` stored responses."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored: dict[str, StoredResponse] = {}  # by id, the oldest first
        self._ids: dict[str, dict[str, None]] = {}  # by tenant, the oldest first
        self._holders: dict[int, dict[str, None]] = {}  # tenants by number of responses, to avoid a search
        self._most = 0  # the largest number of responses of any tenant

    def put(self, response: StoredResponse) -> None:
        """Remember a response as the newest; forget another one if there are more than the limit."""
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
        """Return the target that stores a response; None if the response is unknown."""
        found = self._stored.get(id)
        return None if found is None else found.target

    def all(self) -> list[StoredResponse]:
        """Return all stored responses, the oldest first."""
        return list(self._stored.values())

    def _remove(self, response: StoredResponse) -> None:
        del self._stored[response.id]
        ids = self._ids[response.tenant]
        del ids[response.id]
        if not ids:
            del self._ids[response.tenant]
        self._move(response.tenant, len(ids) + 1, len(ids))

    def _move(self, tenant: str, before: int, after: int) -> None:
        """Move a tenant from `before` to `after` responses in `_holders`; the two differ by one."""
        if before:
            del self._holders[before][tenant]
            if not self._holders[before]:
                del self._holders[before]
        if after:
            self._holders.setdefault(after, {})[tenant] = None
        if after > self._most or self._most not in self._holders:
            self._most = after
