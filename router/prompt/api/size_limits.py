"""Bounds on a body's content, which keep one request from blocking the event loop or filling the memory.

A body's length alone shows little. 30 MB of an image are one string, which a parser copies in milliseconds; 30 MB
of `{"a":1,"b":1,...` are millions of objects in Python, which take seconds, and twenty times their length in
memory. So the elements of a large body are counted before it is parsed (`check_elements`), and text beyond what its
model can take is never converted (`exceeds`). Both scan bytes and build nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from router.errors import BadRequest
from router.prompt.body_rewrite import UNREADABLE

LARGE_BODY_BYTES = 512 * 1024  # parsing a shorter body takes some milliseconds, whatever it contains
SMALL_BODY_BYTES = 64 * 1024  # converting and rendering the messages of a shorter body takes 20 ms at most
MANY_MARKS = 16 * 1024  # the same for a longer body with no more marks; agents' chats of 300 KB have thousands
UNMARKED = bytes(sorted({*range(256)} - {*b'"[{'}))  # all but the marks: a string has two, an array and an object one
SLICE_BYTES = 64 * 1024  # a slice takes less than a millisecond, and other threads run between two of them
MAX_OBJECTS = 100_000  # strings, arrays, objects, and numbers outside a list of token ids; they take 30 ms to read
MAX_SMALL = 1_500_000  # token ids; escapes in strings, as of a long text whose client escapes everything but ASCII
LONGEST_SALT = 64 * 1024  # bytes; to read and hash one of 32 MB stops the event loop for 75 ms
LONGEST_ESCAPE = 6  # bytes, for at least one byte of UTF-8
HAVE_MEDIA = ("messages", "input")
DEEPEST_MEDIA = 3
LARGE_BYTES = 1024  # smaller images (by their address) count as text

_ITEMS: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds"}
    | {"video_url", "video_embeds", "file", "input_file", "document"}
)


class _Item(msgspec.Struct):
    """A message or one of its parts."""

    type: str | None = None
    content: Raw = Raw(b"")


_ITEM = msgspec.json.Decoder(_Item)


def reads_slowly(body: bytes) -> bool:
    """Return whether converting and rendering the prompt may take more than 30 ms. Each message, part and tool call
    takes time; text and images are fast.
    """
    size = len(body)
    # One pass takes 210 us for an agent's 290 KB, three counts of a mark each take 520.
    return size > LARGE_BODY_BYTES or (size > SMALL_BODY_BYTES and len(body.translate(None, UNMARKED)) > MANY_MARKS)


def check_elements(raw: bytes, *, has_ids: bool) -> None:
    """Raise BadRequest for a body with more elements than `MAX_OBJECTS` or `MAX_SMALL`. `has_ids`: numbers may be
    token ids.

    32 MB take about 50 ms.
    """
    quotes = brackets = commas = escapes = 0
    max_commas = MAX_SMALL if has_ids else MAX_OBJECTS
    inside = escaped = False  # at the beginning of a slice: inside a string, after a backslash
    for start in range(0, len(raw), SLICE_BYTES):
        piece = raw[start + escaped : start + SLICE_BYTES]
        escaped = False
        if b"\\" in piece:
            escapes += piece.count(b"\\")
            escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        runs = piece.split(b'"')
        outside = b"".join(runs[inside::2])
        inside ^= len(runs) % 2 == 0
        quotes += len(runs) - 1
        brackets += outside.count(b"[") + outside.count(b"{")
        commas += outside.count(b",")
        if quotes // 2 + brackets > MAX_OBJECTS or commas > max_commas or escapes > MAX_SMALL:
            raise BadRequest("the body holds too many values or escaped characters", code="too_many_values")


def exceeds(fields: msgspec.Struct, text_limit_bytes: int) -> bool:
    """Return whether the large fields of a body are certain to have more text than `text_limit_bytes`, in UTF-8.
    Images and other media do not count: engines do not tokenise them.
    """
    parts = {name: getattr(fields, name) for name in fields.__struct_fields__}
    excess = sum(_length(part) for part in parts.values() if isinstance(part, Raw | str)) - text_limit_bytes
    for name, part in parts.items():
        if excess > 0 and isinstance(part, Raw):
            excess -= (LONGEST_ESCAPE - 1) * bytes(part).count(b"\\")
            excess -= _media_bytes(part) if name in HAVE_MEDIA else 0
    return excess > 0


def _media_bytes(items: Raw, depth: int = 1) -> int:
    """Return the length of the media in an array of messages, in their parts, and in the parts of a tool's
    result.
    """
    if depth > DEEPEST_MEDIA or _length(items) < LARGE_BYTES or memoryview(items)[0] != ord("["):
        return 0
    total = 0
    try:
        for item in _ITEMS.decode(items):
            if _length(item) >= LARGE_BYTES and memoryview(item)[0] == ord("{"):
                part = _ITEM.decode(item)
                total += _length(item) if part.type in _MEDIA else _media_bytes(part.content, depth + 1)
    except UNREADABLE:
        pass  # left to the engine to refuse
    return total


def _length(part: Raw | str) -> int:
    return len(memoryview(part)) if isinstance(part, Raw) else len(part)
