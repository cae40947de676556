"""Segments and names a rendered prompt, reusing the remembered prompt that it continues as far as possible.

Templates may look back and ahead, so every turn is rendered as a whole (0.6 ms for 80,000 tokens); but the output
is mostly the same as the last time, in the same chunks. Comparing chunks costs a tenth of encoding, segmenting and
hashing their text, so this work is done again only for the text after the last segment within equal chunks. A
segment's end depends on nothing after the delimiter that follows it (`segments.py`), and a name on nothing after
its segment's end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from hashlib import blake2b

from router.prompt.known_prompt import NamedText
from router.prompt.tokenization.chat_template import UnrenderableChat


def continue_text(chunks: list[str], root: bytes, known: NamedText | None, delimiter_bytes: int) -> NamedText:
    """Return the text of `chunks`, including the segments of `known` with which it begins. Raises UnrenderableChat
    for half of a surrogate pair.
    """
    text = NamedText(root)
    text.chunks = chunks
    end = same = 0
    if known is not None:
        same = _count_same(chunks, known.chunks)
        chunks[:same] = known.chunks[:same]  # one copy in memory
        text.chunk_ends = known.chunk_ends[:same]
        end = text.chunk_ends[-1] if same else 0
        if known.root == root:
            reached = end
            if same < min(len(chunks), len(known.chunks)) and chunks[same].startswith(known.chunks[same]):
                reached = known.chunk_ends[same]
            count = bisect_right(known.ends, reached - delimiter_bytes)
            text.ends, text.names, text.hashes = known.ends[:count], known.names[:count], known.hashes[:count]
    try:
        for chunk in chunks[same:]:
            end += len(chunk) if chunk.isascii() else len(chunk.encode())
            text.chunk_ends.append(end)
    except UnicodeEncodeError:
        raise UnrenderableChat("half of a surrogate pair") from None  # JSON can carry one, UTF-8 cannot
    return text


def drop_segments(text: NamedText, count: int) -> None:
    """Keep only the first `count` segments."""
    del text.ends[count:], text.names[count:], text.hashes[count:]


def encode_rest(text: NamedText) -> bytes:
    """Return the text after the last segment, in UTF-8."""
    begin = text.ends[-1] if text.ends else 0
    first = bisect_right(text.chunk_ends, begin)
    before = text.chunk_ends[first - 1] if first else 0
    rest = b"".join([chunk.encode() for chunk in text.chunks[first:]])
    return rest[begin - before :] if begin > before else rest


def name_rest(text: NamedText, segments: list[bytes], begin_hash: Callable[[bytes], blake2b]) -> list[bytes]:
    """Return the names of all segments of the text: those that it already has, then those of `segments`, which
    follow. All but the last of `segments` are added to the text.
    """
    names = list(text.names)
    hashed = text.hashes[-1].copy() if text.hashes else begin_hash(text.root)
    end = text.ends[-1] if text.ends else 0
    for segment in segments[:-1]:
        hashed.update(segment)
        end += len(segment)
        text.ends.append(end)
        text.names.append(hashed.digest())
        text.hashes.append(hashed.copy())
    names += text.names[len(names) :]
    hashed.update(segments[-1])
    names.append(hashed.digest())
    return names


def _count_same(chunks: list[str], known: list[str]) -> int:
    """Return the number of equal chunks at the beginning."""
    count = 0
    for chunk, other in zip(chunks, known, strict=False):
        if chunk != other:
            break
        count += 1
    return count
