"""Prompts that cost more than they may: too long for their model, of too many pieces, or given up by the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from router.config.sections.listeners import LimitsConfig
from tests.abuse.bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES, SHAPES, Body, text_chat
from tests.abuse.conftest import Measured
from tests.abuse.engines import indifferent_engine
from tests.abuse.watch import MB, cpu_s, loop_probe, peak_bytes, reset_peak
from tests.e2e.conftest import MODEL, RouterProcess
from tests.fakes.engines import eventually

LIMIT = LimitsConfig().body_bytes
MOST_STANDSTILL_MS = 50
WIDE = "\U0001f600"  # one such character makes a string in memory four times as long


async def post(r: RouterProcess, body: Body) -> int:
    """Send and return the answer's status."""
    headers = {"content-type": "application/json"}
    return (await r.http.post(body.path, content=body.raw, headers=headers, timeout=60.0)).status_code


async def reason(r: RouterProcess) -> str:
    """Where the token ids of the newest request come from, or why there are none."""
    (record,) = await r.records(1)
    return str(record["tokens_from"])


def long_prompts(size: int) -> dict[str, Body]:
    """The same text at every endpoint, and other things that a prompt can consist of."""
    text = "word " * (size // 5)
    message = [{"role": "user", "content": text}]
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    fields: dict[str, tuple[str, dict[str, Any]]] = {
        "a chat": (CHAT, {"messages": message}),
        "a chat of parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": text}, image]}]}),
        "a chat of many messages": (CHAT, {"messages": [{"role": "user", "content": "w " * 500}] * (size // 1030)}),
        "a tool": (
            CHAT,
            {
                "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "function", "function": {"name": "f", "description": text}}],
            },
        ),
        "a completion": (COMPLETIONS, {"prompt": text}),
        "token ids": (COMPLETIONS, {"prompt": [7] * (size // 4)}),
        "a response": (RESPONSES, {"input": text}),
        "instructions": (RESPONSES, {"input": "x", "instructions": text}),
        "a message": (MESSAGES, {"messages": message, "max_tokens": 1}),
        "a tool's result": (
            MESSAGES,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": text}]}
                ],
                "max_tokens": 1,
            },
        ),
    }
    return {name: Body(path, json.dumps({"model": MODEL, **more}).encode()) for name, (path, more) in fields.items()}


async def test_a_prompt_that_cannot_fit_its_model_is_not_tokenised(
    router_process: Callable[..., Any], fleet_config: Callable[..., Any], measured: Measured
) -> None:
    size = 4 * MB
    config = {"tokens": {"budget_ms": 30_000.0}}  # nothing is late on a machine that is busy
    async with indifferent_engine(32_768) as engine, router_process(fleet_config([engine.url], **config)) as r:
        fits = text_chat("word " * 20_000)
        assert (await post(r, fits), await reason(r)) == (200, "local")
        before = r.rss_bytes
        reset_peak(r.pid)
        for name, body in long_prompts(size).items():
            assert (await post(r, body), await reason(r), name) == (200, "too_long", name)
        assert engine.received[-1] == len(body.raw)
        measured("memory that a prompt of 4 MB takes", (peak_bytes(r.pid) - before) / MB, 8 * size / MB, "MB")
        assert (await post(r, fits), await reason(r)) == (200, "local")


async def test_an_image_is_no_text(router_process: Callable[..., Any], fleet_config: Callable[..., Any]) -> None:
    """Its bytes do not count: what stands before it is tokenised as ever."""
    data = "A" * (4 * MB)
    parts = [
        {"type": "text", "text": "What is on this picture? " * 20},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ]
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    bodies = {
        CHAT: {"messages": [{"role": "user", "content": parts}]},
        MESSAGES: {"messages": [{"role": "user", "content": [parts[0], block]}], "max_tokens": 1},
        MESSAGES + "?": {"messages": [{"role": "user", "content": [parts[0], result]}], "max_tokens": 1},
    }
    async with indifferent_engine(32_768) as engine, router_process(fleet_config([engine.url])) as r:
        for path, fields in bodies.items():
            status = await post(r, Body(path, json.dumps({"model": MODEL, **fields}).encode()))
            assert (status, await reason(r), path) == (200, "local", path)


@pytest.mark.abuse
@pytest.mark.parametrize("context_tokens", [32_768, None])
async def test_what_a_chat_of_20_mb_costs(
    router_process: Callable[..., Any],
    fleet_config: Callable[..., Any],
    measured: Measured,
    context_tokens: int | None,
) -> None:
    """At a context of 32,768 tokens, and where none is known (131,072 are assumed)."""
    size = 20 * MB
    bodies = long_prompts(size) | {
        "a chat with an emoji": text_chat(WIDE + "word " * (size // 5)),
        "a completion of one letter": Body(
            COMPLETIONS, b'{"model":"%b","prompt":"%b"}' % (MODEL.encode(), b"a" * size)
        ),
    }
    async with indifferent_engine(context_tokens) as engine, router_process(fleet_config([engine.url])) as r:
        figures = []
        for name, body in bodies.items():
            before, used_s = r.rss_bytes, cpu_s(r.pid)
            reset_peak(r.pid)
            await post(r, body)
            await settled(r)
            grown = (peak_bytes(r.pid) - before) / len(body.raw)
            figures.append((name, grown, cpu_s(r.pid) - used_s, await reason(r)))
    for name, grown, used_s, why in figures:
        measured(f"20 MB, {context_tokens} tokens, {name} ({why}): memory", grown, 5, "times the body")
        measured(f"20 MB, {context_tokens} tokens, {name}: CPU", used_s, 1.0, "s")


@pytest.mark.abuse
async def test_the_largest_prompts_that_may_fit_all_at_once(
    router_process: Callable[..., Any], fleet_config: Callable[..., Any], measured: Measured
) -> None:
    """64 clients, each with what is tokenised at most, as one word: nothing is found in a cache."""
    size = 500 * 1024
    bodies = [Body(COMPLETIONS, text_of_letters(i, size)) for i in range(64)]
    async with indifferent_engine(32_768) as engine, router_process(fleet_config([engine.url])) as r:
        await post(r, text_chat("x"))
        before = r.rss_bytes
        reset_peak(r.pid)
        async with r.client(timeout=60.0) as crowd:
            answers = [crowd.post(body.path, content=body.raw) for body in bodies]
            assert {answer.status_code for answer in await asyncio.gather(*answers)} == {200}
        measured("64 prompts of 0.5 MB at once: memory", (peak_bytes(r.pid) - before) / MB, 300, "MB")


def text_of_letters(seed: int, size: int) -> bytes:
    letters = bytes(97 + (i * i + seed * i) % 23 for i in range(997))
    return b'{"model":"%b","prompt":"%b"}' % (MODEL.encode(), (letters * (size // 997 + 1))[:size])


@pytest.mark.abuse
async def test_work_for_clients_that_hung_up_ends(
    router_process: Callable[..., Any], fleet_config: Callable[..., Any], measured: Measured
) -> None:
    """16 clients send the largest prompt that is tokenised here, and leave."""
    messages = [{"role": "user", "content": f"{i} " + "word " * 400} for i in range(240)]
    async with indifferent_engine(32_768) as engine, router_process(fleet_config([engine.url])) as r:
        await post(r, text_chat("x"))
        used_s = cpu_s(r.pid)
        for number in range(16):
            messages[0]["content"] = str(number)
            raw = json.dumps({"model": MODEL, "messages": messages}).encode()
            await send_and_leave(r, Body(CHAT, raw))
        await settled(r)
        measured("CPU for 16 prompts of 0.5 MB whose clients left", cpu_s(r.pid) - used_s, 1.0, "s")


async def send_and_leave(r: RouterProcess, body: Body) -> None:
    host, port = r.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = "POST {} HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    before_s = cpu_s(r.pid)
    writer.write(head.format(body.path, len(body.raw)).encode() + body.raw)
    await writer.drain()
    await eventually(lambda: cpu_s(r.pid) > before_s + 0.02)  # it has begun with it
    writer.close()
    await writer.wait_closed()


async def settled(r: RouterProcess) -> None:
    """Wait until the router has used nearly no CPU time for half a second."""
    used_s = -1.0
    while cpu_s(r.pid) - used_s > 0.03:
        used_s = cpu_s(r.pid)
        await asyncio.sleep(0.5)


@pytest.mark.abuse
@pytest.mark.parametrize("size", [64 * 1024, 512 * 1024, LIMIT - 1024])
async def test_no_body_stops_the_loop(
    router_process: Callable[..., Any], fleet_config: Callable[..., Any], measured: Measured, size: int
) -> None:
    """Bodies of the size up to which they are read on the loop, and of the largest size."""
    figures = {}
    async with (
        indifferent_engine(32_768) as engine,
        router_process(fleet_config([engine.url])) as r,
        loop_probe(r.url) as probe,
    ):
        for name, build in SHAPES.items():
            body = build(size)
            longest_ms = await probe.standstill_ms(partial(post, r, body), MOST_STANDSTILL_MS)
            figures[f"{size / MB:.4g} MB, {name} ({await post(r, body)})"] = longest_ms
    for name, longest_ms in sorted(figures.items(), key=lambda figure: -figure[1]):
        measured(name, longest_ms, MOST_STANDSTILL_MS, "ms")
