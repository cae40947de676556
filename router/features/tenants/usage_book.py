"""Sums of each tenant's use, by day and model, until they are taken to be stored."""

from __future__ import annotations

from router.features.tenants.token_counts import TokenCounts
from router.features.tenants.token_sums import TokenSums
from router.features.tenants.usage import UsageKey, UsageRow


class _Sums:
    __slots__ = ("gpu_s", "refused", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = TokenSums()
        self.gpu_s = 0.0
        self.refused: dict[str, int] = {}


class UsageBook:
    """Sums that have not been taken yet."""

    def __init__(self) -> None:
        self._sums: dict[UsageKey, _Sums] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add_request(self, key: UsageKey, tokens: TokenCounts, gpu_s: float) -> None:
        """Add a request that ended."""
        sums = self._find(key)
        sums.requests += 1
        sums.tokens.add(tokens)
        sums.gpu_s += gpu_s

    def add_refusal(self, key: UsageKey, reason: str) -> None:
        """Add a request that was refused. Reasons are a closed set."""
        refused = self._find(key).refused
        refused[reason] = refused.get(reason, 0) + 1

    def add(self, row: UsageRow) -> None:
        """Add sums that were taken elsewhere, or could not be stored."""
        sums = self._find((row.day, row.tenant, row.model))
        sums.requests += row.requests
        sums.tokens.add(row.tokens)
        sums.gpu_s += row.gpu_s
        for reason, count in row.refused.items():
            sums.refused[reason] = sums.refused.get(reason, 0) + count

    def take(self) -> list[UsageRow]:
        """Return the sums, and begin with none."""
        taken, self._sums = self._sums, {}
        return [UsageRow(*key, one.requests, one.tokens.read(), one.gpu_s, one.refused) for key, one in taken.items()]

    def _find(self, key: UsageKey) -> _Sums:
        if (sums := self._sums.get(key)) is None:
            sums = self._sums[key] = _Sums()
        return sums
