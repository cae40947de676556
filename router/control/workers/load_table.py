"""Bookings of every follower by target: the leader's table, from which each worker gets the load of all others.

The leader's own bookings are not in it; they are in its own load books.
"""

from __future__ import annotations

from router.fleet.load import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId


class WorkerLoads:
    def __init__(self) -> None:
        self._shares: dict[TargetId, dict[int, WorkerShare]] = {}  # by target, then by follower's number

    def put(self, follower: int, target: TargetId, share: WorkerShare) -> None:
        """Replace the bookings of `target` by `follower`."""
        shares = self._shares.setdefault(target, {})
        if any(share):
            shares[follower] = share
            return
        shares.pop(follower, None)
        if not shares:
            del self._shares[target]

    def total(self, target: TargetId, excluding: int | None = None) -> WorkerShare:
        """Return the bookings of `target` by all followers, except the one numbered `excluding`."""
        total = NO_SHARE
        for number, share in self._shares.get(target, {}).items():
            if number != excluding:
                total = share if total is NO_SHARE else total.plus(share)
        return total

    def drop(self, follower: int) -> list[TargetId]:
        """Remove the bookings of a follower that ended, and return their targets."""
        targets = [target for target, shares in self._shares.items() if follower in shares]
        for target in targets:
            self.put(follower, target, NO_SHARE)
        return targets
