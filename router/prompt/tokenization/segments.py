"""Where a prompt's text may be cut so that its pieces, tokenised one by one, give the ids of the whole.

An added token with `normalized: false` is found in the raw text before anything else happens to it, leftmost and
longest first, and all later steps (normaliser, pre-tokenizer, model) work between such tokens (`tokenizers`,
added_vocabulary.rs `extract_and_normalize`). So text may be cut in front of one, if no other added token can reach
over the cut: none overlaps it, and none looks at the characters beside itself (`single_word`) or swallows spaces
(`lstrip`, `rstrip`) across it. Each piece *begins* with its cut token, so that steps that treat the beginning of the
text differently (Metaspace `first`) see the same in the piece.

That is the theory; what is relied on is the proof (cut_proof.py), for each tokenizer, before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import AddedToken

LEAST_BYTES = 1024  # shorter ones cost more to look up and to keep than to tokenise; and there may be a million of them


class Segmenter(NamedTuple):
    """How one tokenizer's prompts are taken apart."""

    delimiter: bytes  # the token that each piece but the first begins with, in UTF-8
    head: list[int]  # what the tokenizer puts in front of a whole prompt, where special tokens are asked for
    tail: list[int]  # and behind it
    min_bytes: int = LEAST_BYTES  # of each piece but the last

    def split(self, text: bytes) -> list[bytes]:
        """The pieces of `text` (UTF-8), which together are `text`: at least one, all but the last not very short.

        Where the first pieces end does not depend on what comes behind them.
        """
        pieces, start = [], 0
        while (end := text.find(self.delimiter, start + self.min_bytes)) >= 0:
            pieces.append(text[start:end])
            start = end
        return [*pieces, text[start:]]


def cut_token(added: Sequence[AddedToken], prompt: str) -> str | None:
    """The token to cut at: of those that may be, the one that a typical `prompt` holds most often, then first."""
    held = [token for token in added if token.content and token.content in prompt]
    may = [token.content for token in held if _cuts(token, added)]
    return max(may, key=lambda token: (prompt.count(token), -prompt.index(token)), default=None)


def _cuts(token: AddedToken, added: Sequence[AddedToken]) -> bool:
    text = token.content
    plain = not (token.normalized or token.lstrip or token.rstrip or token.single_word)
    apart = not (text[0].isalnum() or text[0] == "_" or text[0].isspace() or text[-1].isspace())
    return plain and apart and not _overlaps(text, text) and not any(_touches(text, other) for other in added)


def _touches(text: str, other: AddedToken) -> bool:
    """Whether one could be found across a border of the other."""
    if other.content == text:
        return False
    return other.content in text or text in other.content or _overlaps(text, other.content)


def _overlaps(one: str, other: str) -> bool:
    """Whether an end of one is a beginning of the other, short of the whole."""
    shorter = min(len(one), len(other))
    return any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, shorter))
