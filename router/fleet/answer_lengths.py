"""Mean answer length per model: the number of tokens that a request placed now will probably stream.

This is an exponential mean over about the last `WINDOW` answers, and an ordinary mean until there are that many. It
is rounded to whole tokens, because the value goes into every record, and finer digits do not compress.
"""

from __future__ import annotations

WINDOW = 64
MAX_MODELS = 10_000  # engines load and unload adapters under new names


class AnswerLengths:
    """Mean answer lengths of at most `MAX_MODELS` models; the model that answered first is forgotten first."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[int, float]] = {}  # count, up to `WINDOW`, and mean

    def observe(self, model: str, tokens: int) -> None:
        """Add a complete answer of `tokens`."""
        count, mean = self._means.get(model, (0, 0.0))
        count = min(count + 1, WINDOW)
        self._means[model] = count, mean + (tokens - mean) / count
        if len(self._means) > MAX_MODELS:
            del self._means[next(iter(self._means))]

    def mean_tokens(self, model: str | None) -> float | None:
        """Return the mean length in tokens; None if `model` is None or has not answered yet."""
        entry = None if model is None else self._means.get(model)
        return None if entry is None else float(round(entry[1]))
