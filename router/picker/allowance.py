"""Bounds the frames that an address sends to a listener of HTTP/2, by a token bucket that its connections share.

The family of HTTP/2 floods (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2024-27316, CVE-2025-8671) is made of frames
that cost their sender nothing and do nothing: each frame is cheap, and no single one is against the protocol. So
every frame has a price, by the work that it makes here. A message for a gateway's call earns more than its frames
cost: a gateway that works is never held up, whatever its clients do. An address without allowance is read again
when it has some, so nothing that is honest is lost. Reconnecting does not fill it: an address is forgotten when it
is full again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

FRAME = 1  # the price of a frame, but for data of some size
CONNECTION = 4
BLOCK_BYTES = 256  # of a header block, for one frame's price
WALKED_STREAMS = 16  # calls that a frame makes the connection look at, for one frame's price
DATA_BYTES = 1024  # a DATA frame with so much is work, not overhead
MESSAGE_BYTES = 16  # a message below that says no more than that a body ends: it earns nothing
ADDRESSES = 4096  # remembered; more share one allowance
SWEEP_S = 1.0  # between two looks for addresses to forget


class AllowanceRule(NamedTuple):
    """The numbers of a listener, in frames. The clock fills to `start`, work to `most`."""

    start: float
    per_s: float
    most: float
    message: int  # what a message earns
    end: int  # what a call earns that ends with OK
    connections: int  # open at once


class Allowance:
    """The frames `left` to one address: the price of a frame is subtracted where its work is done. At 0 it
    waits.
    """

    __slots__ = ("_at_s", "_rule", "connections", "left", "message", "most")

    def __init__(self, rule: AllowanceRule, now_s: float) -> None:
        self.left = rule.start
        self.message = rule.message
        self.most = rule.most
        self.connections = 0
        self._rule = rule
        self._at_s = now_s

    def earn_end(self) -> None:
        """Add what a call has earned that had messages and ended well."""
        if self.left < self.most:
            self.left += self._rule.end

    def refill(self, now_s: float) -> None:
        """Add what time has."""
        if self.left < self._rule.start:
            self.left = min(self._rule.start, self.left + (now_s - self._at_s) * self._rule.per_s)
        self._at_s = now_s

    def can_forget(self, now_s: float) -> bool:
        """Return whether a new allowance would be the same, or less."""
        self.refill(now_s)
        return not self.connections and self.left >= self._rule.start


class Allowances:
    """The allowances of all addresses of a listener. `now` is a monotonic clock, seconds."""

    def __init__(self, rule: AllowanceRule, now: Callable[[], float]) -> None:
        self._rule = rule
        self._now = now
        self._of: dict[str, Allowance] = {}
        self._others = Allowance(rule, now())
        self._swept_s = now()

    def __len__(self) -> int:
        return len(self._of)

    def open(self, address: str) -> Allowance | None:
        """Return the allowance that a new connection draws on until `close`; None when the address has too
        little left, or too many connections.
        """
        now_s = self._now()
        allowance = self._find(address, now_s)
        if allowance.left < CONNECTION:
            allowance.refill(now_s)
        if allowance.left < CONNECTION or allowance.connections >= self._rule.connections:
            return None
        allowance.left -= CONNECTION
        allowance.connections += 1
        return allowance

    def close(self, allowance: Allowance) -> None:
        """End a connection's use of its allowance."""
        allowance.connections -= 1

    def refill(self, waiting: Iterable[Allowance]) -> None:
        """Give those that wait what the time since their last refill is worth."""
        now_s = self._now()
        for allowance in waiting:
            allowance.refill(now_s)

    def _find(self, address: str, now_s: float) -> Allowance:
        found = self._of.get(address)
        if found is not None:
            return found
        if len(self._of) >= ADDRESSES:
            if now_s - self._swept_s >= SWEEP_S:
                self._swept_s = now_s
                self._of = {name: one for name, one in self._of.items() if not one.can_forget(now_s)}
            if len(self._of) >= ADDRESSES:
                return self._others
        self._of[address] = made = Allowance(self._rule, now_s)
        return made
