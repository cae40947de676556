"""Encodes text as the tokenizer of Kimi K2, which its folder has as `tiktoken.model` and as Python for transformers.

The rules are those of `tokenization_kimi.py` in the model's repository, as transformers calls it: special tokens are
found first, also where a text spells them; what is between them is cut where tiktoken could not take it, and encoded.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import tiktoken
from tokenizers import AddedToken

RESERVED: Final = 256  # ids after the vocabulary, of special tokens
ENCODED_CHARS: Final = 400_000  # of a text, at once
RUN_CHARS: Final = 25_000  # of a text that is all spaces, or has none
_LONG_RUN: Final = re.compile(rf"\S{{{RUN_CHARS + 1},}}|\s{{{RUN_CHARS + 1},}}")

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE, _ENDING = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS: Final = "|".join(
    [
        r"[\p{Han}]+",
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDING}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


class KimiCodec:
    """The vocabulary of one model."""

    def __init__(self, ranks: dict[bytes, int], named: Mapping[int, str]) -> None:
        """`ranks`: the vocabulary; `named`: special tokens by id, those of `added_tokens_decoder`."""
        special = {named.get(id, f"<|reserved_token_{id}|>"): id for id in range(len(ranks), len(ranks) + RESERVED)}
        self.added: Sequence[AddedToken] = [AddedToken(name, normalized=False, special=True) for name in special]
        self._special = special
        self._encoding = tiktoken.Encoding("kimi", pat_str=WORDS, mergeable_ranks=ranks, special_tokens=special)
        self._first_special = len(ranks)
        longest_first = sorted(special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})").split

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """See `TextCodec`: no ids surround a whole prompt."""
        ids: list[int] = []
        for piece in self._split(text):
            if (id := self._special.get(piece)) is not None:
                ids.append(id)
            elif piece:
                for part in _cut(piece):
                    ids += self._encoding.encode_ordinary(part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See `TextCodec`."""
        return self._encoding.decode([id for id in ids if id < self._first_special])


def read_ranks(file: Path) -> dict[bytes, int]:
    """Read a vocabulary: one token per line, in base64, and its rank. Raises OSError and ValueError."""
    lines = file.read_bytes().splitlines()
    return {b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def _cut(text: str) -> Iterator[str]:
    for begin in range(0, len(text), ENCODED_CHARS):
        part, done = text[begin : begin + ENCODED_CHARS], 0
        for run in _LONG_RUN.finditer(part):
            for end in range(run.start() + RUN_CHARS, run.end(), RUN_CHARS):
                yield part[done:end]
                done = end
        yield part[done:]
