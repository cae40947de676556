"""Tokens by kind."""

from __future__ import annotations

from router.features.tenants.token_counts import TokenCounts


def test_cached_tokens_are_not_computed() -> None:
    counts = TokenCounts(1000, 4000, 50)
    assert counts.computed == 1050
    assert counts.plus(counts) == TokenCounts(2000, 8000, 100)
