from __future__ import annotations

from router.config.sections.clients import PricesConfig
from router.tenants.token_counts import TokenCounts


def test_cost_is_by_kind_and_cached_tokens_are_not_computed() -> None:
    counts = TokenCounts(1000, 4000, 50)
    assert counts.computed == 1050
    assert counts.cost(PricesConfig()) == 1000 * 1.0 + 4000 * 0.1 + 50 * 4.0
    assert counts.plus(counts).minus(counts) == counts
