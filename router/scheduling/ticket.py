"""Tickets: the bookings that `Scheduler.admit` makes and `Scheduler.settle` releases, and the verdicts on their
ends.

A pair is one ticket with two bookings. The prefill half's booking has the prompt's work and ends with that half;
the ticket's own booking has the context and ends with the answer.
"""

from __future__ import annotations

import msgspec

from router.fleet.breaker import Verdict, judge_status
from router.fleet.instance import Target
from router.fleet.load import Booking
from router.kvcache.indexer import SentPrompt
from router.kvcache.overlap_estimate import OverlapEstimate
from router.prompt.usage import Usage
from router.scheduling.policy.record import Attempt, AttemptEnd, LegEnd, PrefillRecord, Record
from scorers.blocks import tier_tokens
from scorers.contract import Outcome, PoolHit

ENGINE_IN_DOUBT = frozenset(("connect", "died", "failed"))  # after these ends, another process may answer


class TargetBooking(msgspec.Struct):
    """One target's part in a request, and the overlap that was estimated for it."""

    target: Target
    booking: Booking
    estimate: OverlapEstimate | None
    sent_prompt: SentPrompt | None


class PrefillBooking(TargetBooking):
    """The prefill half of a pair."""

    leg: PrefillRecord


class Ticket(TargetBooking):
    """One attempt at a request. `end`, `status` and the record's token counts are set while it is served."""

    record: Record
    attempt: Attempt
    sent_at: float
    pool_hit: PoolHit | None
    prefill: PrefillBooking | None
    end: AttemptEnd = "client_gone"  # the end of a request that is cancelled without another
    status: int | None = None
    ttft_ms: float | None = None
    conversation: bytes | None = None  # of a prompt whose tokens are not all known, if it can be identified

    @property
    def has_prefilled(self) -> bool:
        """Whether the engine has the prompt's KV. A rejected request leaves nothing in the engine's cache."""
        return self.ttft_ms is not None and self.status is not None and self.status < 400


def judge_end(end: AttemptEnd | LegEnd, status: int | None) -> Verdict:
    """Return the breaker's verdict on an end. Neutral if the client left or may have, the router's deadline passed,
    the other half failed, or the engine's queue is full; and if it was stuck, which holds its breaker open already.
    """
    if end in ("client_gone", "cut", "deadline", "busy", "stuck", "prefill", "cancelled"):
        return "neutral"
    if end == "connect":
        return "unreachable"
    return judge_status(status if end in ("ok", "rejected", "failed") else None)


def build_outcome(
    end: AttemptEnd | LegEnd, status: int | None, ttft_ms: float | None, duration_ms: float, usage: Usage
) -> Outcome:
    """Return the outcome that plug-ins learn from."""
    ok = end == "ok" and status is not None and status < 500
    return Outcome(ok, status, ttft_ms, duration_ms, *usage)


def uncached_tokens(tokens: int, estimate: OverlapEstimate | None, pool_hit: PoolHit | None) -> int:
    """Return the number of prompt tokens that a target has to compute. An engine loads everything that the pool
    has, whether or not loading is cheaper.
    """
    held = 0
    if estimate is not None and (overlap := estimate.overlap) is not None:
        held = max(overlap.expected_tokens - estimate.recomputed_tokens, tier_tokens(overlap))
    return max(0, tokens - max(held, pool_hit.tokens if pool_hit is not None else 0))
