"""CPU time of the picker behind Envoy, in both profiles, beside the proxy in the same run; and Envoy's own.

The load, the engines and the policy are those of the data path's rows. In picker mode Envoy moves the bytes and the
router decides; what counts is the router's Python, which one process has one core for.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from router.lab.emulator.vocabulary import DATA
from router.lab.local_stack.preflight import free_ports
from tests.bench import load, routers
from tests.bench.agent_turns import cache_aware_settings, check_local, warm_turns
from tests.bench.answers import MODEL
from tests.bench.figures import Bar, Line, beside, quantile
from tests.bench.load import DEADLINE_S, LoadFailed, Shape
from tests.bench.prompts import Words
from tests.bench.routers import EVEN, Running
from tests.bench.row import BenchRun, NotMeasured, Row
from tests.gateway.configurations import CONFORMING, THIN, configuration
from tests.gateway.envoy import ADMIN
from tests.gateway.install import program, why_missing

SMALL = Shape("200-byte request", "us", requests=3000, connections=8, body_bytes=200)
LARGE = Shape("320 KB request", "us", requests=600, connections=4, body_bytes=320_000)
STREAM = Shape("100-chunk stream", "us", requests=600, connections=24, body_bytes=200, chunks=100)
SPACING_MS = 5.0  # between chunks: they come one by one, as from an engine
STREAM_BAR = 0.4  # of the proxy's Python
STARTED_S = 30.0
WARM_TOKENS, WARM_BAR_MS = 100_000, 50.0  # 0.05 of a core per request/s; llm-d says 0.5 to 1
CROWD, CROWD_BODY_BYTES, CROWD_BAR_MS = 150, 220_000, 50.0  # the Gateway API inference extension reports 1,141 ms
CROWD_CHUNKS, CROWD_SPACING_MS = 20, 100.0  # an answer takes 2 s: 75 requests/s
LAST_LOGS_S = 0.5  # Envoy's last batch of log entries comes within 0.1 s


class Way(NamedTuple):
    """A way to the engines: the router, the port that is asked, and the Envoy in between (None: the proxy)."""

    name: str
    router: Running
    port: int
    envoy: Running | None


@contextmanager
def envoy(name: str, text: str, folder: Path, *, asks: bool = True) -> Iterator[Running]:
    """Run an Envoy; if it `asks`, its picker is healthy. Raises NotMeasured where there is none, or it does not get
    there.
    """
    if (reason := why_missing("envoy")) is not None:
        raise NotMeasured(reason)
    file, address = folder / f"{name}.yaml", folder / f"{name}.admin"
    file.write_text(text)
    command = [str(program("envoy")), "-c", str(file), "--config-yaml", ADMIN, "--admin-address-path", str(address)]
    command += ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    with (folder / f"{name}.log").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + STARTED_S
        stat = "cluster.picker.membership_healthy: 1" if asks else "cluster.engines.membership_total: "
        while not (address.is_file() and _has_stat(address.read_text(), stat)):
            if time.monotonic() > deadline or process.poll() is not None:
                raise NotMeasured(f"{name} has not found its picker healthy: {(folder / f'{name}.log').read_text()}")
            time.sleep(0.05)
        yield Running(name, _listener_port(address.read_text()), process.pid)
    finally:
        routers.stop(process)


def _fetch(admin: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{admin}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def _has_stat(admin: str, line: str) -> bool:
    try:
        return line in _fetch(admin, "/stats?filter=cluster.*.membership")
    except OSError:
        return False


def _listener_port(admin: str) -> int:
    return int(_fetch(admin, "/listeners").strip().rpartition(":")[2])


def start_ways(
    stack: ExitStack,
    backends: list[int],
    folder: Path,
    settings: dict[str, Any],
    profiles: Sequence[str] = ("thin", "conforming"),
) -> list[Way]:
    """Start the proxy, and a picker of its own with an Envoy for each of the profiles."""
    proxy = stack.enter_context(routers.warmroute(backends, folder, settings, "proxy"))
    paths = [Way("proxy", proxy, proxy.port, None)]
    for name in profiles:
        mode = THIN if name == "thin" else CONFORMING
        port, health_port = free_ports(2)
        picker = {"host": "127.0.0.1", "port": port, "health_port": health_port, "tls": "off"}
        router = stack.enter_context(routers.warmroute(backends, folder, settings | {"picker": picker}, name))
        gateway = stack.enter_context(envoy(f"envoy-{name}", configuration(port, mode, logs=mode is THIN), folder))
        paths.append(Way(name, router, gateway.port, gateway))
    return paths


def measure(run: BenchRun, paths: list[Way], units: int, send: Callable[[Way], None]) -> dict[str, list[float]]:
    """Return microseconds of CPU per unit and repetition, by path, and by `PATH Envoy`. The first round warms up."""
    seen: dict[str, list[float]] = {}
    for repetition in range(run.effort.repetitions + 1):
        for path in paths if repetition % 2 else paths[::-1]:
            run.report(f"{path.name}, {repetition} of {run.effort.repetitions}")
            watched = {path.name: path.router} | ({} if path.envoy is None else {f"{path.name} Envoy": path.envoy})
            before = {name: running.cpu_s() for name, running in watched.items()}
            send(path)
            time.sleep(LAST_LOGS_S if path.envoy else 0)
            for name, running in watched.items():
                if repetition:
                    seen.setdefault(name, []).append((running.cpu_s() - before[name]) * 1e6 / units)
    return seen


def through_envoy(shape: Shape, bar: float | None, run: BenchRun) -> list[Line]:
    shape = shape.shrunk(run.effort.of(1, 3))
    spacing = SPACING_MS if shape.chunks else None
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(2, spacing_ms=spacing))
        paths = start_ways(stack, backends, run.folder, dict(EVEN))
        seen = measure(run, paths, shape.requests, lambda path: uvloop.run(load.send(shape, path.port, MODEL)))
    lines = []
    for name in ("thin", "conforming"):
        limit = None if bar is None or name == "conforming" else Bar(bar, "ratio")
        what = f"{name} picker: Python per {shape.name}"
        lines.append(beside(what, shape.unit, seen[name], seen["proxy"], "the proxy", limit))
        lines.append(Line(f"{name} picker: Envoy per {shape.name}", shape.unit, seen[f"{name} Envoy"]))
    return lines


def warm(run: BenchRun) -> list[Line]:
    """Return the picker's CPU per turn of an agent whose long prompt is known but for its end."""
    with routers.engines(4, events=True) as backends, ExitStack() as stack:
        way = start_ways(stack, backends, run.folder, cache_aware_settings(DATA), ("thin",))[-1]
        gateway = Running("thin picker", way.port, way.router.pid, way.router.admin)
        added, cpu_ms = warm_turns(run, gateway, backends[0], Words(DATA), WARM_TOKENS)
        check_local(gateway)
    what = f"thin picker, {WARM_TOKENS:,} tokens warm"
    return [
        Line(f"{what}: Python per request", "ms", cpu_ms, bar=Bar(WARM_BAR_MS)),
        Line(f"{what}: added before the engine sees it, p50", "ms", [quantile(some, 0.5) for some in added]),
    ]


