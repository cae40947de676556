"""How long the answers of a tenant by a model become: what is reserved for the next one.

An answer weighs as much as it has tokens. If each weighed the same, sixty short answers would hide a few long ones, and
a tenant could let many long ones begin at once with next to nothing reserved for each. By tokens, those longer than the
quantile have `1 - SHARE` of all tokens at most, so a long answer hides only behind three times its own tokens. For
lengths with an exponential distribution it is the 93rd percentile of the answers.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Final

SHARE: Final = 0.75
STEPS: Final = 4  # lengths per doubling, rounded up: a quantile is at most 19 % too high
REMEMBERED_TOKENS: Final = 1 << 20  # of a key; with more, all weights are halved
MAX_KEYS: Final = 10_000  # engines load and unload adapters under new names


class AnswerQuantiles:
    """Quantiles of answer lengths by a key; of `MAX_KEYS`, those that answered first are forgotten."""

    def __init__(self) -> None:
        self._weights: dict[str, dict[int, float]] = {}  # tokens of the answers of each length
        self._quantiles: dict[str, int] = {}

    def observe(self, key: str, tokens: int) -> None:
        """Add an answer of `tokens`, above 0."""
        weights = self._weights.setdefault(key, {})
        step = ceil(STEPS * log2(tokens))
        weights[step] = weights.get(step, 0.0) + tokens
        if sum(weights.values()) > REMEMBERED_TOKENS:
            for one in weights:
                weights[one] /= 2
        self._quantiles[key] = _find_quantile(weights)
        if len(self._weights) > MAX_KEYS:
            oldest = next(iter(self._weights))
            del self._weights[oldest], self._quantiles[oldest]

    def read(self, key: str) -> int | None:
        """Return the quantile in tokens; None for a key without an answer."""
        return self._quantiles.get(key)


def _find_quantile(weights: dict[int, float]) -> int:
    left = SHARE * sum(weights.values())
    step = 0
    for step in sorted(weights):
        left -= weights[step]
        if left <= 0:
            break
    return int(2 ** (step / STEPS))
