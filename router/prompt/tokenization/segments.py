"""Splits a prompt's text into segments that, tokenised one by one, give the ids of the whole.

An added token with `normalized: false` is found in the raw text before anything else happens to it, leftmost and
longest first, and all later steps (normaliser, pre-tokenizer, model) work between such tokens (`tokenizers`,
added_vocabulary.rs `extract_and_normalize`). So text may be split in front of such a token, if no other added token
can reach over the boundary: none overlaps it, and none looks at adjacent characters (`single_word`) or swallows
spaces (`lstrip`, `rstrip`) across it. Each segment *begins* with its delimiter, so that steps that treat the
beginning of the text differently (Metaspace `first`) see the same in the segment.

This is the theory; `find_difference` checks every tokenizer before segmenting is used. Its texts are cases in which
segmenting could go wrong: characters beside a delimiter, at the beginning and at the end (spaces, line ends,
combining marks, joiners), characters that a normaliser changes, text that looks like a special token or is another
one, two delimiters in a row. After the fixed texts come random sequences of the same fragments, the same at every
start. After one difference the tokenizer's prompts are never segmented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from tokenizers import AddedToken

LEAST_BYTES = 1024  # shorter segments cost more to look up and store than to tokenise

Encode = Callable[[str, bool], list[int]]  # text; whether to add special tokens around it

RANDOM_TEXTS = 200
LONGEST = 14  # fragments
FRAGMENTS = (
    *("", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b", "\ufeff"),
    *("a", "Word", " word", "word ", "don't", "naïve", "ÀÉÎ", "ßẞ", "12345", "3.14", "x²", "_", "-", "...", '"', "'s"),
    *("def f(x):\n\treturn {'a': [1, 2]}\n", "    if a <= b:\r\n", '{"k": null}', "http://a.b/c?d=e#f", "</s>", "<s>"),
    *("e\u0301", "\u0301", "\u0301e", "é", "ﬁ", "Å", "Å", "A\u030a", "ｱ", "①", "한글", "\u1112\u1161\u11ab"),
    *("東京", "日本語の文", "مرحبا", "שלום", "नमस्ते", "ไทย", "ё", "ΑΣ", "İ", "ı"),
    *("🎉", "👩\u200d🚀", "\u200d", "🇨🇭", "👍🏽", "\ufe0f", "▁", "▁▁a", "Ġ", "##", "##ing", "\x00", "\x7f", "\ufffd"),
)


class Segmenter(NamedTuple):
    """Splits the prompts of one tokenizer."""

    delimiter: bytes  # the token with which each segment but the first begins, in UTF-8
    head: list[int]  # ids before a whole prompt with special tokens
    tail: list[int]  # ids after it
    min_bytes: int = LEAST_BYTES  # minimum size of each segment but the last

    def split(self, text: bytes) -> list[bytes]:
        """Return the segments of `text` (UTF-8), at least one. No segment's end depends on the text after it."""
        segments, start = [], 0
        while (end := text.find(self.delimiter, start + self.min_bytes)) >= 0:
            segments.append(text[start:end])
            start = end
        return [*segments, text[start:]]


def choose_delimiter(added: Sequence[AddedToken], prompt: str) -> str | None:
    """Return the added token to split at: of the possible ones the most frequent in a typical `prompt`, then the
    first. None if there is none.
    """
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
    """Return whether one token could be found across a boundary of the other."""
    if other.content == text:
        return False
    return other.content in text or text in other.content or _overlaps(text, other.content)


def _overlaps(one: str, other: str) -> bool:
    """Return whether an end of one is a beginning of the other, without being the whole."""
    shorter = min(len(one), len(other))
    return any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, shorter))


def find_difference(encode: Encode, segmenter: Segmenter, added: Sequence[str]) -> str | None:
    """Return a text whose segments have other ids than the whole; None if no such text is found. `added`: all added
    tokens, which the texts use.
    """
    fine = segmenter._replace(min_bytes=1)
    for text in _make_texts(segmenter.delimiter.decode(), added):
        bare: list[int] = []
        for segment in fine.split(text.encode()):
            bare += encode(segment.decode(), False)
        if encode(text, False) != bare or encode(text, True) != segmenter.head + bare + segmenter.tail:
            return text
    return None


def find_special_ids(encode: Encode) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and after a whole prompt, found with one example."""
    bare, whole = encode("a b", False), encode("a b", True)
    places = [i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare]
    start = places[0] if places else 0
    return whole[:start], whole[start + len(bare) :]


def _make_texts(cut: str, added: Sequence[str]) -> Iterator[str]:
    alike = (cut[:-1], cut[1:], cut.upper(), cut.replace(cut[1:2], cut[1:2] + " ", 1), cut[:1] + cut, cut + cut[-1:])
    fragments = (*FRAGMENTS, *alike, *added[:16], *added[-16:])
    for fragment in fragments:
        yield fragment
        yield f"{cut}{fragment}{cut}{fragment}"
        yield f"word{fragment}{cut} {fragment}word {cut}"
    for number in range(RANDOM_TEXTS):
        chance = blake2b(number.to_bytes(4, "big"), digest_size=2 * LONGEST + 2).digest()
        length = 2 * (chance[0] % LONGEST + 1)
        yield "".join(
            cut if chance[i] < 80 else fragments[chance[i + 1] % len(fragments)] for i in range(2, length + 2, 2)
        )
