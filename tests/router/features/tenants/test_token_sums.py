"""Sums of tokens and their price."""

from __future__ import annotations

from router.config.sections.clients import PricesConfig
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from router.features.tenants.token_sums import Prices, TokenSums


def test_cost_is_by_kind() -> None:
    counts, sums = TokenCounts(1000, 4000, 50), TokenSums()
    sums.add(counts)
    sums.add(counts)
    sums.subtract(counts)
    assert sums.read() == counts
    prices = Prices(PricesConfig())
    assert prices.cost(counts) == prices.cost(sums) == 1000 * 1.0 + 4000 * 0.1 + 50 * 4.0
    sums.subtract(counts)
    assert sums.read() == NO_TOKENS
