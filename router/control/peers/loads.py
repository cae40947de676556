"""The bookings of this process, for its peers, and those of peers, for its scheduler, by target and by run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from router.control.peers.messages import LoadMessage
from router.fleet.fleet import Fleet
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId


class ReportedLoads:
    """Bookings reported by other processes, by the run id of the process that has them."""

    def __init__(self) -> None:
        self._shares: dict[TargetId, dict[str, WorkerShare]] = {}

    def put(self, run: str, target: TargetId, share: WorkerShare) -> None:
        """Replace the bookings of `target` by `run`."""
        shares = self._shares.setdefault(target, {})
        if share != NO_SHARE:
            shares[run] = share
            return
        shares.pop(run, None)
        if not shares:
            del self._shares[target]

    def total(self, target: TargetId, excluding: Collection[str] = ()) -> WorkerShare:
        """Return the bookings of `target` by all runs that are not in `excluding`."""
        total = NO_SHARE
        for run, share in self._shares.get(target, {}).items():
            if run not in excluding:
                total = share if total is NO_SHARE else total.plus(share)
        return total

    def drop(self, run: str) -> list[TargetId]:
        """Remove the bookings of a run, and return their targets."""
        targets = [target for target, shares in self._shares.items() if run in shares]
        for target in targets:
            self.put(run, target, NO_SHARE)
        return targets


class LoadedScheduler(Protocol):
    """The part of a scheduler that the sharing of its load needs."""

    fleet: Fleet

    def own_share(self, target: TargetId) -> WorkerShare:
        """Return this process's own bookings of `target`."""

    def apply_load(self, target: TargetId, share: WorkerShare) -> None:
        """Replace the bookings of `target` by all peers."""


class SharedLoads:
    """Gathers the bookings of peers, and applies their sums to `scheduler`, since several peers often report the
    same targets.
    """

    def __init__(self, scheduler: LoadedScheduler) -> None:
        self._scheduler = scheduler
        self._reported = ReportedLoads()
        self._changed: set[TargetId] = set()

    def own(self) -> dict[str, WorkerShare]:
        """Return the bookings of this process by target, without targets that have none."""
        here = [target.id for instance in self._scheduler.fleet for target in instance.targets.values()]
        shares = {target: self._scheduler.own_share(target) for target in here}
        return {target: share for target, share in shares.items() if share != NO_SHARE}

    def put(self, run: str, loads: Iterable[LoadMessage]) -> None:
        """Replace the bookings of these targets by a peer, as of the next `apply`."""
        for message in loads:
            target = TargetId(message.target)
            self._reported.put(run, target, message.share)
            self._changed.add(target)

    def replace(self, run: str, loads: Mapping[str, WorkerShare]) -> None:
        """Replace all bookings of a peer, as of the next `apply`; the peer has none left if `loads` is empty."""
        self._changed.update(self._reported.drop(run))
        for name, share in loads.items():
            self._reported.put(run, TargetId(name), share)
            self._changed.add(TargetId(name))

    def apply(self) -> None:
        """Apply the changed bookings."""
        for target in self._changed:
            self._scheduler.apply_load(target, self._reported.total(target))
        self._changed.clear()

    def total(self, target: TargetId, excluding: Collection[str]) -> WorkerShare:
        """Return the bookings of `target` by all peers whose runs are not in `excluding`."""
        return self._reported.total(target, excluding)
