"""Segments and names are those of the whole text, whichever text was remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.memory_budget import MemoryBudget
from router.prompt.known_prompt import NamedText
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.named_text import continue_text, drop_segments, encode_rest, name_rest
from router.prompt.tokenization.prefix_cache import PrefixCache
from router.prompt.tokenization.segments import Segmenter
from tests.suites.properties import examples

CUT = "<|>"
pieces = st.sampled_from(["", CUT, "<|", ">", "a", "word ", "é🎉", "<", "|>", f"{CUT}user\n", "東京"])
chunks = st.lists(pieces | st.lists(pieces, max_size=4).map("".join), max_size=12)
NAMES = PrefixCache(MemoryBudget(0), b"secret")


def plain(text: list[str], root: bytes, segmenter: Segmenter) -> tuple[list[bytes], list[bytes]]:
    segments = segmenter.split("".join(text).encode())
    return segments, NAMES.name_segments(root, segments)


@given(
    texts=st.lists(st.tuples(st.integers(0, 12), chunks), min_size=1, max_size=5),
    roots=st.lists(st.sampled_from([b"a\0", b"b\0"]), min_size=5, max_size=5),
    kept=st.lists(st.integers(0, 20), min_size=5, max_size=5),
    min_bytes=st.integers(1, 12),
)
@examples(300)
def test_any_text_behind_any_other(
    texts: list[tuple[int, list[str]]], roots: list[bytes], kept: list[int], min_bytes: int
) -> None:
    segmenter = Segmenter(CUT.encode(), [], [], min_bytes)
    known: NamedText | None = None
    before: list[str] = []
    for (common, new), root, keep in zip(texts, roots, kept, strict=False):
        before = [*before[:common], *new]
        segments, names = plain(before, root, segmenter)
        text = continue_text(list(before), root, known, len(CUT))
        drop_segments(text, keep)
        have = len(text.names)
        assert name_rest(text, segmenter.split(encode_rest(text)), NAMES.begin_hash) == names
        assert text.names == names[:-1]
        assert segmenter.split(encode_rest(text)) == segments[len(text.names) :]
        assert have <= len(text.names)
        assert text.chunks == before
        assert text.chunk_ends[-1:] == ([len("".join(before).encode())] if before else [])
        known = text


def test_a_next_turn_has_the_segments_of_the_one_before_it() -> None:
    first = [f"{CUT}{number}" for number in range(9)]
    text = continue_text(first, b"", None, len(CUT))
    name_rest(text, [one.encode() for one in first], NAMES.begin_hash)
    assert len(text.names) == 8
    longer = continue_text([*first[:8], "<|>8 and more", CUT], b"", text, len(CUT))
    assert longer.names == text.names
    assert longer.chunks[0] is text.chunks[0]
    other = continue_text([*first, CUT], b"other", text, len(CUT))
    assert other.names == [], "names of another root"
    assert len(other.chunk_ends) == 10


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UnrenderableChat):
        continue_text(["a", "\ud83d"], b"", None, 3)
