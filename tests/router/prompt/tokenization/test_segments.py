"""Which tokens may be cut at, and what a text is cut into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from router.prompt.tokenization.segments import Segmenter, choose_delimiter

A, B = "<|a|>", "<|b|>"
PROMPT = "<|a|>x<|b|><|b|>"
texts = st.text(st.sampled_from("<|a>x é"), max_size=60)


def special(text: str, **traits: bool) -> AddedToken:
    return AddedToken(text, **{"normalized": False, "special": True, **traits})


def test_the_token_that_a_prompt_holds_most_often() -> None:
    assert choose_delimiter([special(A), special(B)], PROMPT) == B
    assert choose_delimiter([special(A), special(B)], "<|a|><|b|>") == A, "of two as often, the first"
    assert choose_delimiter([special("<|c|>")], PROMPT) is None
    assert choose_delimiter([], PROMPT) is None
    assert choose_delimiter([special(A)], "") is None


@pytest.mark.parametrize("trait", ["normalized", "lstrip", "rstrip", "single_word"])
def test_not_at_tokens_that_look_beside_themselves(trait: str) -> None:
    assert choose_delimiter([special(A), special(B, **{trait: True})], PROMPT) == A


@pytest.mark.parametrize(
    "other",
    [
        "<|b|>!",  # would be found instead, being longer
        "x<|b|>",
        "x<|b",  # would end inside
        "|>y",  # would begin inside
        "b",  # would be found inside, were it not found whole
    ],
)
def test_not_at_tokens_that_another_one_overlaps(other: str) -> None:
    assert choose_delimiter([special("[A]"), special(B), special(other)], "[A]<|b|><|b|>") == "[A]"


@pytest.mark.parametrize("text", ["aXa", " <b>", "<b> ", "\n\nHuman:", "user:", "_b_"])
def test_not_at_tokens_that_hang_on_what_is_beside_them(text: str) -> None:
    assert choose_delimiter([special(A), special(text)], A + text * 3) == A


@given(texts, st.integers(1, 12))
def test_pieces_are_the_text(text: str, least: int) -> None:
    pieces = Segmenter(b"<a>", [], [], least).split(text.encode())
    assert b"".join(pieces) == text.encode()
    assert all(piece.startswith(b"<a>") for piece in pieces[1:])
    assert all(len(piece) >= least for piece in pieces[:-1])


@given(
    st.text(st.sampled_from("<|a>x é"), max_size=60), st.text(st.sampled_from("<a>x"), max_size=30), st.integers(1, 9)
)
def test_what_follows_moves_no_cut_but_the_last(text: str, more: str, least: int) -> None:
    cut = Segmenter(b"<a>", [], [], least)
    before, after = cut.split(text.encode()), cut.split((text + "<a>" + more).encode())
    assert after[: len(before) - 1] == before[:-1]


def test_short_pieces_are_kept_together() -> None:
    assert Segmenter(b"<a>", [], [], 1).split(b"<a>1<a>2<a>3") == [b"<a>1", b"<a>2", b"<a>3"]
    assert Segmenter(b"<a>", [], [], 5).split(b"<a>1<a>2<a>3") == [b"<a>1<a>2", b"<a>3"]
    assert Segmenter(b"<a>", [], [], 9).split(b"") == [b""]
    assert len(Segmenter(b"<a>", [], []).split(b"<a>" * 1_000_000)) < 3_000
