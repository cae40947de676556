"""A tenant's totals, as processes report them to each other."""

from __future__ import annotations

import msgspec

from router.features.tenants.token_counts import NO_TOKENS, TokenCounts


class TenantTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Charges of a tenant by one process. Add new fields at the end, with a default."""

    owner: str  # name under which `spent` is booked: a process that continues the same file has the same name
    began: int  # number of the account at its process; the totals of a tenant's next account begin at 0
    day: int  # days since the epoch, UTC
    requests: int = 0  # charged since the account began
    tokens: int = 0
    returned_tokens: int = 0  # charged too much, and subtracted again; `window_tokens` is without them
    window_requests: int = 0  # of these in the window of 60 s
    window_tokens: int = 0
    open: int = 0  # requests in progress
    spent: TokenCounts = NO_TOKENS  # on `day`
    reserved: TokenCounts = NO_TOKENS  # for requests in progress
