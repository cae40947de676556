"""Reads the messages of a chat whose earlier turns were read before: only those after the bytes that are the same.

The body was parsed before (`fields.py`), so the array is valid JSON. A message is an object, which ends with its
brace whatever follows, so messages within equal bytes have equal values; and each is normalised by itself. Messages
that the plain way would refuse, and all unusual ones (media, elements that are not messages), are left to the plain
way.
"""

from __future__ import annotations

from bisect import bisect_right
from sys import getsizeof
from typing import Any

import msgspec
from msgspec import Raw

from router.errors import BadRequest
from router.prompt.api.field_values import value
from router.prompt.api.fields import Part
from router.prompt.api.messages import has_media, normalise
from router.prompt.body_rewrite import UNREADABLE
from router.prompt.common_prefix import common_length
from router.prompt.known_prompt import FindKnown, ReadMessages

LEAST_BYTES = 16 * 1024  # shorter arrays are read in 0.1 ms

_ITEMS: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_BETWEEN = b" \t\n\r,"
_BRACE = ord("{")


def read_messages(part: Part, find: FindKnown) -> ReadMessages | None:
    """Return the messages as `normalise` does; None if they must be read the plain way."""
    if not isinstance(part, Raw) or len(memoryview(part)) < LEAST_BYTES:
        return None
    read = find(bytes(part))
    known = read.known
    if known is not None:
        whole = read.raw.startswith(known.raw)  # true for most next turns
        count = bisect_right(known.ends, len(known.raw) if whole else common_length(known.raw, read.raw))
        read.ends, read.messages = known.ends[:count], known.messages[:count]
        read.sizes = known.sizes[:count]
        read.known_messages = count
    try:
        return read if _read_rest(read) else None
    except (BadRequest, *UNREADABLE):
        return None


def _read_rest(read: ReadMessages) -> bool:
    """Add the messages after the known ones. Return False if any of them is not a plain message of text."""
    begin = read.ends[-1] if read.ends else 1
    rest = read.raw[begin:].lstrip(_BETWEEN)
    begin = len(read.raw) - len(rest) - 1
    array = b"[" + rest
    items: list[Any] = []
    at = 1
    for item in _ITEMS.decode(array):
        while array[at] in _BETWEEN:
            at += 1
        if array[at] != _BRACE:
            return False  # before hundreds of thousands of such elements are read, and read again the plain way
        at += len(memoryview(item))
        items.append(value(item, "messages"))
        read.ends.append(begin + at)
    messages = normalise(items)
    if messages is None or has_media(messages) or not read.ends:
        return False
    read.messages += messages
    size = read.sizes[-1] if read.sizes else 0
    for message in messages:
        size += _measure(message)
        read.sizes.append(size)
    return True


def _measure(thing: Any) -> int:
    """Return the memory that a value takes, in bytes."""
    size = getsizeof(thing)
    if isinstance(thing, dict):
        for key, member in thing.items():
            size += getsizeof(key) + _measure(member)
    elif isinstance(thing, list):
        for member in thing:
            size += _measure(member)
    return size
