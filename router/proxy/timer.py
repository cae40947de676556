"""A deadline timer for deadlines that move far more often than they expire.

A loop's `call_later` and `cancel` cost microseconds, and a stream moves its idle deadline at every chunk. So the
armed timer stays where it is: moving the deadline only sets an attribute, and a timer that wakes too early checks
the deadline and sleeps again. One timer serves a connection for its whole life, on both sides of the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls `on_expiry` once when the most recently set deadline has passed. `close` it when done, because it keeps
    its owner alive.
    """

    __slots__ = ("_armed", "_armed_at", "_closed", "_deadline", "_loop", "_on_expiry")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expiry: Callable[[], None]) -> None:
        self._loop = loop
        self._on_expiry = on_expiry
        self._deadline: float | None = None
        self._armed: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._closed = False

    def set(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now."""
        self._deadline = deadline = self._loop.time() + seconds
        if self._armed is None or deadline < self._armed_at:
            self._arm(deadline)

    def clear(self) -> None:
        self._deadline = None

    def close(self) -> None:
        """Never call `on_expiry` again, not even after a later `set`, and drop the reference to it."""
        self._closed = True
        self._on_expiry = _do_nothing
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
        self._on_expiry()


def _do_nothing() -> None:
    pass
