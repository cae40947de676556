"""The tokenizer of emulated engines: converts between text and token ids, and lists the tokens used in answers.

Answers consist of tokens that spell a whole word with its leading space, because such tokens survive the round
trip: the text of an answer, sent back as history in the next turn, becomes exactly the generated tokens again, so
it hits the cache as it mostly does on a real engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

DATA = Path(__file__).parent / "data"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = "<|im_end|>"


class Vocabulary:
    """The tokenizer of a model directory."""

    def __init__(self, folder: Path = DATA) -> None:
        """Load the tokenizer. Raises FileNotFoundError without a `tokenizer.json`."""
        self.folder = folder
        path = folder / "tokenizer.json"
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such tokenizer")
        self._tokenizer = Tokenizer.from_file(str(path))
        self.config: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        self.end_token = self._tokenizer.token_to_id(self.config["eos_token"]) or 0
        self._texts = [self._tokenizer.decode([id]) for id in range(self._tokenizer.get_vocab_size())]
        self.size = len(self._texts)
        self.words = [id for id, text in enumerate(self._texts) if text[:1] == " " and _is_word(text[1:])]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of `text`. `special` adds the post-processor's tokens, such as begin-of-text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of `text`, treating spellings of special tokens as ordinary text."""
        self._tokenizer.encode_special_tokens = True
        try:
            return self.encode(text)
        finally:
            self._tokenizer.encode_special_tokens = False

    def text(self, token: int) -> str:
        """Return the text of one token; empty for special tokens and unknown ids."""
        return self._texts[token] if token < len(self._texts) else ""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, without special tokens."""
        text: str = self._tokenizer.decode(list(tokens))
        return text

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the tokens in the tokenizer's own notation, for `return_token_strs`."""
        return [self._tokenizer.id_to_token(token) or "" for token in tokens]


@cache  # it never changes, loading it takes 10 ms, and tests start thousands of engines in a process
def load_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary of a model directory, loaded once in a process. Raises FileNotFoundError."""
    return Vocabulary(folder)


def _is_word(text: str) -> bool:
    return text.isascii() and text.isalpha() and len(text) > 1
