"""Messages on a pipe: four bytes of length, then that many bytes."""

from __future__ import annotations

import asyncio


def encode_frame(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next message; None: the other side has closed, or broke off within one."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
