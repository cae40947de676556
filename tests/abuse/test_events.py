"""An engine can harm its own traffic only: whatever it publishes, requests to another engine do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.abuse.conftest import Measured
from tests.abuse.hostile_engine import (
    EVIL,
    HostileEngine,
    ask,
    failures,
    hostile_engine,
    http,
    until,
)
from tests.abuse.hostile_publisher import (
    LONG,
    MORE,
    HostilePublisher,
    Peer,
    array_head,
    batch,
    frame,
    hostile_publisher,
    message,
    pack,
    payload_of,
    replayed,
    sources_of,
    stored,
)
from tests.abuse.watch import loop_probe, open_files, peak_bytes
from tests.e2e.conftest import MODEL, Json, RouterProcess
from tests.fakes.engines import engine

MB = 1024 * 1024
GAP_MS = 100.0  # the loop may stand still for 50 ms; the rest is the machine's
QUICK = {"fleet": {"health": {"interval_s": 0.1, "timeout_s": 2.0, "failures": 2}, "metrics": {"idle_interval_s": 0.2}}}


class Attack:
    """A hostile engine whose stream is live, beside a healthy one. It publishes `pieces` once `begin` is set."""

    def __init__(self) -> None:
        self.begin = asyncio.Event()
        self.done = asyncio.Event()
        self.pieces: list[bytes] = []
        self.router: RouterProcess
        self.engine: HostileEngine

    async def live(self, peer: Peer) -> None:
        await self.begin.wait()
        for piece in self.pieces:
            await peer.send(piece)
        self.done.set()

    async def state(self) -> Json:
        """What the admin API says of it."""
        return (await self.router.instances())["evil"]

    async def stream(self) -> Json | None:
        stream: Json | None = (await self.state())["targets"][0]["stream"]
        return stream

    async def has(self, **fields: Any) -> bool:
        stream = await self.stream()
        return stream is not None and {name: stream[name] for name in fields} == fields

    async def has_blocks(self, count: int) -> bool:
        return await self.has(blocks={"gpu": count, "cpu": 0, "disk": 0})

    async def rejoin(self) -> None:
        """Let it go down, and come back."""
        self.begin.clear()
        self.engine.answers["/health"] = http(b"", "503 Service Unavailable")
        await until(lambda: self.is_in("down"))
        self.engine.answers["/health"] = http(b"")
        await until(lambda: self.is_in("ready"))
        await until(lambda: self.has(state="live"))

    async def is_in(self, state: str) -> bool:
        return bool((await self.state())["state"] == state)

    async def distrusted(self) -> str | None:
        reason: str | None = (await self.state())["distrusted"]
        return reason


@asynccontextmanager
async def attack(router_process, fleet_config, **sections: Json) -> AsyncIterator[Attack]:
    running = Attack()
    async with (
        hostile_publisher(running.live) as publisher,
        hostile_engine(kv_event_sources=sources_of(publisher)) as evil,
        engine() as good,
        router_process(fleet_config([good, {"url": evil.url, "name": "evil"}], **QUICK, **sections)) as r,
    ):
        running.router, running.engine = r, evil
        await until(lambda: running.has(state="live"))
        assert await ask(r, EVIL) == 200
        yield running


async def run(running: Attack, *pieces: bytes) -> int:
    """Publish these. Return how many chats with the healthy engine fail meanwhile and after it."""
    running.pieces = list(pieces)
    running.begin.set()
    failed = await failures(running.router, MODEL, 20)
    with suppress(TimeoutError):  # it may have been cut off
        async with asyncio.timeout(1.0):
            await running.done.wait()
    return failed + await failures(running.router, MODEL, 20)


async def test_what_is_beyond_the_bounds_costs_the_engine_its_trust(
    router_process, fleet_config, measured: Measured
) -> None:
    """Each on a connection of its own; between two of them the engine joins again, and is trusted again."""
    size = 2 * MB
    attacks = {
        "200 MB of one message": [frame(bytes(MB), MORE)] * 200,
        "a frame of 2^63 bytes": [bytes((LONG,)) + (2**63 - 1).to_bytes(8, "big")],
        "a message of 9 frames": [frame(b"", MORE) * 9],
        "an event of 2 million lists": [message(0, payload_of(array_head(size) + b"\x90" * size, 1))],
        "a million events": [message(0, payload_of(b"\x90" * 1_000_000, 1_000_000))],
        "four block sizes too many": [batch(seq, [stored(seq, 1, seq + 1)]) for seq in range(8)],
    }
    async with attack(router_process, fleet_config) as running:
        router = running.router
        before = peak_bytes(router.pid)
        for number, (name, pieces) in enumerate(attacks.items()):
            measured(f"{name}: chats to a healthy engine that fail", await run(running, *pieces), 0, "of 40")
            await until(running.distrusted)
            assert await running.stream() is None
            assert await ask(router, EVIL) == 200
            assert router.log.count(b"served without its KV events") == number + 1
            await running.rejoin()
        assert await router.metric("warmroute_engine_limit_total", engine="evil", limit="message") >= 5
        assert await router.metric("warmroute_engine_limit_total", engine="evil", limit="block_size") == 1
        assert await router.metric("warmroute_engine_distrusted", engine="evil") == 0
        measured("messages beyond the bounds: memory", (peak_bytes(router.pid) - before) / MB, 40, "MB")


async def test_what_is_odd_is_skipped_and_counted(router_process, fleet_config, measured: Measured) -> None:
    groups = batch(0, [stored(n, 1, 1, group=n) for n in range(5000)])
    ping = b"\x04\x07\x04PING\0\0"
    async with attack(router_process, fleet_config) as running:
        failed = await run(running, groups, ping * 10_000, batch(1, [stored(77, 1, 1)]))
        measured("5,000 groups in a message: chats to a healthy engine that fail", failed, 0, "of 40")
        await until(lambda: running.has_blocks(65))  # one of each group, and the one after the pings
        assert await running.router.metric("warmroute_stream_skipped_events_total", reason="broken") == 5000 - 64
        assert await running.distrusted() is None


async def test_a_replay_that_the_engine_cuts_short_is_continued(router_process, fleet_config) -> None:
    """What a slow reader misses is asked for again: nothing is lost, and the stream is trusted in the end."""
    payloads = [pack([100.0 + seq, [stored(seq, 1, parent=seq - 1 if seq else None)], 0]) for seq in range(3000)]
    asked = []

    async def live(peer: Peer) -> None:
        await asyncio.sleep(3600)

    async def replay(peer: Peer, start: int) -> None:
        """As vLLM's socket: of a thousand messages some at the end are dropped, and with them the end marker."""
        asked.append(start)
        for seq in range(start, len(payloads)):
            if seq - start < 1000 or seq % 100 == 0:
                await replayed(peer, seq, payloads[seq])
        if len(payloads) - start <= 1000:
            await peer.send(frame(b"", MORE) + frame(b"", MORE) + frame(b"\xff" * 8, MORE) + frame(b""))

    async with (
        hostile_publisher(live, replay) as publisher,
        hostile_engine(kv_event_sources=sources_of(publisher)) as evil,
        router_process(fleet_config([{"url": evil.url, "name": "evil"}])) as r,
    ):
        running = Attack()
        running.router = r
        await until(lambda: running.has(state="live"))
        await until(lambda: running.has_blocks(3000))
        assert await running.has(joined_late=False)
        assert asked == [0, 1000, 2000]


