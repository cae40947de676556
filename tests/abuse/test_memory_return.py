"""A spike ends, and so does its memory: a minute later the router is nearly as small as before."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from router.config import schema
from router.proxy.client_connection import ClientConnection
from router.proxy.client_exchange import ClientExchange
from router.proxy.engine_connection import EngineConnection
from tests.abuse.bodies import CHAT, COMPLETIONS, SHAPES, Body, text_chat
from tests.abuse.conftest import Measured
from tests.abuse.engines import indifferent_engine
from tests.abuse.raw import cut_off, dial, dialled, post
from tests.abuse.watch import MB
from tests.e2e.conftest import MODEL, RouterProcess
from tests.fakes.engines import engine, eventually

MINUTE_S = 60.0
GROWTH = 0.3  # at most, of what it was
GROWTH_AFTER_STREAMS = 0.5  # records, which stay, lie between what streams used: 2,000 at once leave 43 % of holes
STREAM = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "stream": True}
).encode()


def letters(seed: int, size: int) -> Body:
    """A completion of one word without an end: nothing of it is found in a cache, and it is tokenised as one piece."""
    alphabet = bytes(97 + (i * i + seed * i) % 23 for i in range(997))
    return Body(COMPLETIONS, b'{"model":"%b","prompt":"%b"}' % (MODEL.encode(), (alphabet * (size // 997 + 1))[:size]))


async def send_all(r: RouterProcess, bodies: list[Body]) -> None:
    """Send all at once; each is answered."""
    async with r.client(timeout=120.0) as crowd:
        answers = await asyncio.gather(*(crowd.post(body.path, content=body.raw) for body in bodies))
    assert {answer.status_code for answer in answers} <= {200, 400, 429}


async def largest_prompts(r: RouterProcess) -> None:
    await send_all(r, [letters(seed, 500 * 1024) for seed in range(64)])


async def many_prompts(r: RouterProcess) -> None:
    await send_all(r, [text_chat(f"{seed} " + "word and other words " * 5_000) for seed in range(200)])


async def bodies_of_many_shapes(r: RouterProcess) -> None:
    for shape in SHAPES.values():
        await send_all(r, [shape(8 * MB)] * 4)


SPIKES: dict[str, Callable[[RouterProcess], Awaitable[None]]] = {
    "64 prompts of 0.5 MB": largest_prompts,
    "200 prompts of 100 KB": many_prompts,
    "152 bodies of 8 MB": bodies_of_many_shapes,
}


async def check_return(
    r: RouterProcess, name: str, spike: Callable[[], Awaitable[None]], measured: Measured, bar: float = GROWTH
) -> None:
    before = r.rss_bytes
    await spike()
    ends = asyncio.get_running_loop().time() + MINUTE_S
    while (grown := r.rss_bytes / before - 1) > bar - 0.05 and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    measured(f"{name}: memory a minute later, over the {before / MB:.0f} MB before", grown, bar, "of it")


@pytest.mark.abuse
@pytest.mark.parametrize("name", SPIKES)
async def test_after_prompts(router_process: Any, fleet_config: Any, measured: Measured, name: str) -> None:
    async with indifferent_engine(131_072) as fake, router_process(fleet_config([fake.url])) as r:
        await send_all(
            r, [letters(1000, 1000), text_chat("some words"), *(shape(100_000) for shape in SHAPES.values())]
        )
        await check_return(r, name, partial(SPIKES[name], r), measured)


@pytest.mark.abuse
async def test_after_streams(router_process: Any, fleet_config: Any, measured: Measured) -> None:
    """4,000 streams that their clients cut off, 2,000 of them at once, of three addresses. The records are full before:
    they stay.
    """
    async with engine(decode_ms_per_token=1000, max_num_seqs=5000) as fake, router_process(fleet_config([fake])) as r:

        async def streams() -> None:
            for _ in range(2):
                async with cut_off() as clients:
                    for wave in range(10):  # the engine accepts no more at once
                        begun = [await dial(r.url, f"127.0.0.{2 + wave % 3}") for _ in range(200)]
                        clients += begun
                        for client in begun:
                            client.send(post(len(STREAM), STREAM))
                        for client in begun:
                            assert b" 200 " in await client.reader.readuntil(b"\r\n\r\n")
                await eventually(lambda: not fake.gauges().running)

        async with r.client() as warm:
            for _ in range(schema.RecordsConfig().keep // 100):
                await asyncio.gather(*(warm.post(CHAT, content=STREAM) for _ in range(100)))
        await check_return(r, "4,000 streams, 2,000 at once", streams, measured, GROWTH_AFTER_STREAMS)


async def test_connections_are_freed_at_once(router: Any) -> None:
    """None waits for the garbage collector, whose last generation is collected once in hours."""
    async with engine() as fake, router([fake], wait=False) as r:
        await eventually(lambda: r.app.unready_reason() is None)
        gc.collect()
        gc.disable()
        try:
            for how in ("whole", "cut"):
                async with dialled(r.url, 20) as clients:
                    for client in clients:
                        client.send(post(len(STREAM), STREAM))
                    for client in clients:
                        await (client.reader.readuntil(b"[DONE]") if how == "whole" else client.reader.read(1))
                await eventually(lambda: not r.limiter.in_flight)
            # the loop learns a moment later that clients have closed; what is held by a cycle then stays for good
            await eventually(lambda: not any(map(is_left_over, gc.get_objects())))
        finally:
            gc.enable()


def is_left_over(found: object) -> bool:
    """Return whether it belongs to a connection that has ended: of those to engines some are kept."""
    if isinstance(found, EngineConnection):
        return found._transport is None
    return isinstance(found, ClientConnection | ClientExchange)
