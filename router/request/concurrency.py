"""Limits on concurrent requests and on the bytes of their bodies in memory.

Both are counted before anything is read or computed, so overload costs an answer of 429 and nothing else. A `Slot` is
given back exactly once, whatever ends its request: it is a context manager and idempotent. Pure counting: no waiting,
no clock, no sockets.
"""

from __future__ import annotations

from types import TracebackType

from router.errors import TooBusy

RETRY_AFTER_S = 1


class ConcurrencyLimiter:
    """A limit of `concurrent` requests, and of `body_budget_bytes` of bodies over all of them."""

    def __init__(self, concurrent: int, body_budget_bytes: int) -> None:
        self._concurrent = concurrent
        self._body_budget_bytes = body_budget_bytes
        self.in_flight = 0
        self.held_bytes = 0

    def acquire(self) -> Slot:
        """Return a slot for one request, to be used with `with`. Raises `TooBusy` when there is none."""
        if self.in_flight >= self._concurrent:
            raise TooBusy(
                f"{self._concurrent} requests are being served, which is the limit (`limits.concurrent`); try again",
                code="too_many_requests",
                retry_after_s=RETRY_AFTER_S,
            )
        self.in_flight += 1
        return Slot(self)

    def hold(self, bytes_: int) -> None:
        """Count `bytes_` more. Raises `TooBusy` when all bodies together would exceed the budget."""
        if self.held_bytes + bytes_ > self._body_budget_bytes:
            raise TooBusy(
                "the request bodies being served fill the memory reserved for them (`limits.body_budget_bytes`); "
                "try again",
                code="too_many_bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        self.held_bytes += bytes_

    def release(self, bytes_: int) -> None:
        self.in_flight -= 1
        self.held_bytes -= bytes_


class Slot:
    """One request's slot, and the bytes that its body takes."""

    __slots__ = ("_limiter", "held_bytes")

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter: ConcurrencyLimiter | None = limiter
        self.held_bytes = 0

    def hold(self, bytes_: int) -> None:
        """Count `bytes_` more of the body. Raises `TooBusy` when all bodies together would exceed the budget."""
        assert self._limiter is not None, "the slot was given back"
        self._limiter.hold(bytes_)
        self.held_bytes += bytes_

    def release(self) -> None:
        """Give the slot back; a second call does nothing."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.release(self.held_bytes)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
