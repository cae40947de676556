"""How an input is cut into the pieces in which a socket would deliver it: its first byte decides."""

from __future__ import annotations

import random

WHOLE, BYTES = 0, 1


def split(data: bytes) -> list[bytes]:
    """Return the input without its first byte: in one piece (0), byte by byte (1), or in random pieces."""
    if not data:
        return []
    how, rest = data[0], data[1:]
    if how == WHOLE:
        return [rest] if rest else []
    if how == BYTES:
        return [rest[i : i + 1] for i in range(len(rest))]
    draw, found, at = random.Random(how), [], 0
    while at < len(rest):
        size = min(draw.choice((1, 2, 7, 64, 1000, 65536)), len(rest) - at)
        found.append(rest[at : at + size])
        at += size
    return found
