"""What an SDK shows of an answer, of a stream, of a tool call and of a second turn: the same as of an engine asked
directly, and the second turn hits.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.clients import SDKS, Sdk, SdkScripts
from tests.fakes.engines import engine

pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]

ENDPOINTS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
BLOCK_TOKENS = 16
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
EACH = pytest.mark.parametrize("sdk", SDKS, ids=str)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct() -> AsyncIterator[Any]:
    """An engine that no router knows."""
    async with engine() as alone:
        yield alone


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(router_of_module: Any) -> AsyncIterator[Any]:
    """A router with three engines, in its default configuration but for the policy."""
    async with engine() as a, engine() as b, engine() as c, router_of_module([a, b, c]) as running:
        yield running


def question() -> str:
    """A prompt of some blocks that nobody has sent before."""
    return f"{uuid.uuid4().hex}: why is the sky blue? " + "Say it in full. " * 20


async def records(routed: Any, sdk: Sdk, count: int) -> list[dict[str, Any]]:
    """The finished records of the newest `count` requests, oldest first."""
    newest = [record["id"] for record in await routed.records(count)]
    found = [await routed.record(id) for id in reversed(newest)]
    assert [record["endpoint"] for record in found] == [ENDPOINTS[sdk.api]] * count
    return found


@EACH
@STREAM
async def test_an_answer(sdk: Sdk, stream: bool, sdks: SdkScripts, direct: Any, routed: Any) -> None:
    text = question()
    (expected,) = await sdks.talk(sdk, direct.url, text, stream=stream)
    (turn,) = await sdks.talk(sdk, routed.url, text, stream=stream)
    assert turn == expected
    assert turn["error"] is None
    assert len(turn["text"].split()) > 5
    (record,) = await records(routed, sdk, 1)
    assert (record["status"], record["stream"]) == (200, stream)
    assert (record["prompt_tokens"], record["output_tokens"]) == (turn["prompt"], turn["output"])


@EACH
@STREAM
async def test_a_second_turn_hits(sdk: Sdk, stream: bool, sdks: SdkScripts, direct: Any, routed: Any) -> None:
    text = question()
    expected = await sdks.talk(sdk, direct.url, text, "And at night?", stream=stream)
    first, second = await sdks.talk(sdk, routed.url, text, "And at night?", stream=stream)
    assert [first, second] == expected
    assert first["prompt"] + BLOCK_TOKENS > second["cached"] > first["prompt"] - BLOCK_TOKENS
    one, two = await records(routed, sdk, 2)
    assert one["target"] == two["target"]
    assert two["cached_tokens"] == second["cached"]


@EACH
@STREAM
async def test_a_tool_call_and_its_result(sdk: Sdk, stream: bool, sdks: SdkScripts, direct: Any, routed: Any) -> None:
    text, job = question(), {"stream": stream, "tool": "21 degrees", "max_tokens": 100}
    expected = await sdks.talk(sdk, direct.url, text, **job)
    called, answered = await sdks.talk(sdk, routed.url, text, **job)
    assert [called, answered] == expected
    assert called["tool"] == ["weather", {"city": "warm"}]
    assert (answered["tool"], answered["error"]) == (None, None)
    assert answered["text"]
    assert answered["cached"] > called["prompt"] - BLOCK_TOKENS
    one, two = await records(routed, sdk, 2)
    assert one["target"] == two["target"]


async def test_everything_was_given_back(routed: Any) -> None:
    """Last: after all these clients nothing is booked and nothing is held."""
    assert routed.idle()
    assert not [record["id"] for record in await routed.records(500) if not record["done"]]
