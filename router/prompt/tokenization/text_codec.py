"""Encodes and decodes text with a model's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tokenizers import AddedToken, Tokenizer


class TextCodec(Protocol):
    """The vocabulary of one model."""

    added: Sequence[AddedToken]
    """Tokens that are found in a text before anything else happens to it; empty if a text's spellings of special
    tokens are ordinary text.
    """

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`, with those that surround a whole prompt if `add_special_tokens`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""


class HfCodec:
    """A `tokenizer.json` of Hugging Face's library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.added: Sequence[AddedToken] = list(tokenizer.get_added_tokens_decoder().values())

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """See `TextCodec`."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `TextCodec`."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
