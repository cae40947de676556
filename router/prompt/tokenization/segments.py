"""Splits a prompt's text into segments that, tokenised one by one, give the ids of the whole.

An added token with `normalized: false` is found in the raw text before anything else happens to it, leftmost and
longest first, and all later steps (normaliser, pre-tokenizer, model) work between such tokens (`tokenizers`,
added_vocabulary.rs `extract_and_normalize`). So text may be split in front of one, if no other added token can reach
over the boundary: none overlaps it, and none looks at adjacent characters (`single_word`) or swallows spaces (`lstrip`,
`rstrip`) across it. Each segment *begins* with its delimiter, so that steps that treat the beginning of the text
differently (Metaspace `first`) see the same in the segment.

This is the theory; every tokenizer is checked (segment_check.py) before segmenting is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import AddedToken

LEAST_BYTES = 1024  # shorter segments cost more to look up and store than to tokenise


class Segmenter(NamedTuple):
    """Splits the prompts of one tokenizer."""

    delimiter: bytes  # the token with which each segment but the first begins, in UTF-8
    head: list[int]  # ids before a whole prompt with special tokens
    tail: list[int]  # ids behind it
    min_bytes: int = LEAST_BYTES  # minimum size of each segment but the last

    def split(self, text: bytes) -> list[bytes]:
        """Return the segments of `text` (UTF-8), at least one. No segment's end depends on what follows it."""
        segments, start = [], 0
        while (end := text.find(self.delimiter, start + self.min_bytes)) >= 0:
            segments.append(text[start:end])
            start = end
        return [*segments, text[start:]]


def choose_delimiter(added: Sequence[AddedToken], prompt: str) -> str | None:
    """Return the added token to split at: the possible one most frequent in a typical `prompt`, then the first."""
    present = [token for token in added if token.content and token.content in prompt]
    possible = [token.content for token in present if _is_delimiter(token, added)]
    return max(possible, key=lambda token: (prompt.count(token), -prompt.index(token)), default=None)


def _is_delimiter(token: AddedToken, added: Sequence[AddedToken]) -> bool:
    """Return whether text may be split in front of `token`."""
    text = token.content
    plain = not (token.normalized or token.lstrip or token.rstrip or token.single_word)
    apart = not (text[0].isalnum() or text[0] == "_" or text[0].isspace() or text[-1].isspace())
    return plain and apart and not _overlaps(text, text) and not any(_may_cross(text, other) for other in added)


def _may_cross(text: str, other: AddedToken) -> bool:
    """Return whether one token could be found across a border of the other."""
    if other.content == text:
        return False
    return other.content in text or text in other.content or _overlaps(text, other.content)


def _overlaps(one: str, other: str) -> bool:
    """Return whether an end of one is a beginning of the other, short of the whole."""
    shorter = min(len(one), len(other))
    return any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, shorter))