async def test_a_publisher_that_is_none(router_process, fleet_config) -> None:
    """A peer that speaks something else, or nothing, costs a connection attempt now and then."""
    said: list[bytes] = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" + bytes(63), bytes(100_000), b""]
    connections = 0

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        with suppress(ConnectionError):
            writer.write(said[connections % len(said)])
            connections += 1
            await reader.read()
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        publisher = HostilePublisher(babble, None)  # type: ignore[arg-type]
        publisher.port = publisher.replay_port = server.sockets[0].getsockname()[1]
        async with (
            hostile_engine(kv_event_sources=sources_of(publisher)) as evil,
            router_process(fleet_config([{"url": evil.url, "name": "evil"}])) as r,
        ):
            before = open_files(r.pid)
            async with asyncio.timeout(10.0):
                while connections < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await ask(r, EVIL) == 200
            assert open_files(r.pid) <= before + 2


async def measure(running: Attack, name: str, measured: Measured, *pieces: bytes, memory_mb: float = 30.0) -> None:
    """What everybody else notices."""
    router = running.router
    before = peak_bytes(router.pid)
    async with loop_probe(router.url) as probe:
        failed = await run(running, *pieces)
        longest_ms = await probe.longest_ms()
    measured(f"{name}: memory", (peak_bytes(router.pid) - before) / MB, memory_mb, "MB")
    measured(f"{name}: chats to a healthy engine that fail", failed, 0, "of 40")
    measured(f"{name}: longest gap", longest_ms, GAP_MS, "ms")
    assert await ask(router, EVIL) == 200


