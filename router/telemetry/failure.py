"""The reason why a request failed, in one word: a label of metrics, and `error.type` of spans."""

from __future__ import annotations

from typing import Final

from router.scheduling.policy.record import Attempt, Record

ENDS: Final = frozenset({"connect", "busy", "died", "stuck", "broken", "client_gone", "cut", "deadline", "prefill"})
CLIENTS_OWN = frozenset({"client_gone", "engine_4xx"})
"""Reasons that are not faults of the router or of an engine: the client left, or an engine rejected what the client
sent.
"""
FAILURE_REASONS: Final = ENDS | CLIENTS_OWN | {"poison", "no_target", "engine_5xx"}
"""All that `failure_reason` returns."""


def describe_end(attempt: Attempt, status: int | None) -> str:
    """Return how an attempt at a request with this `status` ended: an engine's own error is a whole answer, too."""
    if attempt.end == "failed":
        return "engine_5xx"
    if attempt.end == "ok" and status is not None and status >= 400:
        return "engine_5xx" if status >= 500 else "engine_4xx"
    return attempt.end


def failure_reason(record: Record) -> str | None:
    """Return why the request failed, None if it did not. A 4xx is the engine's verdict on what the client sent."""
    if record.poison:
        return "poison"
    if record.uncontinued is not None:
        return "broken"
    if record.attempts and (end := record.attempts[-1].end) in ENDS:
        return end
    if record.status is None:
        return "client_gone"
    if not record.attempts:
        return "no_target"
    if record.status >= 400:
        return "engine_5xx" if record.status >= 500 else "engine_4xx"
    return "engine_4xx" if record.attempts[-1].end == "rejected" else None  # inside a stream
