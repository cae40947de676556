"""An engine can harm its own traffic only: whatever it publishes, requests to another engine do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.abuse.conftest import Measured
from tests.abuse.hostile_engine import EVIL, ask, failures, hostile_engine, peak_bytes
from tests.abuse.hostile_publisher import (
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
    sources_of,
    stored,
)
from tests.abuse.pulse import pulse
from tests.e2e.conftest import MODEL, RouterProcess
from tests.fakes.engines import engine

MB = 1024 * 1024
GAP_MS = 250  # on a busy machine; `make abuse` prints what it was


class Attack:
    """A publisher whose message waits until the test says so."""

    def __init__(self) -> None:
        self.begin = asyncio.Event()
        self.done = asyncio.Event()
        self.pieces: list[bytes] = []
        self.router: RouterProcess
        self.publisher: HostilePublisher

    async def live(self, peer: Peer) -> None:
        await self.begin.wait()
        for piece in self.pieces:
            await peer.send(piece)
        self.done.set()


@asynccontextmanager
async def attack(router_process, fleet_config, **sections) -> AsyncIterator[Attack]:
    """A router with a healthy engine, and a hostile one whose stream is live."""
    running = Attack()
    async with (
        hostile_publisher(running.live) as publisher,
        hostile_engine(kv_event_sources=sources_of(publisher)) as evil,
        engine() as good,
        router_process(fleet_config([good, {"url": evil.url, "name": "evil"}], **sections)) as r,
    ):
        running.router, running.publisher = r, publisher
        while (await stream_of(r))["state"] != "live":
            await asyncio.sleep(0.01)
        await ask(r, EVIL)
        yield running


async def stream_of(router: RouterProcess) -> dict:
    return (await router.instances())["evil"]["targets"][0]["stream"] or {"state": None}


async def measure(running: Attack, name: str, measured: Measured, *pieces: bytes, memory_mb: float = 30.0) -> None:
    router = running.router
    before = peak_bytes(router)
    running.pieces = list(pieces)
    async with pulse(router.url) as beside:
        running.begin.set()
        failed = await failures(router, MODEL)
        try:
            async with asyncio.timeout(5.0):
                await running.done.wait()
        except TimeoutError:
            pass
        failed += await failures(router, MODEL)
    measured(f"{name}: memory", (peak_bytes(router) - before) / MB, memory_mb, "MB")
    measured(f"{name}: chats to a healthy engine that fail", failed, 0, "of 120")
    measured(f"{name}: longest gap", beside.longest_ms, GAP_MS, "ms")


async def test_a_message_of_many_groups(router_process, fleet_config, measured: Measured) -> None:
    events = [stored(n, 1, 1, group=n) for n in range(300_000)]
    async with attack(router_process, fleet_config) as running:
        await measure(running, "300,000 groups in a message", measured, batch(0, events), memory_mb=60)


async def test_a_message_of_nothing_but_brackets(router_process, fleet_config, measured: Measured) -> None:
    size = 7 * MB
    async with attack(router_process, fleet_config) as running:
        payload = payload_of(array_head(size) + b"\x90" * size, 1)
        await measure(running, "an event of 7 million lists", measured, message(0, payload))


async def test_a_message_without_end(router_process, fleet_config, measured: Measured) -> None:
    async with attack(router_process, fleet_config) as running:
        pieces = [frame(bytes(MB), MORE)] * 400
        await measure(running, "400 MB of one message", measured, *pieces)


async def test_a_prompt_of_a_million_tokens(router_process, fleet_config, measured: Measured) -> None:
    """Legitimate: a prompt loaded from the pool as a whole, into a full cache. It is taken in, in pieces."""
    removals = [{"type": "BlockRemoved", "block_hashes": [2**63 + n], "medium": "GPU"} for n in range(55_000)]
    prompt = stored(0, 60_000)
    async with attack(router_process, fleet_config) as running:
        data = batch(0, [*removals, prompt])
        print(len(data))
        await measure(running, "960,000 tokens in a message", measured, data, memory_mb=120)
        assert (await stream_of(running.router))["blocks"]["gpu"] == 60_000


async def test_large_messages_without_end(router_process, fleet_config, measured: Measured) -> None:
    """As fast as they are read: they may cost half of the loop's time, and no request's."""
    events = [stored(n * 100, 100, 16, parent=n * 100 - 1 if n else None) for n in range(400)]
    cleared = [["AllBlocksCleared"], *events]
    data = pack([1.5, cleared, 0])
    async with attack(router_process, fleet_config) as running:
        pieces = [message(seq, data) for seq in range(200)]
        await measure(running, f"messages of {len(data) / 1e6:.1f} MB without end", measured, *pieces, memory_mb=150)


@pytest.mark.abuse
async def test_more_blocks_than_any_cache_has(router_process, fleet_config, measured: Measured) -> None:
    """Stored and never removed, until the bound of the instance."""
    async with attack(router_process, fleet_config) as running:
        pieces = []
        for seq in range(60):
            first = seq * 65_536
            pieces.append(batch(seq, [stored(first, 65_536, 4, parent=first - 1 if first else None)]))
        await measure(running, "4 million blocks", measured, *pieces, memory_mb=700)
        router = running.router
        while "distrusted" not in str(await router.instances()):
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        print("rss", router.rss_bytes / 1e6)
