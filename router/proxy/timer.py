"""A deadline that is moved far more often than it strikes.

A loop's `call_later` and `cancel` cost microseconds, and a stream wants its idle deadline moved at every chunk. So the
timer that is armed stays where it is; moving the deadline is an attribute, and whoever wakes too early looks at the
deadline and sleeps again. One of these serves a connection for its whole life, on both sides of the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls `late()` once when the deadline that was last set has passed. `close` when done with it: whoever sets it
    then all the same, after its connection was lost, must not be kept alive by that.
    """

    __slots__ = ("_armed", "_armed_at", "_closed", "_deadline", "_late", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[], None]) -> None:
        self._loop = loop
        self._late = late
        self._deadline: float | None = None
        self._armed: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._closed = False

    def set(self, seconds: float) -> None:
        """The deadline is `seconds` from now, whatever it was."""
        self._deadline = deadline = self._loop.time() + seconds
        if self._armed is None or deadline < self._armed_at:
            self._arm(deadline)

    def off(self) -> None:
        self._deadline = None

    def close(self) -> None:
        self._closed = True
        self._deadline = None
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _arm(self, at: float) -> None:
        if self._closed:
            return
        if self._armed is not None:
            self._armed.cancel()
        self._armed_at = at
        self._armed = self._loop.call_at(at, self._wake)

    def _wake(self) -> None:
        self._armed = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._arm(self._deadline)
            return
        self._deadline = None
        self._late()
