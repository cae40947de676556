"""Who of the followers has booked how much where: the leader's table, from which everybody hears of all the others.

Pure sums. What the leader itself has booked stands in its own books.
"""

from __future__ import annotations

from router.fleet.load import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId

NOBODY: dict[int, WorkerShare] = {}


class WorkerLoads:
    def __init__(self) -> None:
        self._shares: dict[TargetId, dict[int, WorkerShare]] = {}  # by follower's number

    def put(self, follower: int, target: TargetId, share: WorkerShare) -> None:
        """In the place of what it told before."""
        shares = self._shares.setdefault(target, {})
        if any(share):
            shares[follower] = share
            return
        shares.pop(follower, None)
        if not shares:
            del self._shares[target]

    def of_followers(self, target: TargetId, but: int | None = None) -> WorkerShare:
        """All of them together, one perhaps excepted."""
        total = NO_SHARE
        for number, share in self._shares.get(target, NOBODY).items():
            if number != but:
                total = share if total is NO_SHARE else total.plus(share)
        return total

    def drop(self, follower: int) -> list[TargetId]:
        """It is gone, and nothing is under way there. Returns what it had booked."""
        targets = [target for target, shares in self._shares.items() if follower in shares]
        for target in targets:
            self.put(follower, target, NO_SHARE)
        return targets
