"""Shares bounds, and time of the event loop, among the connections of one gRPC listener.

In one turn of the loop all connections together work for a slice of a few milliseconds. A connection with more to
do continues in the next turn, after the router's other work; a connection whose address has no allowance left
continues when it has some again. Both wait here, oldest first, and are not read meanwhile, so that the peer stops
sending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from router.picker.allowance import Allowance, AllowanceRule, Allowances

SLICE_S = 0.004  # of a turn of the loop; the loop's other work may well take ten times as long
PACE_S = 0.05  # between two checks of the connections without allowance


class PeerBounds(NamedTuple):
    """Bounds of a listener. `budget_bytes` bounds the incomplete messages of all connections and, separately, the
    messages that wait for a peer's window.
    """

    message_bytes: int
    budget_bytes: int
    connections: int
    streams: int  # of one connection
    allowance: AllowanceRule


GATEWAYS = AllowanceRule(start=1000, per_s=100, most=10_000, message=2, end=1, connections=512)
"""A gateway opens a connection for each of its threads, and further ones when their streams are used up. A call
that ends earns more than it costs, and a call whose client hangs up after its request costs nothing: a gateway is
not held up when thousands of clients do so. A call that is reset after its first message costs.
"""
QUESTIONS = AllowanceRule(start=2000, per_s=500, most=2000, message=0, end=0, connections=32)
"""Probes and KEDA's operator each send a request every few seconds, which on a new connection costs about ten."""


class SendQueue(Protocol):
    """The sending side of a connection."""

    def flush(self) -> None:
        """Send what is queued."""


class PeerConnection(SendQueue, Protocol):
    """One connection of a listener."""

    def proceed(self) -> None:
        """Continue with what was left for a later turn."""

    def retire(self) -> None:
        """Make the peer open another connection for its next calls."""

    def drain(self) -> None:
        """Accept no new calls."""

    def close(self) -> None:
        """Close the connection when what is queued has been sent."""

    def abort(self) -> None:
        """Cut the connection off at once."""


class PeerConnections:
    """The connections of one listener. `now` is a monotonic clock, seconds."""

    def __init__(self, bounds: PeerBounds, now: Callable[[], float]) -> None:
        self.bounds = bounds
        self.now = now
        self.connections: set[PeerConnection] = set()
        self.allowances = Allowances(bounds.allowance, now)
        self.partial_bytes = 0  # of messages that are not whole, of all connections
        self.unsent_bytes = 0  # of messages that wait for windows of the peers, of all connections
        self.until_s = 0.0  # when this turn's slice is over; 0: it has not begun
        self._scheduled = False
        self._unsent: list[SendQueue] = []
        self._ready: deque[PeerConnection] = deque()
        self._paced: dict[Allowance, deque[PeerConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> bool:
        """Return whether a connection may work now. The first one that works in a turn begins the slice."""
        if self.until_s:
            return self.now() < self.until_s
        self.until_s = self.now() + SLICE_S
        if not self._scheduled:
            self._schedule()
        return True

    def flush_later(self, sender: SendQueue) -> None:
        """Let `sender` send what is queued at the end of this turn."""
        self._unsent.append(sender)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._end_turn)

    def wait(self, waiting: PeerConnection, allowance: Allowance | None = None) -> None:
        """Let `waiting` proceed in a later turn, and not before `allowance` has something left."""
        if allowance is None or allowance.left > 0:
            self._ready.append(waiting)
            if not self._scheduled:
                self._schedule()
            return
        self._paced.setdefault(allowance, deque()).append(waiting)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PACE_S, self._pace)

    def _end_turn(self) -> None:
        self._scheduled, self.until_s = False, 0.0
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            for sender in unsent:
                sender.flush()
        if self._ready:
            self.begin()
            for _ in range(len(self._ready)):
                if self.now() >= self.until_s:
                    break
                self._ready.popleft().proceed()

    def _pace(self) -> None:
        """Make ready as many connections of an address as it has frames left; the others keep waiting."""
        self._timer = None
        self.allowances.refill(self._paced)
        for allowance, waiting in list(self._paced.items()):
            for _ in range(min(len(waiting), max(0, int(allowance.left)))):
                self._ready.append(waiting.popleft())
            if not waiting:
                del self._paced[allowance]
        if self._paced:
            self._timer = asyncio.get_running_loop().call_later(PACE_S, self._pace)
        if self._ready and not self._scheduled:
            self._schedule()
