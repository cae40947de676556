"""Tokens of requests by kind: the unit in which tenants are charged."""

from __future__ import annotations

import msgspec


class TokenCounts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of one or more requests. Sent between routers: add new fields at the end, with a default."""

    input_tokens: int = 0  # prompt tokens that were computed: not found in a cache
    cached_tokens: int = 0  # prompt tokens found in a cache
    output_tokens: int = 0

    @property
    def computed(self) -> int:
        """Tokens that engines computed; these count for the limit per minute."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: TokenCounts) -> TokenCounts:
        """Return the sum, kind by kind."""
        return TokenCounts(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


NO_TOKENS = TokenCounts()
