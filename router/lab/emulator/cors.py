"""Cross-origin requests as vLLM answers them: `--allowed-origins`, by default none, all methods and headers.

The headers are Starlette's: `Vary: Origin` on every answer of the application, allowed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
VARY = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"
MAX_AGE_S = 600
Headers = list[tuple[bytes, bytes]]


class Preflight(NamedTuple):
    """Answer to a browser's preflight request, which checks whether it may send the real one."""

    status: int
    body: bytes
    headers: Headers


class CorsPolicy:
    """Cross-origin policy. `allowed`: origins, or "*" for all."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(allowed)

    def headers(self, origin: str | None) -> Headers:
        """Return the headers of every answer to a request from `origin`."""
        if (value := self._allow(origin)) is None:
            return [(b"vary", b"Origin")]
        return [(b"vary", b"Origin"), (b"access-control-allow-origin", value.encode("latin-1"))]

    def preflight(self, headers: Mapping[str, str]) -> Preflight:
        """Return the answer to OPTIONS with `Origin` and `Access-Control-Request-Method`, whatever the path."""
        faults = []
        answer = {"vary": VARY, "access-control-allow-methods": ", ".join(METHODS)}
        answer["access-control-max-age"] = str(MAX_AGE_S)
        if (value := self._allow(headers["origin"])) is None:
            faults.append("origin")
        else:
            answer["access-control-allow-origin"] = value
        if headers["access-control-request-method"] not in METHODS:
            faults.append("method")
        if requested := headers.get("access-control-request-headers"):
            answer["access-control-allow-headers"] = requested
        if headers.get("access-control-request-private-network") == "true":
            faults.append("private-network")
        body = f"Disallowed CORS {', '.join(faults)}" if faults else "OK"
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in answer.items()]
        return Preflight(400 if faults else 200, body.encode(), encoded)

    def _allow(self, origin: str | None) -> str | None:
        if origin is None:
            return None
        return "*" if "*" in self._allowed else origin if origin in self._allowed else None


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request is a preflight."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers
