"""The known attacks on servers of HTTP/2, at the picker's ports: what clients of the router and other gateways notice.

Each is a flood of frames that cost their sender nothing, over several connections of one address. Measured is what a
client on the public port waits, and a probe of another address on the attacked port; and what of the process it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pytest

from router.lab.local_stack.preflight import free_ports
from tests.abuse.raw import BENIGN, MB, dial
from tests.abuse.watch import LoopProbe, Waits, cpu_s, loop_probe, peak_bytes, reset_peak
from tests.e2e.conftest import LOCAL
from tests.fakes.engines import engine
from tests.fakes.http2 import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST,
    WATCH,
    WINDOW_SIZE,
    frame,
    headers,
    ids,
    message,
    question,
    settings,
    window,
)

pytestmark = pytest.mark.abuse

ATTACK_S = 1.5
TRIES = 3  # the least counts: other processes of the machine delay answers as well
HELD_MS, CPU_SHARE, GROWN_MB = 50.0, 0.5, 32.0
P99_MS = 10.0  # more than idle: the attackers run on the same cores
PROBE_MS = 1000.0
SERVING = message(b"\x08\x01")  # the answer to a probe
LOGS, EXT_PROC = (
    b"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs",
    b"/envoy.service.ext_proc.v3.ExternalProcessor/Process",
)
BLOCKED = settings((WINDOW_SIZE, 0)) + b"".join(question(id) for id in ids(1900))
"""1,900 calls whose answers wait for a window."""
ENTRIES = message(b"\x12\x00" * 10)  # an empty batch of log entries

Piece = Callable[[int], bytes]


class Attack(NamedTuple):
    """What an attacker sends on each connection: `first`, then `piece(n)` for each n below `pieces`; then anew."""

    first: bytes
    piece: Piece
    pieces: int = 40
    connections: int = 4
    holds: bool = False  # the connection stays
    drips: bool = False  # more comes byte by byte


def calls(each: Callable[[int], bytes], count: int = 500, first: int = 1) -> Piece:
    """Return what makes pieces of so many calls, with ids that go on."""
    return lambda n: b"".join(each(id) for id in ids(count, first + 2 * count * n))


def always(piece: bytes) -> Piece:
    return lambda n: piece


def bomb(n: int) -> bytes:
    """A header of 4 KB that is remembered, and calls that name it some thousand times."""
    entry = b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000
    return frame(HEADERS, 4, 4 * n + 1, entry) + frame(HEADERS, 4, 4 * n + 3, b"\xbe" * 15_000)


ATTACKS = {
    "SETTINGS over blocked calls (CVE-2019-9515)": Attack(BLOCKED, always(settings() * 3000)),
    "SETTINGS that move the window of blocked calls": Attack(
        BLOCKED, always((settings((WINDOW_SIZE, 1)) + settings((WINDOW_SIZE, 0))) * 1500)
    ),
    "one SETTINGS with 20,000 entries": Attack(
        BLOCKED, always(settings(*((WINDOW_SIZE, n % 2) for n in range(20_000)))), pieces=1
    ),
    "PING (CVE-2019-9512)": Attack(b"", always(frame(PING, 0, 0, bytes(8)) * 3000)),
    "calls that have to be refused (CVE-2019-9514)": Attack(b"", calls(lambda id: headers(id, b"/none"))),
    "rapid reset (CVE-2023-44487)": Attack(b"", calls(lambda id: headers(id, EXT_PROC) + frame(RST, 0, id, bytes(4)))),
    "rapid reset after a first message": Attack(
        b"",
        calls(lambda id: headers(id, LOGS) + frame(DATA, 0, id, ENTRIES) + frame(RST, 0, id, bytes(4))),
    ),
    "calls that make the server end them (CVE-2025-8671)": Attack(
        b"", calls(lambda id: headers(id, EXT_PROC) + frame(DATA, 0, id, b"\1" + bytes(4)))
    ),
    "windows that overflow (CVE-2025-8671)": Attack(b"", always(headers(1, EXT_PROC) + window(1, 2**31 - 1)), pieces=1),
    "empty DATA (CVE-2019-9518)": Attack(headers(1, EXT_PROC), always(frame(DATA, 0, 1) * 3000)),
    "windows byte by byte (CVE-2019-9511, 9517)": Attack(
        BLOCKED, lambda n: b"".join(window(id, 1) for id in (0, *ids(1900)))
    ),
    "PRIORITY and unknown frames (CVE-2019-9513)": Attack(
        b"", always((frame(PRIORITY, 0, 1, bytes(5)) + frame(77, 0, 0, b"?")) * 2000)
    ),
    "CONTINUATION (CVE-2024-27316)": Attack(
        b"", lambda n: frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, b"\x82") * 9000, pieces=1
    ),
    "header blocks that expand": Attack(b"", bomb),
    "empty messages in one frame": Attack(headers(1, LOGS), always(frame(DATA, 0, 1, bytes(250_000)))),
    "a frame byte by byte": Attack(
        headers(1, LOGS) + frame(DATA, 0, 1, bytes(200_000))[:-100_000], always(b""), 1, drips=True
    ),
    "calls without a message": Attack(b"", calls(lambda id: headers(id, EXT_PROC)), 50, 8, holds=True),
    "connections without a preface": Attack(b"", always(b""), 0, 600, holds=True),
    "new connections": Attack(b"", always(settings()), 1, 16),
    "questions": Attack(b"", calls(question)),
    "watches": Attack(b"", calls(lambda id: question(id, WATCH)), 50, 8, holds=True),
}


async def attack_from(port: int, attack: Attack, until_s: float, pieces: list[bytes]) -> None:
    """Attack on one connection after the other until then: a new one when the router has closed it."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until_s):
            while True:
                with suppress(ConnectionError):
                    await attack_once(port, attack, pieces)
                await asyncio.sleep(0.001)


