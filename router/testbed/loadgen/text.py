"""Real text for a workload's spans: words of a small vocabulary, the same for the same span and seed every time.

A longer span begins with a shorter one's words, as `token_ids` has it for ids, so prompts share text exactly where
their spans do. How many words make a token is the model's business: `tokens_per_word` is measured once on the endpoint
(`calibrate.py`), and then lengths in tokens come out near what the workload asks for. Every word brings the space
before it, so that texts can be cut and joined at any word without changing how the words around are tokenised.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128
from itertools import chain

from router.testbed.workloads import Span

VOCABULARY = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than into them
can only other time new two
"""
WORDS = tuple(f" {word}" for word in VOCABULARY.split())


class TextGenerator:
    """The spans of one text seed, for a model of so many tokens per word."""

    def __init__(self, seed: int, tokens_per_word: float = 1.0) -> None:
        self._seed = seed.to_bytes(16, "big", signed=True)
        self._tokens_per_word = tokens_per_word

    def words(self, span: Span) -> list[str]:
        """As many as make the span's tokens; one at least."""
        return self.first(span.source, max(1, self.count(span.tokens)))

    def first(self, source: int, count: int) -> list[str]:
        name = self._seed + source.to_bytes(8, "big")
        return [WORDS[byte % len(WORDS)] for byte in shake_128(name).digest(count)]

    def count(self, tokens: float) -> int:
        """Words in so many tokens."""
        return round(tokens / self._tokens_per_word)

    def of(self, spans: Sequence[Span]) -> list[str]:
        return list(chain.from_iterable(self.words(span) for span in spans))
