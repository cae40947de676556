"""A receiver of traces that answers without end: spans are exported, and requests are served."""

from __future__ import annotations

import asyncio

from tests.abuse.conftest import Measured
from tests.abuse.raw import MB, chat
from tests.abuse.watch import loop_probe, peak_bytes, reset_peak
from tests.fakes.engines import engine, eventually

BATCHES = 5
GROWN_MB = 24.0


class EndlessReceiver:
    """Takes every post and answers with as many bytes as the router reads."""

    def __init__(self) -> None:
        self.posts = 0
        self.cut = 0  # answers that the router stopped reading

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.posts += 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
            while True:
                writer.write(bytes(MB))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.cut += 1
        finally:
            writer.close()


async def test_an_answer_without_end_is_not_read(router_process, fleet_config, measured: Measured) -> None:
    receiver = EndlessReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with engine() as fake, server:
        config = fleet_config([fake], tracing={"endpoint": endpoint, "sample_ratio": 1})
        async with router_process(config) as r, loop_probe(r.url) as probe:
            assert await chat(r.url) == 200
            reset_peak(r.pid)
            before = peak_bytes(r.pid)
            await probe.longest_ms()
            for number in range(BATCHES):
                assert await chat(r.url) == 200
                await eventually(lambda number=number: receiver.cut > number)
            what = "a receiver of traces answers without end"
            measured(f"{what}: longest wait", await probe.longest_ms(), 250, "ms")
            measured(f"{what}: memory", (peak_bytes(r.pid) - before) / MB, GROWN_MB, "MB")
            assert await r.metric("warmroute_traces_total", end="exported") >= BATCHES
