"""Words for spans: the same ones every time, and prefixes of each other exactly where spans are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.lab.loadgen.conversations import WORDS, TextGenerator
from router.lab.workloads.model import Span

SOURCES = st.integers(0, 2**64 - 1)
TOKENS = st.integers(1, 3000)


def test_the_words_are_different_and_bring_their_space() -> None:
    assert len(WORDS) == len(set(WORDS)) == 64  # a byte names each of them equally often
    assert all(word[0] == " " and word[1:].isalpha() for word in WORDS)


@given(SOURCES, TOKENS, TOKENS, st.floats(0.5, 4.0))
def test_a_longer_span_begins_with_a_shorter_ones_words(source: int, one: int, other: int, per_word: float) -> None:
    short, long = sorted((one, other))
    texts = TextGenerator(7, per_word)
    beginning = texts.generate(Span(source, short))
    assert texts.generate(Span(source, long))[: len(beginning)] == beginning


@given(TOKENS, st.floats(0.5, 4.0))
def test_as_many_words_as_make_the_tokens(tokens: int, per_word: float) -> None:
    words = len(TextGenerator(7, per_word).generate(Span(1, tokens)))
    assert words >= 1
    assert abs(words * per_word - tokens) <= max(per_word / 2 + 1e-6, per_word - tokens)  # rounded, but one at least


def test_another_source_and_another_seed_are_other_texts() -> None:
    span = Span(1, 100)
    texts = {tuple(TextGenerator(seed).generate(Span(source, span.tokens))) for seed in (1, 2, -1) for source in (1, 2)}
    assert len(texts) == 6


def test_spans_follow_each_other() -> None:
    texts, one, two = TextGenerator(7), Span(1, 5), Span(2, 3)
    assert texts.generate(one, two) == texts.generate(one) + texts.generate(two)
