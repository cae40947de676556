"""A client that sends one request after the other over one connection, with the times at which it was sent and seen.

It blocks on purpose: nothing else runs in this process while it waits, so the times are those of the router and the
backend. `CLOCK_MONOTONIC` is one clock for all processes of a machine.
"""

from __future__ import annotations

import http.client
import time
from types import TracebackType
from typing import NamedTuple, Self

from tests.bench import answers
from tests.bench.row import NotMeasured

PATH = "/v1/chat/completions"
DEADLINE_S = 60.0


class RequestTimes(NamedTuple):
    """Milliseconds from the first byte sent: until the backend had the last byte, and until the answer was complete."""

    seen_ms: float
    done_ms: float


class TimedClient:
    """A client of one port."""

    def __init__(self, port: int, session: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self._headers = {"content-type": "application/json"} | ({} if session is None else {"x-session-id": session})

    def __enter__(self) -> Self:
        self._connection.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(self, body: bytes) -> RequestTimes:
        """Send a request. Raises NotMeasured for an answer other than 200."""
        began_ns = time.monotonic_ns()
        self._connection.request("POST", PATH, body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        done_ns = time.monotonic_ns()
        if answer.status != 200:
            raise NotMeasured(f"status {answer.status}: {text[:300]!r}")
        return RequestTimes((answers.seen_ns(text) - began_ns) / 1e6, (done_ns - began_ns) / 1e6)
