"""Asking an engine something small: the shape of that call, not its doing.

`proxy/upstreams.py` does it (one place for credentials, TLS and connection reuse); `app.py` hands it to the rooms that
ask. A probe through an ordinary HTTP client costs a millisecond of CPU, which 200 idle engines turn into a fifth of a
core; this costs what a routed request costs.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


class Fetch(Protocol):
    async def __call__(
        self, instance: str, method: str, path: str, body: bytes = b"", *, timeout_s: float
    ) -> HttpAnswer | None:
        """The whole answer of `instance`, or None when it did not give one in time. Never raises for trouble there."""
