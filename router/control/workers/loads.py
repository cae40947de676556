"""Bookings by target and by who made them, as last reported: the leader's table of followers, and of other replicas."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId

Owner = TypeVar("Owner", bound=Hashable)


class ReportedLoads(Generic[Owner]):
    """Bookings that others reported. An owner is a follower's number or the run id of another replica's leader."""

    def __init__(self) -> None:
        self._shares: dict[TargetId, dict[Owner, WorkerShare]] = {}

    def put(self, owner: Owner, target: TargetId, share: WorkerShare) -> None:
        """Replace the bookings of `target` by `owner`."""
        shares = self._shares.setdefault(target, {})
        if share != NO_SHARE:
            shares[owner] = share
            return
        shares.pop(owner, None)
        if not shares:
            del self._shares[target]

    def total(self, target: TargetId, excluding: Owner | None = None) -> WorkerShare:
        """Return the bookings of `target` by all owners except `excluding`."""
        total = NO_SHARE
        for owner, share in self._shares.get(target, {}).items():
            if owner != excluding:
                total = share if total is NO_SHARE else total.plus(share)
        return total

    def targets(self) -> list[TargetId]:
        """Return the targets with bookings."""
        return list(self._shares)

    def drop(self, owner: Owner) -> list[TargetId]:
        """Remove the bookings of an owner that is gone, and return their targets."""
        targets = [target for target, shares in self._shares.items() if owner in shares]
        for target in targets:
            self.put(owner, target, NO_SHARE)
        return targets
