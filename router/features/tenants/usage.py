"""Use of a model by a tenant on a day."""

from __future__ import annotations

import msgspec

from router.features.tenants.token_counts import NO_TOKENS, TokenCounts

UsageKey = tuple[int, str, str]  # a named tuple is slow to make, and every request makes one
"""Day since the epoch (UTC), tenant, and model, which is empty if none was named or the refusal came first."""


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    """Use of a model by a tenant on a day. It is sent between the workers of a router."""

    day: int
    tenant: str
    model: str
    requests: int = 0  # ended in whatever way, not counting refused ones
    tokens: TokenCounts = NO_TOKENS
    gpu_s: float = 0.0  # estimated
    refused: dict[str, int] = {}  # by reason
