"""The proof passes for every family, and finds what must not be cut."""

from __future__ import annotations

import logging

import pytest
from tokenizers import AddedToken, Tokenizer, models

from router.prompt.prompt import Text
from router.prompt.tokenization.segments import Encode, Segmenter, find_difference, find_special_ids
from tests.router.prompt.tokenization.families import (
    CHATML,
    FAMILIES,
    byte_level,
    family,
    loaded,
    metaspace,
    word_piece,
)


def encode(tokenizer: Tokenizer) -> Encode:
    return lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_can_be_cut(name: str) -> None:
    assert family(name).whole_prompt_reason is None


@pytest.mark.parametrize("cut", ["e", " ", "the", "<|im_end"])
def test_cutting_where_no_special_token_is_gets_found_out(cut: str) -> None:
    tokenizer = byte_level()
    assert find_difference(encode(tokenizer), Segmenter(cut.encode(), [1], []), []) is not None


def test_cutting_behind_the_token_gets_found_out() -> None:
    """Metaspace `first` sees a beginning of the text wherever a piece begins with other than a special token."""

    class Behind(Segmenter):
        def split(self, text: bytes) -> list[bytes]:
            parts = text.split(self.delimiter)
            return [*(part + self.delimiter for part in parts[:-1]), parts[-1]]

        def _replace(self, **changes: object) -> Behind:  # type: ignore[override]
            return self

    tokenizer = metaspace("first")
    assert find_difference(encode(tokenizer), Segmenter(b"</s>", [], [2]), []) is None
    assert find_difference(encode(tokenizer), Behind(b"</s>", [], [2]), []) is not None


def test_other_added_tokens_are_among_the_texts() -> None:
    """`zz` is only found as a word of its own: in front of `x|` it is none, at the end of a piece it is."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("zz", single_word=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("x|", normalized=False)])
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    text = find_difference(encode(tokenizer), Segmenter(b"x|", [1], []), added)
    assert text is not None
    assert "zzx|" in text


def test_what_is_put_around_a_whole_prompt() -> None:
    assert find_special_ids(encode(word_piece())) == ([5], [6])
    assert find_special_ids(encode(byte_level())) == ([1], [])
    assert find_special_ids(encode(metaspace("first"))) == ([], [2])
    tokenizer = byte_level()
    assert find_difference(encode(tokenizer), Segmenter(b"<|im_start|>", [], []), []) is not None, (
        "the head is forgotten"
    )


def test_chance_in_the_tokenizer_is_found_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """BPE with dropout gives other ids each time."""
    tokenizer = byte_level()
    model = tokenizer.model
    assert isinstance(model, models.BPE)
    model.dropout = 0.5
    tokenizer.model = model
    with caplog.at_level(logging.WARNING):
        local = loaded(tokenizer)
    assert local.whole_prompt_reason is not None
    assert "tokenizers.m: every turn tokenises the whole prompt" in caplog.text
    parts = local.segment_text(b"<|im_start|>a<|im_start|>b", Text("", False))
    assert parts.segments == [b"<|im_start|>a<|im_start|>b"]


def test_a_vocabulary_without_a_token_to_cut_at_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert loaded(byte_level(), template="{{ messages[0].content }}").whole_prompt_reason is not None
    assert "no special token" in caplog.text
    assert loaded(byte_level(), CHATML).whole_prompt_reason is None