def crowd(run: BenchRun) -> list[Line]:
    """Return what the picker adds to the first byte for 150 clients with large bodies at once, at the 99th percentile:
    through Envoy with the picker, minus through an Envoy that asks nobody.
    """
    requests = CROWD * run.effort.of(4, 2)
    asked = {
        "model": MODEL,
        "stream": True,
        "max_tokens": CROWD_CHUNKS,
    }  # the engine of the benchmark looks at the start
    body = json.dumps(asked | {"messages": [{"role": "user", "content": "warm " * (CROWD_BODY_BYTES // 5)}]}).encode()
    added: dict[str, list[float]] = {"thin": [], "conforming": []}
    with routers.engines(2, spacing_ms=CROWD_SPACING_MS) as backends, ExitStack() as stack:
        ways = start_ways(stack, backends, run.folder, dict(EVEN))
        addresses = [f"127.0.0.1:{port}" for port in backends]
        alone = configuration(0, None, engines=addresses)
        bare = stack.enter_context(envoy("envoy-alone", alone, run.folder, asks=False))
        for repetition in range(run.effort.repetitions):
            run.report(f"{CROWD} clients, repetition {repetition + 1}")
            before = quantile(uvloop.run(first_byte_ms(bare.port, body, requests)), 0.99)
            for way in ways[1:]:
                through = quantile(uvloop.run(first_byte_ms(way.port, body, requests)), 0.99)
                added[way.name].append(through - before)
    what = f"added to the first byte, {CROWD} clients with 220 KB bodies, p99"
    return [Line(f"{name} picker: {what}", "ms", some, bar=Bar(CROWD_BAR_MS)) for name, some in added.items()]


async def first_byte_ms(port: int, body: bytes, requests: int) -> list[float]:
    """Return the milliseconds from each request to the first byte of its answer; a client sends one after the other."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    request = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
    times: list[float] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(number / CROWD * CROWD_CHUNKS * CROWD_SPACING_MS / 1e3)  # not all at the same moment
        for _ in range(requests // CROWD):
            began = time.perf_counter()
            writer.write(request)
            status = await reader.readuntil(b"data: ")
            times.append((time.perf_counter() - began) * 1e3)
            if b" 200 " not in status:
                raise LoadFailed(f"port {port}: {status[:60]!r}")
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for number in range(CROWD):
            group.create_task(client(number))
    return times


ROWS = (
    Row("picker-small", "small request behind Envoy", partial(through_envoy, SMALL, None), 50, 12),
    Row("picker-large", "320 KB request behind Envoy", partial(through_envoy, LARGE, None), 50, 12),
    Row("picker-warm", "100,000 tokens warm behind Envoy", warm, 60, 12),
    Row("picker-crowd", "150 clients with 220 KB behind Envoy", crowd, 160, 30),
    Row("picker-stream", "100-chunk stream behind Envoy", partial(through_envoy, STREAM, STREAM_BAR), 110, 16),
)
