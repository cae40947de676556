"""Totals of a tenant that processes report to each other."""

from __future__ import annotations

import msgspec

from router.features.tenants.token_counts import NO_TOKENS, TokenCounts


class TenantTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Charges of a tenant by one process. New fields come at the end with a default."""

    owner: str  # who spent `spent`: another process that goes on from the same file has the same name
    began: int  # number of the account, among those of its process: the next one of the same tenant begins at 0
    day: int  # days since the epoch, UTC
    requests: int = 0  # charged since the account began
    tokens: int = 0
    returned_tokens: int = 0  # charged too much, and given back
    window_requests: int = 0  # of these in the window of 60 s
    window_tokens: int = 0
    open: int = 0  # requests in progress
    spent: TokenCounts = NO_TOKENS  # on `day`
    reserved: TokenCounts = NO_TOKENS  # for requests in progress
