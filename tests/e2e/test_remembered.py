"""An agent's next turn pays for what is new in it, and everything that the router says of the prompt stays true."""

from __future__ import annotations

from typing import Any

from tests.fakes.engines import engine

MODEL = "warm-tiny"
PATH = "/v1/chat/completions"


def said(role: str, number: int) -> dict[str, str]:
    return {"role": role, "content": f"{role} says thing number {number}, and again: " * 60}


async def test_an_agents_turns(router: Any) -> None:
    """Eight turns, each with all before it: every one is counted as the engine counts, and hits as predicted."""
    async with engine() as a, router([a]) as r:
        messages, told = [], []
        for number in range(8):
            messages.append(said("user", number))
            told.append(await r.record(await r.post(PATH, {"model": MODEL, "messages": messages, "max_tokens": 1})))
            messages.append(said("assistant", number))
            await r.hear()
        for record in told:
            assert record["tokens_from"] == "local"
            assert record["prompt_tokens_counted"] == record["prompt_tokens"]
        for record in told[1:]:
            assert record["attempts"][-1]["predicted_tokens"] == record["cached_tokens"] > 0
        tokens = sum(record["prompt_tokens"] for record in told)
        found = await r.metric("warmroute_remembered_tokens_total", model=MODEL)
        made = await r.metric("warmroute_tokenised_tokens_total", model=MODEL)
        assert found + made == tokens
        assert made < 1.1 * told[-1]["prompt_tokens"], "every token about once"
        assert await r.metric("warmroute_tokenizer_incremental", model=MODEL) == 1
        limit = await r.metric("warmroute_memory_limit_bytes")
        assert 4 * made < await r.metric("warmroute_memory_bytes") < 100 * made < limit
        (instance,) = (await r.instances()).values()
        assert instance["tokenizer"]["incremental"] is True
        assert instance["tokenizer"]["remembered_tokens"] == found
        assert instance["tokenizer"]["memory_bytes"] == await r.metric("warmroute_memory_bytes")


async def test_another_tenants_salt_finds_nothing_of_it(router: Any) -> None:
    async with engine() as a, router([a]) as r:
        body = {"model": MODEL, "messages": [said("user", 1)], "max_tokens": 1}
        await r.post(PATH, body | {"cache_salt": "one"})
        await r.post(PATH, body | {"cache_salt": "two"})
        assert await r.metric("warmroute_remembered_tokens_total", model=MODEL) == 0
        await r.post(PATH, body | {"cache_salt": "two"})
        assert await r.metric("warmroute_remembered_tokens_total", model=MODEL) > 0


async def test_without_memory_every_turn_pays_for_all(router: Any) -> None:
    async with engine() as a, router([a], tokens={"memory_bytes": 0}) as r:
        body = {"model": MODEL, "messages": [said("user", 1)], "max_tokens": 1}
        first = await r.record(await r.post(PATH, body))
        again = await r.record(await r.post(PATH, body))
        assert first["prompt_tokens_counted"] == again["prompt_tokens_counted"] == again["prompt_tokens"]
        assert await r.metric("warmroute_remembered_tokens_total", model=MODEL) == 0
        assert await r.metric("warmroute_memory_bytes") == 0
