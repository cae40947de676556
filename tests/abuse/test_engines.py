"""An engine can harm its own traffic only: whatever it answers, requests to another engine do not notice."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.abuse.conftest import Measured
from tests.abuse.hostile_engine import (
    CHAT,
    EVIL,
    ask,
    failures,
    hostile_engine,
    http,
    pouring,
    until,
)
from tests.abuse.watch import loop_probe, open_files, peak_bytes
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine, eventually

MB = 1024 * 1024


def sources(ranks: int, port: int) -> bytes:
    entry = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}"}
    return http({str(rank): entry | {"replay_endpoint": entry["endpoint"]} for rank in range(ranks)})


def page(ranks: int) -> bytes:
    lines = (f'vllm:num_requests_running{{engine="{rank}",model_name="{EVIL}"}} 1.0\n' for rank in range(ranks))
    return "".join(lines).encode()


async def test_thousands_of_ranks_take_no_files(router_process, fleet_config, measured: Measured) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with (
        await asyncio.start_server(accept, "127.0.0.1", 0) as publisher,
        hostile_engine(kv_event_sources=sources(5000, publisher.sockets[0].getsockname()[1])) as evil,
        engine() as good,
        router_process(fleet_config([good, evil.url])) as r,
    ):
        await eventually(lambda: "/kv_event_sources" in evil.asked)
        async with loop_probe(r.url) as probe:
            failed = await failures(r, MODEL)
            files = open_files(r.pid)
            longest_ms = await probe.longest_ms()
        measured("5,000 ranks: open files", files, 100, "")
        measured("5,000 ranks: chats to a healthy engine that fail", failed, 0, "of 60")
        measured("5,000 ranks: longest gap", longest_ms, 250, "ms")
        assert await ask(r, EVIL) == 200


async def test_a_page_of_thousands_of_ranks_does_not_come_back(
    router_process, fleet_config, measured: Measured
) -> None:
    async with (
        hostile_engine(metrics=http(page(20_000))) as evil,
        engine() as good,
        router_process(fleet_config([good, evil.url])) as r,
    ):
        await eventually(lambda: evil.asked.count("/metrics") > 2)
        began = time.perf_counter()
        text = (await r.http.get("/metrics", timeout=60.0)).text
        measured("20,000 ranks on a page: our own page", len(text) / 1e6, 0.1, "MB")
        measured("20,000 ranks on a page: a scrape", (time.perf_counter() - began) * 1e3, 500, "ms")


async def test_heads_are_bounded(router_process, fleet_config, measured: Measured) -> None:
    line = b"x-%07d: " + b"v" * 1000 + b"\r\n"
    headers = [b"".join(line % (block * 1000 + number) for number in range(1000)) for block in range(300)]
    one_line = [b"x-long: ", *[b"v" * MB] * 120, b"\r\n\r\n"]
    attacks = {"head of 300 MB": headers, "header line of 120 MB": one_line}
    async with (
        hostile_engine() as evil,
        engine() as good,
        router_process(fleet_config([good, evil.url])) as r,
    ):
        await ask(r, EVIL)
        for name, pieces in attacks.items():
            evil.answers["/v1/chat/completions"] = pouring([b"HTTP/1.1 200 OK\r\n", *pieces])
            before = peak_bytes(r.pid)
            async with loop_probe(r.url) as probe:
                assert await ask(r, EVIL) in (0, 502, 503)
                failed = await failures(r, MODEL)
                longest_ms = await probe.longest_ms()
            measured(f"{name}: memory", (peak_bytes(r.pid) - before) / MB, 20, "MB")
            measured(f"{name}: chats to a healthy engine that fail", failed, 0, "of 60")
            measured(f"{name}: longest gap", longest_ms, 250, "ms")


@pytest.mark.parametrize("headers", [b"content-encoding: gzip\r\n", b""])
async def test_an_answer_that_is_compressed_passes_unread(router, headers: bytes) -> None:
    """What looks like token counts inside compressed bytes is none."""
    body = b'{"usage":{"prompt_tokens":5,"completion_tokens":7}}'
    async with hostile_engine(completions=http(body, headers=headers)) as evil, router([evil.url], wait=False) as r:
        await eventually(lambda: r.app.unready_reason() is None)
        prompt = {"model": EVIL, "messages": [{"role": "user", "content": "hello"}]}
        async with r.http.stream("POST", CHAT, json=prompt) as answer:
            assert answer.status_code == 200
            assert b"".join([piece async for piece in answer.aiter_raw()]) == body
        record = await r.record(answer)
        assert record["output_tokens"] == (None if headers else 7)
        assert await r.metric("warmroute_engine_limit_total", limit="encoding") == (1 if headers else 0)
        assert await r.metric("warmroute_engine_distrusted") == 0


@pytest.mark.abuse
async def test_the_metrics_of_a_large_fleet(router_process, fleet_config, measured: Measured) -> None:
    """400 engines, and eight who ask for the page without a pause."""
    async with hostile_engine("0.0.0.0", metrics=http(page(1))) as many, engine() as good:
        port = many.url.rpartition(":")[2]
        named = [
            {"url": f"http://127.0.1{number // 250}.{number % 250}:{port}", "name": f"engine-{number}"}
            for number in range(400)
        ]
        async with router_process(fleet_config([good, *named])) as r:

            async def all_ready() -> bool:
                return await r.metric("warmroute_instance_state", state="ready") == 401

            await until(all_ready, 60.0)

            async def scrape() -> None:
                async with r.client() as client:
                    while True:
                        await client.get("/metrics")

            async with loop_probe(r.url) as probe:
                asking = [asyncio.create_task(scrape()) for _ in range(8)]
                began = time.perf_counter()
                failed = await failures(r, MODEL)
                took_s = time.perf_counter() - began
                for task in asking:
                    task.cancel()
                await asyncio.wait(asking)
                longest_ms = await probe.longest_ms()
            size = len((await r.http.get("/metrics")).content)
        measured("metrics of 400 engines: page", size / 1e6, 3, "MB")
        measured("metrics of 400 engines, 8 scrapers: longest gap", longest_ms, 100, "ms")
        measured("metrics of 400 engines, 8 scrapers: chats that fail", failed, 0, "of 60")
        measured("metrics of 400 engines, 8 scrapers: a chat", took_s / 60 * 1e3, 200, "ms")
