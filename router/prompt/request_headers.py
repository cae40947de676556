"""What a client says of its request beside the body: its session, and the latencies it hopes for.

Most say nothing, and that must cost next to nothing: one look at the header names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SESSION, TTFT, TPOT = b"x-session-id", b"x-slo-ttft-ms", b"x-slo-tpot-ms"
LLM_D_TTFT, LLM_D_TPOT = b"x-llm-d-router-slo-ttft-ms", b"x-llm-d-router-slo-tpot-ms"
NAMES = frozenset((SESSION, TTFT, TPOT, LLM_D_TTFT, LLM_D_TPOT))


class RequestHeaders(NamedTuple):
    """As written; None: not said."""

    session: str | None = None
    ttft: str | None = None
    tpot: str | None = None


NO_WISHES = RequestHeaders()


def wishes(fields: Mapping[bytes, bytes]) -> RequestHeaders:
    """`fields`: a request's headers, names in lower case."""
    if fields.keys().isdisjoint(NAMES):
        return NO_WISHES
    return RequestHeaders(
        _text(fields, SESSION),
        _text(fields, LLM_D_TTFT) or _text(fields, TTFT),
        _text(fields, LLM_D_TPOT) or _text(fields, TPOT),
    )


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str | None:
    return fields.get(name, b"").decode("latin-1") or None
