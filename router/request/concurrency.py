"""Limits on concurrent requests and on the bytes of their bodies in memory, both shared fairly among clients.

A request is rejected before anything is read or computed, so overload costs only a 429 answer. A request counts as
concurrent only once its body is complete, so slow senders take no one's slot. A `Slot` is released exactly once,
whatever ends its request: it is a context manager, and its release is idempotent. This module only counts: it uses
no waiting, no clock and no sockets.
"""

from __future__ import annotations

from types import TracebackType

from router.errors import TooBusy
from router.tenants.fair_share import FairShare, Shortage

RETRY_AFTER_S = 1


class ConcurrencyLimiter:
    """A limit of `concurrent` requests, and of `body_budget_bytes` for the bodies of all requests."""

    def __init__(self, concurrent: int, body_budget_bytes: int) -> None:
        self.requests = FairShare(concurrent)
        self.bodies = FairShare(body_budget_bytes)

    @property
    def in_flight(self) -> int:
        """Number of requests that have taken their slot."""
        return self.requests.taken

    @property
    def held_bytes(self) -> int:
        return self.bodies.taken

    def open(self, sender: str) -> Slot:
        """Return a slot for one request of `sender`, to be used with `with`, and to be taken when the request's
        body is complete. Raises `TooBusy` if it could not be taken now.
        """
        if (shortage := self.requests.check(sender, 1)) is not None:
            raise self.refuse_request(shortage, sender)
        return Slot(self, sender)

    def refuse_request(self, shortage: Shortage, sender: str) -> TooBusy:
        limit, held = f"{self.requests.capacity} (`limits.concurrent`)", self.requests.held(sender)
        message = {
            Shortage.TOTAL: f"the requests being served are as many as may be, {limit}; try again",
            Shortage.SHARE: f"{held} of your requests are being served, which is your share of {limit}; try again",
        }
        return TooBusy(message[shortage], code="too_many_requests", retry_after_s=RETRY_AFTER_S)

    def refuse_bytes(self, shortage: Shortage, sender: str) -> TooBusy:
        limit, held = f"{self.bodies.capacity} bytes (`limits.body_budget_bytes`)", self.bodies.held(sender)
        message = {
            Shortage.TOTAL: f"the request bodies being served fill the memory reserved for them, {limit}; try again",
            Shortage.SHARE: f"your request bodies being served take {held} bytes, your share of {limit}; try again",
        }
        return TooBusy(message[shortage], code="too_many_bytes", retry_after_s=RETRY_AFTER_S)


class Slot:
    """One request's slot, and the bytes that the request's body takes."""

    __slots__ = ("_limiter", "_sender", "_taken", "held_bytes")

    def __init__(self, limiter: ConcurrencyLimiter, sender: str) -> None:
        self._limiter = limiter
        self._sender = sender
        self._taken = False
        self.held_bytes = 0

    def hold(self, bytes_: int) -> None:
        """Count `bytes_` more of the body. Raises `TooBusy` if there is no room for them."""
        if (shortage := self._limiter.bodies.take(self._sender, bytes_)) is not None:
            raise self._limiter.refuse_bytes(shortage, self._sender)
        self.held_bytes += bytes_

    def take(self) -> None:
        """Count the request as one that is being served. Raises `TooBusy` if there are too many."""
        if (shortage := self._limiter.requests.take(self._sender, 1)) is not None:
            raise self._limiter.refuse_request(shortage, self._sender)
        self._taken = True

    def release(self) -> None:
        """Release everything that was taken; a second call does nothing."""
        if self._taken:
            self._limiter.requests.give_back(self._sender, 1)
            self._taken = False
        if self.held_bytes:
            self._limiter.bodies.give_back(self._sender, self.held_bytes)
            self.held_bytes = 0

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
