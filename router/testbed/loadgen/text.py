"""Real text for a workload's spans: words of a small vocabulary, the same for the same span and seed every time.

A longer span begins with the words of a shorter one, as `token_ids` does for ids, so prompts share text exactly where
their spans do. How many tokens a word takes depends on the model: `tokens_per_word` is measured once on the endpoint
(`calibration.py`), and then lengths in tokens are near what the workload requests. Every word includes the space before
it, so texts can be cut and joined at any word without changing how the words around are tokenised.
"""

from __future__ import annotations

from hashlib import shake_128

from router.testbed.workloads import Span

VOCABULARY = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than into them
can only other time new two
"""
WORDS = tuple(f" {word}" for word in VOCABULARY.split())


class TextGenerator:
    """Generates the text of spans for one seed, and a model that takes `tokens_per_word` tokens per word."""

    def __init__(self, seed: int, tokens_per_word: float = 1.0) -> None:
        self._seed = seed.to_bytes(16, "big", signed=True)
        self._tokens_per_word = tokens_per_word

    def generate(self, *spans: Span) -> list[str]:
        """Return the words of the spans in a row: as many as make a span's tokens, at least one."""
        lengths = [(span.source, max(1, self.count_words(span.tokens))) for span in spans]
        return [word for source, count in lengths for word in self.generate_words(source, count)]

    def generate_words(self, source: int, count: int) -> list[str]:
        """Return the first `count` words of a source."""
        name = self._seed + source.to_bytes(8, "big")
        return [WORDS[byte % len(WORDS)] for byte in shake_128(name).digest(count)]

    def count_words(self, tokens: float) -> int:
        """Number of words that make `tokens` tokens."""
        return round(tokens / self._tokens_per_word)
