"""A prompt on which two engines died is refused, by all routers, until it is lifted; others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from router.features.poison.book import PoisonBook
from router.features.poison.feature import PoisonFeature
from tests.e2e.conftest import MODEL, Json, Router
from tests.e2e.test_replicas import all_heard, settings  # noqa: F401  # a fixture
from tests.fakes.engines import FakeEngine, engine, eventually

CHAT = "/v1/chat/completions"


def body(words: str, **fields: Any) -> Json:
    return {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 4, **fields}


async def die_on(engines: list[FakeEngine], call: Any) -> httpx.Response:
    """The answer to a request while every engine dies of what it gets."""
    for fake in engines:
        fake.faults(die_before_first_byte=1.0)
    answer: httpx.Response = await call
    for fake in engines:
        fake.faults(die_before_first_byte=0.0)
    return answer


async def poison(router: Router) -> list[Json]:
    found: list[Json] = (await router.admin.get("/admin/poison")).json()["prompts"]
    return found


def book(router: Router) -> PoisonBook:
    (feature,) = (one for one in router.app.features.values() if isinstance(one, PoisonFeature))
    return feature.book


@pytest.mark.parametrize("known", [True, False], ids=["by its tokens", "by its body"])
async def test_a_poison_prompt_is_refused_until_it_is_lifted(router: Any, known: bool) -> None:
    unknown = {} if known else {"tokenizers": {}}
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(name=f"e{n}")) for n in range(4)]
        r = await stack.enter_async_context(router(engines, fleet={"breaker": {"failures": 1000}}, **unknown))
        died = await die_on(engines, r.post(CHAT, body("poison")))
        assert died.status_code == 502
        before = [len(fake.seen(CHAT)) for fake in engines]
        again = await r.post(CHAT, body("poison", stream=True, temperature=0.5) if known else body("poison"))
        assert again.status_code == 422
        error = again.json()["error"]
        assert (error["code"], error["type"]) == ("poison_prompt", "invalid_request_error")
        assert "refused for another 600 s" in error["message"] or "refused for another 599 s" in error["message"]
        assert [len(fake.seen(CHAT)) for fake in engines] == before
        assert (await r.post(CHAT, body("water"))).status_code == 200
        (found,) = await poison(r)
        assert len(found["targets"]) == 2
        assert found["model"] == MODEL
        assert await r.metric("warmroute_poison_prompts") == 1
        assert await r.metric("warmroute_errors_total", reason="poison_refused") == 1
        assert (await r.admin.delete(f"/admin/poison/{found['id']}")).status_code == 204
        assert (await r.admin.delete(f"/admin/poison/{found['id']}")).status_code == 404
        assert (await r.admin.delete("/admin/poison/no-id")).status_code == 404
        assert (await r.post(CHAT, body("poison"))).status_code == 200
        assert await poison(r) == []
        assert r.idle()


async def test_a_crowd_that_dies_together_is_served_again(router: Any) -> None:
    """The engines died for a reason of their own: nobody may be locked out for that."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(name=f"e{n}")) for n in range(2)]
        r = await stack.enter_async_context(router(engines, fleet={"breaker": {"failures": 1000}}))

        async def crowd() -> list[int]:
            answers = await asyncio.gather(*(r.post(CHAT, body(f"one of {n}")) for n in range(12)))
            return [answer.status_code for answer in answers]

        for fake in engines:
            fake.faults(die_before_first_byte=1.0)
        assert await crowd() == [502] * 12
        for fake in engines:
            fake.faults(die_before_first_byte=0.0)
        assert await poison(r) == []
        assert await crowd() == [200] * 12
        assert book(r).is_empty, "an answer acquits"


async def test_what_one_router_has_found_is_refused_and_lifted_at_all(
    router: Any,
    settings: Callable[[int], list[Json]],  # noqa: F811
) -> None:
    mine, theirs = settings(2)
    calm = {"breaker": {"failures": 1000}}
    async with (
        engine(name="a") as a,
        engine(name="b") as b,
        router([a, b], replicas=mine, fleet=calm) as one,
        router([a, b], replicas=theirs, fleet=calm) as other,
    ):
        await eventually(lambda: all_heard(one, other))
        assert (await die_on([a, b], one.post(CHAT, body("poison")))).status_code == 502
        await eventually(lambda: len(book(other)) == 1)
        found = await poison(other)
        assert (await other.post(CHAT, body("poison"))).status_code == 422
        assert found[0]["left_s"] > 500
        assert (await other.admin.delete(f"/admin/poison/{found[0]['id']}")).status_code == 204
        await eventually(lambda: len(book(one)) == 0)
        assert (await one.post(CHAT, body("poison"))).status_code == 200
