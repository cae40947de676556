"""CPU time of the picker behind Envoy, in both profiles, beside the proxy in the same run; and Envoy's own.

The load, the engines and the policy are those of the data path's rows. In picker mode Envoy moves the bytes and the
router decides; what counts is the router's Python, which one process has one core for.
"""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from router.testbed.local_stack.preflight import free_ports
from tests.bench import load, routers
from tests.bench.answers import MODEL
from tests.bench.figures import Bar, Line, beside
from tests.bench.load import Shape
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
LAST_LOGS_S = 0.5  # Envoy's last batch of log entries comes within 0.1 s


class Way(NamedTuple):
    """A way to the engines: the router, the port that is asked, and the Envoy in between (None: the proxy)."""

    name: str
    router: Running
    port: int
    envoy: Running | None


@contextmanager
def envoy(name: str, text: str, folder: Path) -> Iterator[Running]:
    """Run an Envoy whose picker is healthy. Raises NotMeasured where there is none, or it does not get there."""
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
        while not (address.is_file() and _is_healthy(address.read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise NotMeasured(f"{name} has not found its picker healthy: {(folder / f'{name}.log').read_text()}")
            time.sleep(0.05)
        yield Running(name, _listener_port(address.read_text()), process.pid)
    finally:
        routers.stop(process)


def _fetch(admin: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{admin}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def _is_healthy(admin: str) -> bool:
    try:
        return "membership_healthy: 1" in _fetch(admin, "/stats?filter=cluster.picker.membership_healthy")
    except OSError:
        return False


def _listener_port(admin: str) -> int:
    return int(_fetch(admin, "/listeners").strip().rpartition(":")[2])


def start_paths(stack: ExitStack, backends: list[int], folder: Path, settings: dict[str, object]) -> list[Way]:
    """Start the proxy, and a picker of its own with an Envoy for each profile."""
    proxy = stack.enter_context(routers.warmroute(backends, folder, settings, "proxy"))
    paths = [Way("proxy", proxy, proxy.port, None)]
    for name, mode in (("thin", THIN), ("conforming", CONFORMING)):
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
        paths = start_paths(stack, backends, run.folder, dict(EVEN))
        seen = measure(run, paths, shape.requests, lambda path: uvloop.run(load.send(shape, path.port, MODEL)))
    lines = []
    for name in ("thin", "conforming"):
        limit = None if bar is None or name == "conforming" else Bar(bar, "ratio")
        what = f"{name} picker: Python per {shape.name}"
        lines.append(beside(what, shape.unit, seen[name], seen["proxy"], "the proxy", limit))
        lines.append(Line(f"{name} picker: Envoy per {shape.name}", shape.unit, seen[f"{name} Envoy"]))
    return lines


ROWS = (
    Row("picker-small", "small request behind Envoy", partial(through_envoy, SMALL, None), 80, 12),
    Row("picker-large", "320 KB request behind Envoy", partial(through_envoy, LARGE, None), 80, 12),
    Row("picker-stream", "100-chunk stream behind Envoy", partial(through_envoy, STREAM, STREAM_BAR), 110, 16),
)
