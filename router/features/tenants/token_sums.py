"""Sums of tokens that change with every request, and their price. They are reported as `TokenCounts`."""

from __future__ import annotations

from router.config.sections.clients import PricesConfig
from router.features.tenants.token_counts import TokenCounts


class Prices:
    """Prices of one token by kind, in the operator's unit."""

    __slots__ = ("_cached", "_input", "_output")

    def __init__(self, config: PricesConfig) -> None:
        self._input = config.input
        self._cached = config.cached
        self._output = config.output

    def cost(self, tokens: TokenCounts | TokenSums) -> float:
        """Return the price of tokens."""
        return (
            tokens.input_tokens * self._input
            + tokens.cached_tokens * self._cached
            + tokens.output_tokens * self._output
        )


class TokenSums:
    """Tokens by kind, as in `TokenCounts`."""

    __slots__ = ("cached_tokens", "input_tokens", "output_tokens")

    def __init__(self) -> None:
        self.input_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0

    def add(self, tokens: TokenCounts) -> None:
        """Add tokens, kind by kind."""
        self.input_tokens += tokens.input_tokens
        self.cached_tokens += tokens.cached_tokens
        self.output_tokens += tokens.output_tokens

    def subtract(self, tokens: TokenCounts) -> None:
        """Subtract tokens, kind by kind."""
        self.input_tokens -= tokens.input_tokens
        self.cached_tokens -= tokens.cached_tokens
        self.output_tokens -= tokens.output_tokens

    def read(self) -> TokenCounts:
        """Return the present sums."""
        return TokenCounts(self.input_tokens, self.cached_tokens, self.output_tokens)