@pytest.mark.abuse
async def test_a_message_of_many_groups(router_process, fleet_config, measured: Measured) -> None:
    events = [stored(n, 1, 1, group=n) for n in range(130_000)]
    async with attack(router_process, fleet_config) as running:
        await measure(running, "130,000 groups in a message", measured, batch(0, events), memory_mb=60)
        await until(lambda: running.has_blocks(64))


@pytest.mark.abuse
async def test_an_event_of_nothing_but_lists(router_process, fleet_config, measured: Measured) -> None:
    size = 9 * MB
    async with attack(router_process, fleet_config) as running:
        payload = payload_of(array_head(size) + b"\x90" * size, 1)
        await measure(running, "an event of 9 million lists", measured, message(0, payload), memory_mb=50)
        await until(running.distrusted)


@pytest.mark.abuse
async def test_pings_without_end(router_process, fleet_config, measured: Measured) -> None:
    async with attack(router_process, fleet_config) as running:
        await measure(running, "a million pings", measured, b"\x04\x07\x04PING\0\0" * 1_000_000)


@pytest.mark.abuse
async def test_large_messages_without_end(router_process, fleet_config, measured: Measured) -> None:
    """Valid ones, as fast as they are taken in."""
    events = [stored(n * 100, 100, 16, parent=n * 100 - 1 if n else None) for n in range(400)]
    data = pack([1.5, [["AllBlocksCleared"], *events], 0])
    async with attack(router_process, fleet_config) as running:
        pieces = [message(seq, data) for seq in range(100)]
        await measure(running, f"messages of {len(data) / 1e6:.1f} MB without end", measured, *pieces, memory_mb=150)
        assert await running.distrusted() is None


@pytest.mark.abuse
async def test_a_prompt_of_a_million_tokens(router_process, fleet_config, measured: Measured) -> None:
    """Legitimate: a prompt that was loaded from the pool at once, into a full cache. It is taken in, in pieces."""
    removals = [{"type": "BlockRemoved", "block_hashes": [2**63 + n], "medium": "GPU"} for n in range(62_500)]
    data = batch(0, [*removals, stored(0, 62_500)])
    async with attack(router_process, fleet_config) as running:
        await measure(running, f"a message of {len(data) / 1e6:.1f} MB", measured, data, memory_mb=120)
        await until(lambda: running.has_blocks(62_500))
        assert await running.distrusted() is None


@pytest.mark.abuse
async def test_more_blocks_than_any_cache_has(router_process, fleet_config, measured: Measured) -> None:
    """Stored and never removed, until the bound of the instance; then what they took is given back."""
    async with attack(router_process, fleet_config, index={"instance_bytes": 128 * MB}) as running:
        pieces = []
        for seq in range(60):
            first = seq * 65_536
            pieces.append(batch(seq, [stored(first, 65_536, 4, parent=first - 1 if first else None)]))
        await measure(running, "4 million blocks", measured, *pieces, memory_mb=800)
        await until(running.distrusted, 60.0)
        assert "index.instance_bytes" in str(await running.distrusted())
