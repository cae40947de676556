"""One process's part of a target's load, as processes report it to each other.

This module is separate from the load book so that the load book can be compiled: msgspec types cannot be compiled.
"""

from __future__ import annotations

import msgspec


class WorkerShare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One worker's bookings of a target, or the sum over several workers. Routers of different versions exchange
    these values: new fields are appended with a default, and a reader ignores unknown fields.
    """

    requests: int = 0
    prefilling: int = 0
    prefill_tokens: int = 0
    prefill_attended: float = 0.0
    prompt_tokens: int = 0
    context_tokens: int = 0
    booked_tokens: int = 0

    def plus(self, other: WorkerShare) -> WorkerShare:
        """Return the sum, field by field."""
        if other is NO_SHARE:
            return self
        if self is NO_SHARE:
            return other
        return WorkerShare(
            self.requests + other.requests,
            self.prefilling + other.prefilling,
            self.prefill_tokens + other.prefill_tokens,
            self.prefill_attended + other.prefill_attended,
            self.prompt_tokens + other.prompt_tokens,
            self.context_tokens + other.context_tokens,
            self.booked_tokens + other.booked_tokens,
        )

    def minus(self, other: WorkerShare) -> WorkerShare:
        """Return the difference, field by field."""
        return WorkerShare(
            self.requests - other.requests,
            self.prefilling - other.prefilling,
            self.prefill_tokens - other.prefill_tokens,
            self.prefill_attended - other.prefill_attended,
            self.prompt_tokens - other.prompt_tokens,
            self.context_tokens - other.context_tokens,
            self.booked_tokens - other.booked_tokens,
        )


NO_SHARE = WorkerShare()
