"""Bounds the frames that an address sends to an HTTP/2 listener, by a token bucket shared by the address's
connections.

The known HTTP/2 floods (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2024-27316, CVE-2025-8671) consist of frames
that cost their sender nothing and do nothing: each frame is cheap, and none by itself violates the protocol. So
every frame has a price, according to the work that it causes here. A message for a gateway's call earns more than
its frames cost: a working gateway is never held up, whatever its clients do. An address without allowance is not
read until it has some again, so no honest traffic is lost. Reconnecting does not refill the allowance: an address
is forgotten only when its allowance is full again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

FRAME = 1  # the price of a frame, except for data of some size
CONNECTION = 4
BLOCK_BYTES = 256  # of a header block, for one frame's price
WALKED_STREAMS = 16  # calls that a frame makes the connection examine, for one frame's price
DATA_BYTES = 1024  # a DATA frame with at least this much is work, not overhead
MESSAGE_BYTES = 16  # a shorter message only marks the end of a body: it earns nothing
ADDRESSES = 4096  # remembered; further addresses share one allowance
SWEEP_S = 1.0  # between two searches for addresses to forget


class AllowanceRule(NamedTuple):
    """The numbers of a listener, in frames. Time refills an allowance up to `start`, work up to `most`."""

    start: float
    per_s: float
    most: float
    message: int  # what a message earns
    end: int  # what a call that ends with OK earns
    connections: int  # open at once


class Allowance:
    """The frames `left` to one address: the price of a frame is subtracted where its work is done. At 0, it
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
        """Add what a call that had messages and ended well has earned."""
        if self.left < self.most:
            self.left += self._rule.end

    def refill(self, now_s: float) -> None:
        """Add what the time since the last refill is worth."""
        if self.left < self._rule.start:
            self.left = min(self._rule.start, self.left + (now_s - self._at_s) * self._rule.per_s)
        self._at_s = now_s

    def can_forget(self, now_s: float) -> bool:
        """Return whether a new allowance would be equal or smaller."""
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
        """Return the allowance that a new connection draws on until `close`; None when the address has too little
        left, or too many connections.
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
        """Refill the waiting allowances for the time since their last refill."""
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
