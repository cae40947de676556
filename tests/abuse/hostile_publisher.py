"""A publisher of KV events that speaks ZMTP by hand, so that it can do what libzmq would not let it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.abuse.hostile_engine import http

MORE, LONG = 1, 2
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
pack = msgspec.msgpack.encode

Script = Callable[["Peer"], Awaitable[None]]


def frame(content: bytes, flags: int = 0) -> bytes:
    return bytes((flags | LONG,)) + len(content).to_bytes(8, "big") + content


def message(seq: int, payload: bytes) -> bytes:
    """A live message."""
    return frame(b"", MORE) + frame(seq.to_bytes(8, "big"), MORE) + frame(payload)


def batch(seq: int, events: list[Any], wall_s: float = 100.0) -> bytes:
    return message(seq, pack([wall_s + seq, events, 0]))


def array_head(length: int) -> bytes:
    return b"\xdd" + length.to_bytes(4, "big")


def payload_of(packed_events: bytes, count: int) -> bytes:
    """A payload of events that are packed already."""
    return b"\x93" + pack(1.5) + array_head(count) + packed_events + b"\x00"


def stored(first: int, blocks: int, block_tokens: int = 16, *, parent: int | None = None, group: int = 0) -> list[Any]:
    """An event of blocks with hashes from `first` on, in the array form."""
    tokens = [(first * 31 + n) % 50_000 for n in range(blocks * block_tokens)]
    hashes = [first + n for n in range(blocks)]
    return ["BlockStored", hashes, parent, tokens, block_tokens, None, "GPU", None, None, group, "full_attention"]


class Peer:
    """One connection of the router, after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self) -> bytes:
        """The content of the next frame; commands are left out."""
        while True:
            flags, size = await self.reader.readexactly(2)
            if flags & LONG:
                size = int.from_bytes(bytes((size,)) + await self.reader.readexactly(7), "big")
            content = await self.reader.readexactly(size)
            if not flags & 4:
                return content


class HostilePublisher:
    """One rank: `live` runs for every SUB, `replay` for every DEALER, which gets the first sequence number."""

    def __init__(self, live: Script, replay: Callable[[Peer, int], Awaitable[None]] | None) -> None:
        self._live = live
        self._replay = replay
        self.port = self.replay_port = 0
        self.connections = 0
        self.replays = 0

    async def serve_live(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self._serve(reader, writer, b"PUB", self._live)

    async def serve_replay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.replays += 1

        async def answer(peer: Peer) -> None:
            assert await peer.receive() == b""
            start = int.from_bytes(await peer.receive(), "big")
            if self._replay is not None:
                await self._replay(peer, start)
            else:
                await end_replay(peer)
            await reader.read()

        await self._serve(reader, writer, b"ROUTER", answer)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: bytes, script: Script
    ) -> None:
        try:
            ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
            writer.write(GREETING + bytes((4, len(ready))) + ready)
            await reader.readexactly(64)
            _, size = await reader.readexactly(2)
            await reader.readexactly(size)
            await script(Peer(reader, writer))
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def source(self) -> dict[str, Any]:
        ends = {"endpoint": f"tcp://127.0.0.1:{self.port}", "replay_endpoint": f"tcp://127.0.0.1:{self.replay_port}"}
        return {"enable_kv_cache_events": True, "publisher": "zmq", **ends}


async def end_replay(peer: Peer) -> None:
    await peer.send(frame(b"", MORE) + frame(b"", MORE) + frame(b"\xff" * 8, MORE) + frame(b""))


async def replayed(peer: Peer, seq: int, payload: bytes) -> None:
    await peer.send(frame(b"", MORE) + message(seq, payload))


@asynccontextmanager
async def hostile_publisher(
    live: Script, replay: Callable[[Peer, int], Awaitable[None]] | None = None
) -> AsyncIterator[HostilePublisher]:
    """By default a replay has nothing."""
    running = HostilePublisher(live, replay)
    first = await asyncio.start_server(running.serve_live, "127.0.0.1", 0)
    second = await asyncio.start_server(running.serve_replay, "127.0.0.1", 0)
    running.port, running.replay_port = (s.sockets[0].getsockname()[1] for s in (first, second))
    async with first, second:
        yield running


def sources_of(*publishers: HostilePublisher) -> bytes:
    """The answer of `GET /kv_event_sources`."""
    return http({str(rank): publisher.source for rank, publisher in enumerate(publishers)})
