"""The calls of a connection whose first message has not come: each has some seconds for it, whatever else it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

FIRST_MESSAGE_S = 10.0  # a gateway's and a probe's comes with the call


class SilentCall(Protocol):
    """A call that may be ended for its silence."""

    id: int

    def expire(self) -> None:
        """End the call: its first message has not come in time."""


class SilentCalls:
    """One timer serves all of them: they are in the order of their age. `now` is a monotonic clock, seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begun: dict[int, tuple[float, SilentCall]] = {}  # by id
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: SilentCall, now_s: float) -> None:
        """Give a new call its time."""
        self._begun[call.id] = now_s, call
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FIRST_MESSAGE_S, self._expire)

    def discard(self, id: int) -> None:
        """Leave a call alone from here on: its message has come, or it is over."""
        self._begun.pop(id, None)

    def close(self) -> None:
        """Let all of them alone."""
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now_s = self._now()
        for id, (begun_s, call) in list(self._begun.items()):
            if (left_s := begun_s + FIRST_MESSAGE_S - now_s) > 0:
                self._timer = asyncio.get_running_loop().call_later(left_s, self._expire)
                return
            del self._begun[id]
            call.expire()
