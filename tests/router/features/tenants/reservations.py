"""Requests that open and reserve in one step, in tests of what is charged."""

from __future__ import annotations

from router.config.sections.clients import TenantLimits
from router.features.tenants.ledger import Ledger, Refusal, Reservation
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts


def reserve(ledger: Ledger, tenant: str, limits: TenantLimits, estimate: TokenCounts) -> Reservation | Refusal:
    """Return the reservation of a request whose prompt is known at once, or why it is refused."""
    opened = ledger.open(tenant, limits, least=NO_TOKENS)
    if isinstance(opened, Refusal):
        return opened
    refusal = opened.reserve(estimate)
    if refusal is not None:
        opened.settle(NO_TOKENS)
    return refusal or opened
