"""Who sees the usage of a stream: the client that asked for it, and the router's record always when it injects."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.fakes.engines import engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "warm-tiny"
WORDS = "Count to one hundred, please. " * 20
CREATED = re.compile(rb'"created":\d+')
MOVED = re.compile(rb',"system_fingerprint":"[^"]*"')
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": WORDS}], "n": 2},
    "/v1/completions": {"prompt": [WORDS, "Another one"], "max_tokens": 8},
}
ASKED = {"stream_options": {"include_usage": True}}
ID = {"x-request-id": "same"}  # from which engines make the answer's id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def injecting(router_of_module: Any) -> AsyncIterator[Any]:
    async with engine() as fake, router_of_module([fake]) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def observing(router_of_module: Any) -> AsyncIterator[Any]:
    async with engine() as fake, router_of_module([fake], usage="observe") as running:
        yield running


async def both(routed: Any, path: str, **fields: Any) -> tuple[bytes, bytes, dict[str, Any]]:
    """The same stream from the router and from its engine, and the record."""
    body = {"model": MODEL, "stream": True} | BODIES[path] | fields
    await routed.post(path, body)  # now both find the cache warm
    ours = await routed.post(path, body, headers=ID)
    theirs = await routed.http.post(routed.engines[0].url + path, json=body, headers=ID)
    return (
        CREATED.sub(b'"created":0', ours.content),
        CREATED.sub(b'"created":0', theirs.content),
        await routed.record(ours),
    )


def usages(stream: bytes) -> list[dict[str, Any]]:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    return [chunk["usage"] for chunk in chunks if chunk.get("usage")]


@pytest.mark.parametrize("path", BODIES)
async def test_inject_shows_nothing_to_a_client_that_did_not_ask(injecting: Any, path: str) -> None:
    """Byte for byte the engine's stream, but for the fingerprint, which vLLM moves into the chunk we hide."""
    ours, theirs, record = await both(injecting, path)
    assert ours == MOVED.sub(b"", theirs)
    assert usages(ours) == []
    assert ours.endswith(b"data: [DONE]\n\n")
    assert record["cached_tokens"] > 0
    assert record["prompt_tokens"] > record["cached_tokens"]
    assert record["output_tokens"] == (32 if "chat" in path else 16)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "asked",
    [ASKED, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}],
    ids=["once", "on every chunk"],
)
async def test_inject_leaves_a_client_that_asked_its_usage(injecting: Any, path: str, asked: dict[str, Any]) -> None:
    ours, theirs, record = await both(injecting, path, **asked)
    assert ours == theirs
    last = usages(ours)[-1]
    assert (last["prompt_tokens"], last["completion_tokens"]) == (record["prompt_tokens"], record["output_tokens"])
    assert last["prompt_tokens_details"]["cached_tokens"] == record["cached_tokens"] > 0


@pytest.mark.parametrize(
    "options",
    [None, {}, {"include_usage": False}, {"include_usage": None}, {"include_usage": False, "x": [1]}],
)
async def test_inject_keeps_other_stream_options(injecting: Any, options: Any) -> None:
    ours, theirs, record = await both(injecting, "/v1/chat/completions", stream_options=options)
    assert ours == MOVED.sub(b"", theirs)
    assert record["output_tokens"] == 32
    arrived = json.loads(injecting.engines[0].seen("/v1/chat/completions")[-2].body)
    assert arrived["stream_options"] == (options or {}) | {"include_usage": True}


@pytest.mark.parametrize("path", BODIES)
async def test_observe_changes_nothing(observing: Any, path: str) -> None:
    ours, theirs, record = await both(observing, path)
    assert ours == theirs
    assert record["cached_tokens"] is None
    seen = observing.engines[0].seen(path)
    assert seen[-1].body.replace(b" ", b"") == seen[-2].body.replace(b" ", b"")

    ours, theirs, record = await both(observing, path, **ASKED)
    assert ours == theirs
    assert usages(ours)[-1]["prompt_tokens_details"]["cached_tokens"] == record["cached_tokens"] > 0


async def test_what_is_not_streamed_is_not_touched(injecting: Any) -> None:
    body = b'{"model": "warm-tiny", "messages": [{"role": "user", "content": "x"}]}'
    answer = await injecting.post("/v1/chat/completions", body)
    assert injecting.engines[0].seen("/v1/chat/completions")[-1].body == body
    assert answer.json()["usage"]["prompt_tokens"] == (await injecting.record(answer))["prompt_tokens"]


async def test_the_openai_client_with_and_without(injecting: Any) -> None:
    chat: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": WORDS}], "stream": True}
    async with openai.AsyncOpenAI(base_url=f"{injecting.url}/v1", api_key="none") as client:
        plain = [chunk async for chunk in await client.chat.completions.create(**chat)]
        asked = [chunk async for chunk in await client.chat.completions.create(**chat, **ASKED)]
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    assert [bool(chunk.choices) for chunk in asked] == [True] * len(plain) + [False]
    assert asked[-1].usage.prompt_tokens_details.cached_tokens > 0
    said = ["".join(c.choices[0].delta.content or "" for c in chunks if c.choices) for chunks in (plain, asked)]
    assert said[0] == said[1] != ""
