"""Use of a model by a tenant on a day."""

from __future__ import annotations

import msgspec

from router.features.tenants.token_counts import NO_TOKENS, TokenCounts

UsageKey = tuple[int, str, str]  # a named tuple is slow to make, and every request makes one
"""Day since the epoch (UTC), tenant, and model, which is empty where a request named none or was refused before."""


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    """Use of a model by a tenant on a day. It travels between the workers of a router."""

    day: int
    tenant: str
    model: str
    requests: int = 0  # that ended, in whatever way; without those that were refused
    tokens: TokenCounts = NO_TOKENS
    gpu_s: float = 0.0  # estimated
    refused: dict[str, int] = {}  # by reason
