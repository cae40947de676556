"""Engines that answer their probes and make no tokens, or few: nobody waits for them, and nobody notices.

Engines take some time for a token, so that streams are under way; enough requests teach the router how much.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest

from router.config.sections.listeners import LimitsConfig
from router.fleet.instance import Target
from router.fleet.progress import LEARNED
from router.fleet.step_change import LEARNED as LEARNED_CURVE
from router.fleet.step_change import RUN
from router.request.stuck_engines import CHECK_S
from tests.e2e.chats import Said, ask, beside
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import FakeEngine, engine, eventually

DECODE_MS = 25.0
LONG = {"max_tokens": 80, "ignore_eos": True, "temperature": 0}  # 2 s
LOAD = {"scorers": [{"name": "least_requests"}], "picker": {"name": "best"}}
CONTINUES = {"continuation_bytes": LimitsConfig().continuation_bytes}
LONGEST_S = 5.0


class House(NamedTuple):
    router: Router
    engines: list[FakeEngine]

    def target(self, number: int) -> Target:
        url = self.engines[number].url
        return next(i for i in self.router.core.fleet if i.config.url == url).targets[0]

    def state(self, number: int) -> str:
        return self.target(number).breaker.state(self.router.core._clock.now())


Start = Callable[..., AbstractAsyncContextManager[House]]


@pytest.fixture
def house(router: Any) -> Start:
    """`house(number of engines, configuration...)`: a router that has learned how fast they are."""

    @asynccontextmanager
    async def start(count: int = 2, **config: Any) -> AsyncIterator[House]:
        async with AsyncExitStack() as stack:
            options = {"decode_ms_per_token": DECODE_MS, "prefill_tokens_per_s": 20_000}
            fakes = [await stack.enter_async_context(engine(name=f"e{n}", seed=n, **options)) for n in range(count)]
            running = await stack.enter_async_context(
                router(fakes, limits=CONTINUES, **({"policies": {"load": LOAD}, "active": "load"} | config))
            )
            made = House(running, fakes)
            for number in range(6 * count):
                assert (await ask(running, [chat(f"learn {number}")], stream=True, max_tokens=2)).ok
            assert all(made.target(each).latency_model.own(0.0).samples >= LEARNED for each in range(count))
            yield made

    return start


def chat(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


async def said_within(work: list[asyncio.Task[Said]], seconds: float) -> list[Said]:
    async with asyncio.timeout(seconds):
        return await asyncio.gather(*work)


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
async def test_requests_of_a_wedged_engine_are_answered_elsewhere(house: Start, stream: bool) -> None:
    """The same words as from an engine that nothing happens to, no request twice, and none kept in any book."""
    async with house() as made:
        r, wedged = made.router, made.engines[0]
        talks = [[chat(f"talk {n}")] for n in range(4)]
        undisturbed = await asyncio.gather(*(ask(r, talk, stream=stream, **LONG) for talk in talks))
        work = [asyncio.create_task(ask(r, talk, stream=stream, **LONG)) for talk in talks]
        await eventually(lambda: made.target(0).load_book.requests == made.target(1).load_book.requests == 2)
        await eventually(lambda: not stream or not made.target(0).load_book.prefilling)
        wedged.faults(wedge=True)
        said = await said_within(work, LONGEST_S + 2 * 2.0)
        assert [one.text for one in said] == [one.text for one in undisturbed]
        assert made.state(0) == "stuck"
        records = [await r.record(one.record) for one in said]
        ends = sorted([attempt["end"] for attempt in record["attempts"]] for record in records)
        assert ends == sorted([["continued" if stream else "stuck", "ok"]] * 2 + [["ok"]] * 2)
        later = [await ask(r, [chat(f"later {n}")]) for n in range(3)]
        assert {one.target for one in later} == {made.target(1).id}, "new requests avoid it"
        assert made.target(0).instance.state == "ready", "its probes are fine"
        stall = made.target(0).progress.stall
        assert stall is not None
        assert stall.kind == "silent"
        await eventually(lambda: made.target(0).load_book.requests == made.target(1).load_book.requests == 0)
        wedged.faults(wedge=False)


async def test_an_engine_that_goes_on_gets_requests_again(house: Start) -> None:
    async with house() as made:
        r, wedged = made.router, made.engines[0]
        wedged.faults(wedge=True)
        work = [asyncio.create_task(ask(r, [chat(f"talk {n}")], stream=True)) for n in range(4)]
        assert all(one.ok for one in await said_within(work, LONGEST_S + 1))
        assert made.state(0) == "stuck"
        wedged.faults(wedge=False)
        breaker = made.target(0).breaker
        await eventually(lambda: breaker.allows(r.core._clock.now()))
        work = [asyncio.create_task(ask(r, [chat(f"again {n}")], stream=True)) for n in range(4)]
        assert all(one.ok for one in await said_within(work, LONGEST_S))
        assert made.state(0) == "closed"
        assert (await ask(r, [chat("one more")])).ok


async def test_what_no_other_engine_can_answer_waits_on(house: Start) -> None:
    async with house(1) as made:
        r, only = made.router, made.engines[0]
        only.faults(wedge=True)
        async with beside(ask(r, [chat("alone")], stream=True)) as waiting:
            await eventually(lambda: made.state(0) == "stuck")
            await asyncio.sleep(2 * CHECK_S)
            assert not waiting.done()
            only.faults(wedge=False)
            assert (await waiting).ok
        await eventually(lambda: made.state(0) == "closed")


async def test_an_engine_that_runs_tools_itself_is_waited_for(house: Start) -> None:
    """Its tools may have done something already. Functions are run by the client."""
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    own = {"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1:1"}
    async with house() as made, AsyncExitStack() as stack:
        r, wedged = made.router, made.engines[0]

        def send(tool: dict[str, Any]) -> Coroutine[Any, Any, httpx.Response]:
            body = {"model": MODEL, "input": "do something", "max_output_tokens": 4, "tools": [tool]}
            return r.http.post("/v1/responses", json=body)

        stack.callback(made.target(1).book(0, 1).release)  # so that the other one is chosen
        wedged.faults(wedge=True)
        async with beside(send(own)) as waiting:
            await eventually(lambda: made.target(0).load_book.requests == 1)
            async with beside(send(function)) as moving:
                await eventually(lambda: made.state(0) == "stuck")
                moved = await moving
            assert moved.status_code == 200
            assert moved.headers["x-warmroute-target"] == made.target(1).id
            await asyncio.sleep(2 * CHECK_S)
            assert not waiting.done()
            wedged.faults(wedge=False)
            answer = await waiting
            assert answer.headers["x-warmroute-target"] == made.target(0).id


async def test_a_slow_engine_shows_within_a_few_requests(house: Start, caplog: pytest.LogCaptureFixture) -> None:
    async def send(r: Router, number: int) -> None:
        assert (await ask(r, [chat(f"{number} " + "one more word " * 500)], stream=True, max_tokens=2)).ok

    caplog.set_level(logging.INFO, "warmroute.index")
    async with house(1) as made:
        r, model = made.router, made.target(0).latency_model
        for number in range(LEARNED_CURVE):
            await send(r, number)
        usual_ms = model.own(0.0).prefill_ms(2000, 0)
        made.engines[0].faults(slow=5.0)
        for number in range(RUN + 1):
            await send(r, 100 + number)
        assert 3 < model.slowdown < 7
        assert model.own(0.0).prefill_ms(2000, 0) > 3 * usual_ms, "priced"
        page = (await r.http.get("/metrics")).text
        (shown,) = re.findall(r'^warmroute_engine_slowdown_ratio{engine="[^"]*"} (.*)$', page, re.MULTILINE)
        assert 3 < float(shown) < 7
        assert "prefills take" in caplog.text
        made.engines[0].faults(slow=1.0)
        for number in range(3 * RUN):
            await send(r, 200 + number)
        assert model.slowdown == 1.0
        assert "is no longer slow" in caplog.text
