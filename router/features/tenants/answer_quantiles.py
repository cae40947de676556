"""Quantile of the lengths of a tenant's answers by a model: as many tokens are reserved for the next answer.

An answer is weighted by its tokens. If all weighed the same, sixty short answers would hide a few long ones, and a
tenant could begin many long answers at once with next to nothing reserved for each. With weights, answers longer
than the quantile have at most `1 - SHARE` of all tokens, so a long answer hides only behind three times its own
tokens. For exponentially distributed lengths the quantile is the 93rd percentile of the answers.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Final

SHARE: Final = 0.75
STEPS: Final = 4  # lengths per doubling, rounded up: a quantile is at most 19 % too high
REMEMBERED_TOKENS: Final = 1 << 20  # of a key; with more, all weights are halved
MAX_KEYS: Final = 10_000  # engines load and unload adapters under new names
LATE: Final = 16  # answers after which a lower quantile is found; a higher one is found at once


class _Answers:
    """The answers of one key."""

    __slots__ = ("new", "quantile", "step", "total", "weights")

    def __init__(self) -> None:
        self.weights: dict[int, float] = {}  # tokens of the answers of each length
        self.total = 0.0
        self.new = 0  # answers since the quantile was found
        self.step = -1  # of the quantile
        self.quantile = 0

    def find_quantile(self) -> None:
        self.new, left = 0, SHARE * self.total
        for step in sorted(self.weights):
            left -= self.weights[step]
            if left <= 0:
                break
        self.step, self.quantile = step, int(2 ** (step / STEPS))


class AnswerQuantiles:
    """Quantiles of answer lengths by key. Beyond `MAX_KEYS`, the keys that answered first are forgotten."""

    def __init__(self) -> None:
        self._of: dict[str, _Answers] = {}

    def observe(self, key: str, tokens: int) -> None:
        """Add an answer of `tokens`, at least 1."""
        if (answers := self._of.get(key)) is None:
            answers = self._of[key] = _Answers()
            if len(self._of) > MAX_KEYS:
                del self._of[next(iter(self._of))]
        step = ceil(STEPS * log2(tokens))
        answers.weights[step] = answers.weights.get(step, 0.0) + tokens
        answers.total += tokens
        answers.new += 1
        if answers.total > REMEMBERED_TOKENS:
            answers.total /= 2
            for one in answers.weights:
                answers.weights[one] /= 2
        if step > answers.step or answers.new == LATE:
            answers.find_quantile()

    def read(self, key: str) -> int | None:
        """Return the quantile in tokens; None for a key without an answer."""
        answers = self._of.get(key)
        return None if answers is None else answers.quantile
