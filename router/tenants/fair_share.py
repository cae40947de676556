"""A capacity that clients share fairly, by the dynamic threshold of Choudhury and Hahne (IEEE/ACM Transactions on
Networking, 1998), which switches use to share packet memory among their ports.

A client that already holds something may take more only if it then holds at most `SHARE` times the capacity that is
still free. So a single client gets at most four fifths, and two clients get four ninths each. Whatever the other
clients hold, a new client finds room. This needs no table of quotas, no rates and no clock, and stores only the
clients that hold something.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SHARE: Final = 4


class Shortage(Enum):
    """Why a client gets no more."""

    TOTAL = "total"  # the whole capacity is taken
    SHARE = "share"  # the client holds its share of the capacity


class FairShare:
    """A capacity in any unit. `taken` is what all clients hold together."""

    __slots__ = ("_held", "capacity", "taken")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taken = 0
        self._held: dict[str, int] = {}  # by client; only those that hold something

    def held(self, client: str) -> int:
        """Return how much `client` holds."""
        return self._held.get(client, 0)

    def check(self, client: str, amount: int) -> Shortage | None:
        """Return why `client` may not take `amount` now; None if it may."""
        free = self.capacity - self.taken - amount
        if free < 0:
            return Shortage.TOTAL
        held = self._held.get(client)
        return Shortage.SHARE if held is not None and held + amount > SHARE * free else None

    def take(self, client: str, amount: int) -> Shortage | None:
        """Count `amount` (above 0) more for `client`, and return None; if it may not take `amount`, return why."""
        shortage = self.check(client, amount)
        if shortage is None:
            self.taken += amount
            self._held[client] = self._held.get(client, 0) + amount
        return shortage

    def give_back(self, client: str, amount: int) -> None:
        """Release `amount` that `client` has taken."""
        self.taken -= amount
        left = self._held[client] - amount
        if left:
            self._held[client] = left
        else:
            del self._held[client]
