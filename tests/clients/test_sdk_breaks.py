"""What an SDK shows when the engine dies in mid-stream: the whole answer where another engine can carry it on, an error
of its own kind where none can. Nothing hangs, and the text that came before stays.

All engines but the first have some load booked, so the first one is chosen first; it is the one that dies.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from router.config.sections.listeners import LimitsConfig
from tests.clients.clients import SDKS, Sdk, SdkScripts
from tests.fakes.engines import engine, eventually

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

SHOWN = {  # client, or client and API: the class of the error
    "openai_python": "APIError",
    "openai_node": "APIError",
    "anthropic_python": "APIStatusError",
    "anthropic_node": "APIError",
    "langchain_python-chat": "APIError",  # it raises what the vendors' packages raise
    "langchain_python-responses": "APIError",
    "langchain_python-messages": "APIStatusError",
    "vercel_ai": "StreamError",  # a part of the stream, no exception
}

EACH = pytest.mark.parametrize("sdk", SDKS, ids=str)
CHATS = pytest.mark.parametrize("sdk", [sdk for sdk in SDKS if sdk.api == "chat"], ids=str)
LOAD = {"scorers": [{"name": "least_requests"}], "picker": {"name": "best"}}


@asynccontextmanager
async def dying(router_of_module: Any, continuation_bytes: int) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        fakes = [await stack.enter_async_context(engine(name=f"e{n}", seed=n)) for n in range(2)]
        config = {
            "limits": {"continuation_bytes": continuation_bytes},
            "policies": {"load": LOAD},
            "active": "load",
            "fleet": {"breaker": {"failures": 1_000_000}},
        }
        running = await stack.enter_async_context(router_of_module(fakes, **config))
        second = next(i for i in running.core.fleet if i.config.url == fakes[1].url).targets[0]
        stack.callback(second.book(0, 1).release)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def carried(router_of_module: Any) -> AsyncIterator[Any]:
    """A router with two engines that carries answers on, as it does by default."""
    async with dying(router_of_module, LimitsConfig().continuation_bytes) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broken(router_of_module: Any) -> AsyncIterator[Any]:
    """The same with continuation off."""
    async with dying(router_of_module, 0) as running:
        yield running


async def undisturbed_and_cut(sdk: Sdk, sdks: SdkScripts, routed: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The same turn twice, the second time with a dying engine, and the record of that."""
    text = f"{uuid.uuid4().hex}: tell me of the sea."
    first = routed.engines[0]
    first.faults(die_mid_stream=0.0)
    (undisturbed,) = await sdks.talk(sdk, routed.url, text, stream=True)
    first.faults(die_mid_stream=1.0)
    (cut,) = await sdks.talk(sdk, routed.url, text, stream=True)
    record = await routed.record((await routed.records(1))[0]["id"])
    await eventually(lambda: routed.limiter.in_flight == 0)
    return undisturbed, cut, record


@CHATS
async def test_another_engine_carries_it_on(sdk: Sdk, sdks: SdkScripts, carried: Any) -> None:
    undisturbed, cut, record = await undisturbed_and_cut(sdk, sdks, carried)
    assert [attempt["end"] for attempt in record["attempts"]] == ["continued", "ok"]
    assert cut | {"cached": None} == undisturbed | {"cached": None}  # the next engine has other prompts in its cache
    assert cut["error"] is None
    assert cut["finish"] == "length"


@EACH
async def test_nobody_can_carry_it_on(sdk: Sdk, sdks: SdkScripts, broken: Any) -> None:
    undisturbed, cut, record = await undisturbed_and_cut(sdk, sdks, broken)
    assert (record["status"], len(record["attempts"])) == (200, 1)
    assert undisturbed["text"].startswith(cut["text"])
    assert 0 < len(cut["text"]) < len(undisturbed["text"])
    assert "the engine closed the connection" in cut["error"]["message"]
    assert cut["error"]["type"] == (SHOWN.get(sdk.client) or SHOWN[str(sdk)])
