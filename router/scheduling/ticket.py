"""What a choice takes and what becomes of it: the booking of load that `Core.admit` makes and `Core.settle` gives back.

A pair is one ticket with two bookings. The prefill half's share has the prompt's work and ends with that half; the
ticket's own has the context and ends with the answer. What an end says of the engine, and to plug-ins that learn, is
said here for both.
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
from scorers.contract import Outcome, PoolHit


class TargetBooking(msgspec.Struct):
    """One target's part in a request, and what was believed of it."""

    target: Target
    booking: Booking
    estimate: OverlapEstimate | None
    sent_prompt: SentPrompt | None


class PrefillBooking(TargetBooking):
    """The prefill half of a pair."""

    leg: PrefillRecord


class Ticket(TargetBooking):
    """One attempt at a request. The line fills in `end`, `status`, and through the record
    what the engine counted.
    """

    record: Record
    attempt: Attempt
    sent_at: float
    pool_hit: PoolHit | None
    prefill: PrefillBooking | None
    end: AttemptEnd = "client_gone"  # what it is when the line is cut without a word
    status: int | None = None
    ttft_ms: float | None = None

    @property
    def has_prefilled(self) -> bool:
        """The engine has the prompt's KV. One that it refused left nothing in its cache."""
        return self.ttft_ms is not None and self.status is not None and self.status < 400


def judge_end(end: AttemptEnd | LegEnd, status: int | None) -> Verdict:
    """What an end says of the engine. The client's leaving, our own deadline and the other half's failure say nothing;
    nor does a full queue.
    """
    if end in ("client_gone", "deadline", "busy", "prefill", "cancelled"):
        return "neutral"
    return judge_status(status if end in ("ok", "rejected", "failed") else None)


def build_outcome(
    end: AttemptEnd | LegEnd, status: int | None, ttft_ms: float | None, duration_ms: float, usage: Usage
) -> Outcome:
    ok = end == "ok" and status is not None and status < 500
    return Outcome(ok, status, ttft_ms, duration_ms, *usage)
