"""How long answers are, per model: what a request that is placed now will probably stream.

An exponential mean over about the last `REMEMBERED` answers, an ordinary one until there are as many. Given out rounded
to whole tokens: it goes into every record, and finer digits do not compress.
"""

from __future__ import annotations

REMEMBERED = 64


class AnswerLengths:
    """Names are those of models that answered, so they are few."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[int, float]] = {}  # how many, up to `REMEMBERED`, and their mean

    def observe(self, model: str, tokens: int) -> None:
        """A whole answer of so many tokens."""
        count, mean = self._means.get(model, (0, 0.0))
        count = min(count + 1, REMEMBERED)
        self._means[model] = count, mean + (tokens - mean) / count

    def mean_tokens(self, model: str | None) -> float | None:
        """None: there was no answer yet, or of no model."""
        known = None if model is None else self._means.get(model)
        return None if known is None else float(round(known[1]))
