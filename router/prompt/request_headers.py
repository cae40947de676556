"""Request headers that routing reads: the session id and the latency objectives.

Most requests have none, which one set operation on the header names finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SESSION, TTFT, TPOT = b"x-session-id", b"x-slo-ttft-ms", b"x-slo-tpot-ms"
LLM_D_TTFT, LLM_D_TPOT = b"x-llm-d-router-slo-ttft-ms", b"x-llm-d-router-slo-tpot-ms"
NAMES = frozenset((SESSION, TTFT, TPOT, LLM_D_TTFT, LLM_D_TPOT))


class RequestHeaders(NamedTuple):
    """Header values as sent; `None` where a header is missing."""

    session: str | None = None
    ttft: str | None = None
    tpot: str | None = None


NO_HEADERS = RequestHeaders()


def read_request_headers(fields: Mapping[bytes, bytes]) -> RequestHeaders:
    """Read the headers in `fields`, whose names are in lower case."""
    if fields.keys().isdisjoint(NAMES):
        return NO_HEADERS
    return RequestHeaders(
        _text(fields, SESSION),
        _text(fields, LLM_D_TTFT) or _text(fields, TTFT),
        _text(fields, LLM_D_TPOT) or _text(fields, TPOT),
    )


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str | None:
    return fields.get(name, b"").decode("latin-1") or None
