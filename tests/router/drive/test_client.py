"""The load client against an emulated engine: what it measures, and trouble as a value."""

from __future__ import annotations

import json

from router.clock import SystemClock
from router.drive.client import Answer, Client, Failed
from tests.fakes.engines import engine

PROMPT = list(range(1000, 1100))


async def test_an_answer_and_its_cache_hit() -> None:
    async with engine(model="m", decode_ms_per_token=2.0) as fake, Client(fake.url, "m", SystemClock()) as client:
        cold = await client.complete(PROMPT, 8)
        warm = await client.complete(PROMPT, 8)
    assert isinstance(cold, Answer)
    assert isinstance(warm, Answer)
    assert (cold.prompt_tokens, cold.output_tokens, len(cold.token_ids)) == (100, 8, 8)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 96)  # 6 whole blocks of 16 in 99 tokens
    assert warm.token_ids == cold.token_ids
    assert warm.text == cold.text
    assert 0 < cold.ttft_ms < cold.total_ms
    assert cold.tpot_ms is not None
    assert cold.tpot_ms == (cold.total_ms - cold.ttft_ms) / 7
    assert cold.target is None  # no router in between


async def test_a_salt_sets_the_cache_apart() -> None:
    async with engine(model="m") as fake, Client(fake.url, "m", SystemClock()) as client:
        cold = await client.complete(PROMPT, 4)
        salted = await client.complete(PROMPT, 4, salt="mine")
    assert isinstance(cold, Answer)
    assert isinstance(salted, Answer)
    assert salted.cached_tokens == 0
    assert salted.token_ids == cold.token_ids


async def test_the_request_is_greedy_and_exact() -> None:
    async with engine(model="m") as fake, Client(fake.url, "m", SystemClock()) as client:
        await client.complete(PROMPT, 3)
        body = json.loads(fake.seen("/v1/completions")[0].body)
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"], body["prompt"]) == (0, True, 3, PROMPT)
    assert "cache_salt" not in body


async def test_refusals_cuts_and_silence_are_values() -> None:
    async with engine(model="m") as fake, Client(fake.url, "m", SystemClock()) as client:
        fake.faults(refuse=True)
        refused = await client.complete(PROMPT, 4)
        assert isinstance(refused, Failed)
        assert refused.status == 503
        fake.faults(refuse=False, die_mid_stream=1.0)
        cut = await client.complete(PROMPT, 4)
        assert isinstance(cut, Failed)
    async with Client(fake.url, "m", SystemClock()) as client:
        gone = await client.complete(PROMPT, 4)
    assert isinstance(gone, Failed)
    assert gone.status is None
    assert "ConnectError" in gone.reason
