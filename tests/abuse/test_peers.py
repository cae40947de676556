"""Strangers and confused members at the port of `replicas`: routers go on exchanging, and clients notice nothing."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import zmq

from router.control.peers.frames import Sender, encode_frame
from router.control.peers.messages import BlocksSent, LoadMessage, SessionMoved
from router.control.peers.sockets import derive_curve_keys
from router.fleet.worker_share import WorkerShare
from router.lab.local_stack.preflight import free_ports
from tests.abuse.conftest import Measured
from tests.abuse.raw import MB, RawClient, chat, dialled
from tests.abuse.watch import loop_probe, open_files, peak_bytes, reset_peak
from tests.e2e.conftest import RouterProcess
from tests.fakes.engines import engine, eventually
from tests.router.control.peers.replica import Replica, address

SECRET, VARIABLE = b"0123456789abcdef" * 2, "WARMROUTE_TEST_REPLICAS"
HANDSHAKE_S = 2.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
TALKERS = {
    "random bytes": lambda: secrets.token_bytes(4096),
    "HTTP": lambda: b"GET / HTTP/1.1\r\nhost: r\r\n\r\n" * 50,
    "a greeting of no mechanism": lambda: GREETING.replace(b"CURVE", b"NULL\0") + b"\x04\x05\x05READY",
    "a handshake that is none": lambda: GREETING + b"\x04\xc8\x05HELLO" + secrets.token_bytes(194),
    "a frame of 2^63 bytes": lambda: GREETING + b"\x06" + struct.pack(">Q", 1 << 63) + bytes(1000),
}
IDLE = 1_000
MEMBER = Sender("confused", "confused")


@asynccontextmanager
async def pair(router_process: Any, fleet_config: Any) -> AsyncIterator[tuple[RouterProcess, Replica, int]]:
    """Yield a router with an engine, another router that it exchanges with, and the port of the first one."""
    ports = free_ports(2)
    peers = [address(port) for port in ports]
    replicas = {"peers": peers, "secret_env": VARIABLE, "host": "127.0.0.1", "port": ports[0]}
    other = Replica("b", ports[1], peers, secret=SECRET)
    async with engine() as fake:
        config = fleet_config([fake], replicas=replicas)
        async with router_process(config, env={VARIABLE: SECRET.decode()}) as r:
            await other.start()
            try:
                await eventually(lambda: len(other.exchange.runs()) == 1)
                yield r, other, ports[0]
                await eventually(lambda: len(other.exchange.runs()) == 1)
            finally:
                await other.close()


async def test_strangers_are_cut_off_and_leave_nothing(router_process, fleet_config, measured: Measured) -> None:
    async with pair(router_process, fleet_config) as (r, _, port), loop_probe(r.url) as probe:
        before, files, logged = r.rss_bytes, open_files(r.pid), len(r.log)
        url = f"http://127.0.0.1:{port}"
        for bytes_of in TALKERS.values():
            async with dialled(url, 20) as clients:
                for client in clients:
                    client.send(bytes_of())
                for client in clients:
                    await client.rest(3 * HANDSHAKE_S)
        async with dialled(url, IDLE) as clients:
            assert await chat(r.url) == 200
            await asyncio.gather(*(client.rest(10 * HANDSHAKE_S) for client in clients))
        await eventually(lambda: open_files(r.pid) <= files + 2)
        what = f"{20 * len(TALKERS) + IDLE:,} strangers at the port of replicas"
        measured(f"{what}: longest wait", await probe.longest_ms(), 150, "ms")
        measured(f"{what}: memory", (r.rss_bytes - before) / MB, 24, "MB")
        measured(f"{what}: log", len(r.log) - logged, 0, "bytes")


@pytest.mark.abuse
async def test_a_handshake_takes_what_is_sent_in_two_seconds(router_process, fleet_config, measured: Measured) -> None:
    """ZeroMQ has no bound of its own for a frame of the handshake, only for any frame: 64 MB for each connection."""

    async def flood(client: RawClient) -> None:
        with suppress(ConnectionError):
            client.send(GREETING + b"\x06" + struct.pack(">Q", 60 * MB))
            for _ in range(60):
                client.send(bytes(MB))
                await client.writer.drain()

    async with (
        pair(router_process, fleet_config) as (r, _, port),
        dialled(f"http://127.0.0.1:{port}", 8) as clients,
    ):
        reset_peak(r.pid)
        before = peak_bytes(r.pid)
        await asyncio.gather(*(flood(client) for client in clients))
        measured("8 handshakes of 60 MB: memory meanwhile", (peak_bytes(r.pid) - before) / MB, 8 * 64, "MB")
        await eventually(lambda: r.rss_bytes - before < 24 * MB)


def frame(*messages: Any) -> bytes:
    return encode_frame("direct", MEMBER, 0, 1.0, messages)


CONFUSED: dict[str, Callable[[int], bytes]] = {
    "random bytes": lambda n: secrets.token_bytes(300),
    "random messages": lambda n: encode_frame("news", MEMBER, n, 1.0)[:-1] + secrets.token_bytes(300),
    "30 MB of nothing": lambda n: bytes(30 * MB) if n == 0 else b"",
    "loads of unknown targets": lambda n: frame(LoadMessage(f"unknown-{n % 1000}/0", WorkerShare(1, 1, 9, 9.0, 9, 9))),
    "sessions": lambda n: frame(SessionMoved(False, "m", f"session-{n}", "unknown/0", 1.0)),
    "blocks of unknown targets": lambda n: frame(BlocksSent(f"unknown-{n}/0", secrets.token_bytes(80))),
    "blocks that are none": lambda n: frame(BlocksSent("unknown/0", b"1234567")),
    "queries": lambda n: encode_frame("ask", MEMBER, n, 1.0, [], ""),
    "other versions": lambda n: b"\x94" + bytes([3 + n % 100]) + b"\xa4news\xa1h\xa1x",
}


@pytest.mark.abuse
async def test_a_member_that_sends_nonsense_stops_no_exchange(router_process, fleet_config, measured: Measured) -> None:
    """It has the secret: a build gone wrong, or a fleet of another purpose with the same secret."""
    context = zmq.Context()
    try:
        async with pair(router_process, fleet_config) as (r, _, port), loop_probe(r.url) as probe:
            keys, socket = derive_curve_keys(SECRET), context.socket(zmq.DEALER)
            options = {zmq.CURVE_PUBLICKEY: keys.public, zmq.CURVE_SECRETKEY: keys.secret, zmq.LINGER: 0}
            for option, value in (options | {zmq.CURVE_SERVERKEY: keys.public, zmq.SNDHWM: 0}).items():
                socket.setsockopt(option, value)
            socket.connect(f"tcp://{address(port)}")
            before, logged = r.rss_bytes, len(r.log)
            for what, make in CONFUSED.items():

                async def send(make: Callable[[int], bytes] = make) -> None:
                    for number in range(3_000):
                        socket.send(make(number))
                    socket.send(encode_frame("beat", MEMBER, 0, 1.0))
                    assert await chat(r.url) == 200
                    assert await asyncio.to_thread(socket.poll, 30_000), "the beat is not acknowledged"
                    socket.recv()

                measured(f"a member sends {what}: longest wait", await probe.standstill_ms(send, 100), 250, "ms")
            socket.close()
            measured("a member that sends nonsense: memory", (r.rss_bytes - before) / MB, 96, "MB")
            measured("a member that sends nonsense: log", len(r.log) - logged, 10_000, "bytes")
            assert b"Traceback" not in r.log, r.log[-2000:]
    finally:
        context.destroy(linger=0)
