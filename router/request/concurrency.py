"""The bounds on what is in the house at once: requests, and bytes of their bodies.

Both are counted before anything is read or computed, so overload costs an answer of 429 and nothing else. A `Slot` is
given back exactly once, whatever ends its request: it is a context manager and idempotent. Pure counting: no waiting,
no clock, no sockets.
"""

from __future__ import annotations

from types import TracebackType

from router.errors import TooBusy

RETRY_AFTER_S = 1


class ConcurrencyLimiter:
    """At most `concurrent` requests and `body_budget_bytes` of bodies, all requests together."""

    def __init__(self, concurrent: int, body_budget_bytes: int) -> None:
        self._concurrent = concurrent
        self._body_budget_bytes = body_budget_bytes
        self.inside = 0
        self.held_bytes = 0

    def pass_(self) -> Slot:
        """A place for one request, to be used with `with`. Raises `TooBusy` when there is none."""
        if self.inside >= self._concurrent:
            raise TooBusy(
                f"{self._concurrent} requests are being served, which is the limit; try again",
                code="too_many_requests",
                retry_after_s=RETRY_AFTER_S,
            )
        self.inside += 1
        return Slot(self)

    def hold(self, bytes_: int) -> None:
        if self.held_bytes + bytes_ > self._body_budget_bytes:
            raise TooBusy(
                "the request bodies being served fill the memory set aside for them; try again",
                code="too_many_bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        self.held_bytes += bytes_

    def leave(self, bytes_: int) -> None:
        self.inside -= 1
        self.held_bytes -= bytes_


class Slot:
    """One request's place in the house, and the bytes that its body takes."""

    __slots__ = ("_lobby", "held_bytes")

    def __init__(self, lobby: ConcurrencyLimiter) -> None:
        self._lobby: ConcurrencyLimiter | None = lobby
        self.held_bytes = 0

    def hold(self, bytes_: int) -> None:
        """Counts `bytes_` more of body. Raises `TooBusy` when all bodies together would exceed the budget."""
        assert self._lobby is not None, "the place was given back"
        self._lobby.hold(bytes_)
        self.held_bytes += bytes_

    def leave(self) -> None:
        """Gives the place back; a second time does nothing."""
        lobby, self._lobby = self._lobby, None
        if lobby is not None:
            lobby.leave(self.held_bytes)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
