"""KV memory in use, as the router counts it from prompts and as engines report it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.conftest import MODEL
from tests.fakes.engines import FakeEngine, engine, eventually

SHARED = "You review changes of a program. " * 200  # some 1,400 tokens
BLOCKS, BLOCK_TOKENS = 4096, 16


def engine_tokens(fake: FakeEngine) -> float:
    return fake.gauges().kv_usage * BLOCKS * BLOCK_TOKENS


async def test_a_prefix_that_many_requests_share_counts_once(router: Any) -> None:
    """60 streams with one long beginning, on two engines: our count, corrected by polls, and theirs."""
    options: dict[str, Any] = {"decode_ms_per_token": 2_000, "blocks": BLOCKS, "block_tokens": BLOCK_TOKENS}
    async with engine(**options) as a, engine(**options) as b, router([a, b]) as r, r.client() as client:

        async def begin(number: int) -> None:
            messages = [
                {"role": "system", "content": SHARED},
                {"role": "user", "content": f"change {number}: " + f"line {number} " * (number % 40)},
            ]
            body = {"model": MODEL, "messages": messages, "max_tokens": 50, "stream": True}
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    pass

        streams = [asyncio.create_task(begin(number)) for number in range(60)]
        await eventually(lambda: a.gauges().running + b.gauges().running == 60)
        await r.hear()
        used = 0
        for fake in (a, b):
            (target,) = (t for i in r.core.fleet if i.config.url == fake.url for t in i.targets.values())
            assert target.load_book.live_tokens == pytest.approx(engine_tokens(fake), rel=0.05)
            assert target.load_book.context_tokens > 3 * target.load_book.live_tokens or fake.gauges().running < 6
            used += target.load_book.live_tokens
        assert await r.metric("warmroute_target_live_tokens") == pytest.approx(used, rel=0.05)
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
        await eventually(lambda: not any(t.load_book.live_tokens for i in r.core.fleet for t in i.targets.values()))
