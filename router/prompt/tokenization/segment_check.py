"""Verifies that a tokenizer gives a prompt's segments the ids that they have in the whole prompt.

The texts are those at which segmenting could go wrong: characters beside a delimiter, at the beginning and at the end
(spaces, line ends, combining marks, joiners), characters that a normaliser changes, text that looks like a special
token or is another one, two delimiters in a row. After the fixed texts come random sequences of the same fragments, the
same at every start. After one difference the tokenizer's prompts are never segmented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

from router.prompt.tokenization.segments import Segmenter

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


def find_difference(encode: Encode, segmenter: Segmenter, added: Sequence[str]) -> str | None:
    """Return a text whose segments have other ids than the whole, else `None`; texts use `added`, all added tokens."""
    fine = segmenter._replace(min_bytes=1)
    for text in _texts(segmenter.delimiter.decode(), added):
        bare: list[int] = []
        for segment in fine.split(text.encode()):
            bare += encode(segment.decode(), False)
        if encode(text, False) != bare or encode(text, True) != segmenter.head + bare + segmenter.tail:
            return text
    return None


def find_special_ids(encode: Encode) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer puts before and behind a whole prompt, found with one example."""
    bare, whole = encode("a b", False), encode("a b", True)
    places = [i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare]
    start = places[0] if places else 0
    return whole[:start], whole[start + len(bare) :]


def _texts(cut: str, added: Sequence[str]) -> Iterator[str]:
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
