"""The small HTTP call to an engine or store that other parts of `backends` depend on.

`proxy/upstreams.py` implements it (one place for credentials, TLS and connection reuse) and `app.py` passes it in.
A probe through an ordinary HTTP client costs a millisecond of CPU, a fifth of a core for 200 idle engines; this
call costs as much as a routed request.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

ANSWER_BYTES = 1024 * 1024  # of most answers; vLLM's largest has 1,000 adapters in 0.4 MB


class HttpAnswer(NamedTuple):
    """Status and body of an answer. `oversized`: the answer exceeds the caller's limit, and `body` is empty."""

    status: int
    body: bytes
    oversized: bool = False


class NoAnswer(NamedTuple):
    """No answer came, for this reason. `late`: the instance was reached and stayed silent."""

    reason: str
    late: bool = False


class Fetch(Protocol):
    """Sends a GET, or a POST of a JSON body, and reads the whole answer."""

    async def __call__(
        self,
        instance: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float,
        limit_bytes: int = ANSWER_BYTES,
        rank: int | None = None,
    ) -> HttpAnswer | None:
        """Return the whole answer of `instance`, of up to `limit_bytes`; None when no answer arrived in time. Never
        raises for failures of the instance. `body`: None for a GET. `rank`: the rank that is to answer, of an instance
        with several.
        """


class ProbeFetch(Protocol):
    """Sends a GET like `Fetch`, and distinguishes an instance that is slow from one that is gone."""

    async def __call__(self, instance: str, path: str, *, timeout_s: float) -> HttpAnswer | NoAnswer:
        """Return the whole answer of `instance`, or why there is none. Never raises for its failures."""
