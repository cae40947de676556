"""A receiver of traces that answers without end: spans are exported, and requests are served."""

from __future__ import annotations

import asyncio

from tests.abuse.conftest import Measured
from tests.abuse.hostile_engine import hostile_engine
from tests.abuse.raw import MB, chat
from tests.abuse.watch import loop_probe, peak_bytes, reset_peak
from tests.fakes.engines import engine, eventually

TRACES = "/v1/traces"
BATCHES = 5
GROWN_MB = 24.0


async def test_an_answer_without_end_is_not_read(router_process, fleet_config, measured: Measured) -> None:
    cut = 0  # answers that the router stopped reading

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal cut
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(MB))
                await writer.drain()
        finally:
            cut += 1

    async with engine() as fake, hostile_engine() as receiver:
        receiver.answers[TRACES] = answer
        config = fleet_config([fake], tracing={"endpoint": receiver.url + TRACES, "sample_ratio": 1})
        async with router_process(config) as r, loop_probe(r.url) as probe:
            assert await chat(r.url) == 200
            reset_peak(r.pid)
            before = peak_bytes(r.pid)
            await probe.longest_ms()
            for number in range(BATCHES):
                assert await chat(r.url) == 200
                await eventually(lambda number=number: cut > number)
            what = "a receiver of traces answers without end"
            measured(f"{what}: longest wait", await probe.longest_ms(), 250, "ms")
            measured(f"{what}: memory", (peak_bytes(r.pid) - before) / MB, GROWN_MB, "MB")
            assert await r.metric("warmroute_traces_total", end="exported") >= BATCHES