async def discard(reader: asyncio.StreamReader) -> None:
    """Read until the connection ends, and keep nothing."""
    with suppress(ConnectionError):
        while await reader.read(MB):
            pass


async def attack_once(port: int, attack: Attack, pieces: list[bytes]) -> None:
    """Send it on one connection, reading all that is answered."""
    client = await dial(f"http://127.0.0.1:{port}")
    reading = asyncio.create_task(discard(client.reader))
    try:
        if attack.pieces:
            client.writer.write(PREFACE + settings() + attack.first)
        for piece in pieces:
            client.writer.write(piece)
            await client.writer.drain()
        while attack.drips and not client.closed:
            client.writer.write(b"\0")
            await client.writer.drain()
            await asyncio.sleep(0.0002)
        if attack.holds:
            await reading
    finally:
        reading.cancel()
        client.writer.transport.abort()
        await asyncio.gather(reading, return_exceptions=True)


async def probe(port: int) -> float:
    """Return how long another address waits for the answer of a health check on a new connection, ms; 5,000: none."""
    begun = asyncio.get_running_loop().time()
    client = await dial(f"http://127.0.0.1:{port}", BENIGN)
    try:
        client.send(PREFACE + settings() + question(1))
        async with asyncio.timeout(5):
            said = b""
            while SERVING not in said:
                data = await client.reader.read(65536)
                if not data:
                    return 5000.0
                said += data
    except (TimeoutError, ConnectionError):
        return 5000.0
    finally:
        client.writer.transport.abort()
    return (asyncio.get_running_loop().time() - begun) * 1e3


class Damage(NamedTuple):
    """What others notice, and what it takes of the process."""

    waits: Waits
    probe_ms: float
    cpu_share: float
    grown_mb: float


async def damage_of(attack: Attack, port: int, pid: int, clients: LoopProbe) -> Damage:
    loop = asyncio.get_running_loop()
    pieces = [attack.piece(n) for n in range(attack.pieces)]
    reset_peak(pid)
    before, used_s, begun_s = peak_bytes(pid), cpu_s(pid), loop.time()
    await clients.waits()
    until_s = begun_s + ATTACK_S
    attackers = [asyncio.create_task(attack_from(port, attack, until_s, pieces)) for _ in range(attack.connections)]
    await asyncio.sleep(ATTACK_S / 2)
    probe_ms = await probe(port)
    await asyncio.gather(*attackers)
    spent_s = loop.time() - begun_s
    share = (cpu_s(pid) - used_s) / spent_s
    return Damage(await clients.waits(), probe_ms, share, (peak_bytes(pid) - before) / MB)


def is_small(damage: Damage, idle: Waits) -> bool:
    return damage.waits.longest_ms <= HELD_MS and damage.waits.p99_ms <= idle.p99_ms * 1.2


@pytest.mark.parametrize("what", ATTACKS)
@pytest.mark.parametrize("named", ["picker", "health"])
async def test_an_attack_holds_up_nobody_else(router_process, fleet_config, measured, what: str, named: str) -> None:
    ports = dict(zip(("picker", "health"), free_ports(2), strict=True))
    picker = LOCAL | {"port": ports["picker"], "health_port": ports["health"], "tls": "off"}
    async with engine() as fake, router_process(fleet_config([fake], picker=picker)) as r, loop_probe(r.url) as clients:
        await clients.waits()
        await asyncio.sleep(ATTACK_S)
        idle = await clients.waits()
        tries: list[Damage] = []
        while len(tries) < TRIES and not (tries and is_small(tries[-1], idle)):
            tries.append(await damage_of(ATTACKS[what], ports[named], r.pid, clients))
        where = f"{named}: {what}"
        least = min(damage.waits.longest_ms for damage in tries)
        added = min(damage.waits.p99_ms for damage in tries) - idle.p99_ms
        measured(f"{where}: longest wait", least, HELD_MS, "ms")
        measured(f"{where}: p99 over the {idle.p99_ms:.1f} ms of an idle router", added, P99_MS, "ms")
        measured(f"{where}: wait of another address's probe", min(damage.probe_ms for damage in tries), PROBE_MS, "ms")
        measured(f"{where}: CPU", min(damage.cpu_share for damage in tries), CPU_SHARE, "of a core")
        measured(f"{where}: memory", max(damage.grown_mb for damage in tries), GROWN_MB, "MB")
