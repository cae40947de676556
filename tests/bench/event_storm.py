"""Effect of 200,000 blocks of KV events per second on small requests: p99 with them minus p99 without, in one run.

64 targets publish over real ZeroMQ sockets (`publisher.py`), first filling up to a million blocks, then full, when each
new block is announced with the removal of another. Requests go through the router and past it at the same time, and the
wait of both on a busy machine is subtracted. Whether the router kept up is read from its index afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from router.lab.emulator.vocabulary import DATA
from tests.bench import routers
from tests.bench.agent_turns import cache_aware_settings
from tests.bench.figures import Bar, Line, quantile
from tests.bench.probing import probing
from tests.bench.prompts import Chat, Words
from tests.bench.routers import Running
from tests.bench.row import BenchRun, NotMeasured, Row

TARGETS, BLOCKS_PER_S, HELD_BLOCKS = 64, 200_000, 1_000_000
SMALL_PER_S = 100
JOINED_S, CAUGHT_UP_S = 30.0, 60.0
NOISE_MS = 3.0  # a quiet router that adds more than this at p99 is not what is measured: the machine is
Process = subprocess.Popen[bytes]


def measure(run: BenchRun) -> list[Line]:
    """Return the lines of the row. Raises NotMeasured when the publisher or the router did not keep up."""
    small = run.folder / "small.json"
    small.write_bytes(Chat(Words(DATA), 40, seed=7).body())
    capacity = HELD_BLOCKS // TARGETS
    fill_s = HELD_BLOCKS / BLOCKS_PER_S
    full_s, quiet_s = run.effort.seconds(8.0, 3.0), run.effort.seconds(4.0, 2.0)
    quiet: list[float] = []
    filling: list[float] = []
    full: list[float] = []
    with ExitStack() as stack:
        publisher = stack.enter_context(
            routers.child([sys.executable, "-m", "tests.bench.publisher", "--targets", str(TARGETS)])
        )
        backends = stack.enter_context(routers.engines(TARGETS))
        fleet = {"fleet": {"instances": instances(backends, read(publisher))}}
        router = stack.enter_context(routers.warmroute(backends, run.folder, cache_aware_settings(DATA, **fleet)))
        ports = (router.port, backends[0])
        wait_connected(router, publisher)
        for repetition in range(run.effort.repetitions):
            run.report(f"repetition {repetition + 1}: quiet")
            quiet.append(waited(*ports, small, quiet_s))
            run.report(f"repetition {repetition + 1}: filling")
            filling.append(poured(publisher, *ports, small, fill_s, capacity))
            wait_applied(run, router, publisher)
            run.report(f"repetition {repetition + 1}: full")
            full.append(poured(publisher, *ports, small, full_s, capacity))
            wait_applied(run, router, publisher)
            tell(publisher, "clear")
            wait_applied(run, router, publisher, 0)
    least = min(quiet)  # noise only adds, so the least is what the router takes
    if least > NOISE_MS:
        raise NotMeasured(f"too noisy: p99 of small requests is {least:.1f} ms over direct without any event")
    filling, full = ([ms - least for ms in some] for some in (filling, full))
    what = f"{BLOCKS_PER_S:,} blocks/s"
    return [
        Line(f"{what} that come: p99 of small requests, more than when quiet", "ms", filling, bar=Bar(2.0)),
        Line(f"{what}, half come and half go: the same", "ms", full, bar=Bar(2.0)),
    ]


def instances(backends: list[int], ports: list[int]) -> list[dict[str, Any]]:
    return [
        {"url": f"http://127.0.0.1:{backend}", "kv_events": [{"rank": 0, "endpoint": f"tcp://127.0.0.1:{port}"}]}
        for backend, port in zip(backends, ports, strict=True)
    ]


def poured(publisher: Process, router: int, direct: int, small: Path, seconds: float, capacity: int) -> float:
    tell(publisher, f"pour {BLOCKS_PER_S} {seconds} {capacity}", wait=False)
    return waited(router, direct, small, seconds)


def waited(router: int, direct: int, small: Path, seconds: float) -> float:
    """Return p99 through the router minus p99 past it, in milliseconds."""
    with probing([router, direct], small, SMALL_PER_S, seconds) as (seen, _):
        took_ms = seen()
    return quantile(took_ms[router], 0.99) - quantile(took_ms[direct], 0.99)


def tell(publisher: Process, command: str, wait: bool = True) -> Any:
    assert publisher.stdin is not None
    publisher.stdin.write(command.encode() + b"\n")
    publisher.stdin.flush()
    return read(publisher) if wait else None


def read(publisher: Process) -> Any:
    assert publisher.stdout is not None
    return json.loads(publisher.stdout.readline())


def count_indexed(router: Running) -> list[int]:
    """Return the number of blocks in the router's index by target; -1: it is not connected there yet."""
    streams = [t["stream"] for one in router.get_admin("/admin/instances")["instances"] for t in one["targets"]]
    return [-1 if stream is None else stream["blocks"]["gpu"] for stream in streams]


def wait_connected(router: Running, publisher: Process) -> None:
    """Wait until every target is connected. Raises NotMeasured after a deadline."""
    until = time.monotonic() + JOINED_S
    while time.monotonic() < until:
        tell(publisher, f"pour {BLOCKS_PER_S} 0.1 {HELD_BLOCKS}")  # a step of each target, and some
        time.sleep(0.5)
        if len(seen := count_indexed(router)) == TARGETS and min(seen) > 0:
            tell(publisher, "clear")
            return
    raise NotMeasured(f"not all {TARGETS} publishers were heard within {JOINED_S:g} s")


def wait_applied(run: BenchRun, router: Running, publisher: Process, held: int | None = None) -> None:
    """Wait until the index holds what was published; add a note if it is late. Raises NotMeasured after a deadline."""
    if held is None:
        poured = read(publisher)
        held = poured["held"]
        if poured["behind_s"] > 0.5:
            run.notes.append(f"the publishers came {poured['behind_s']:.1f} s late: not quite {BLOCKS_PER_S:,}/s")
    began = time.monotonic()
    while (seen := sum(count_indexed(router))) != held:
        if time.monotonic() - began > CAUGHT_UP_S:
            raise NotMeasured(f"the index holds {seen:,} blocks, the publishers {held:,}: events were lost")
        time.sleep(0.1)
    if (late_s := time.monotonic() - began) > 1.0:
        run.notes.append(f"the router was {late_s:.1f} s behind when the events ended")


ROWS = (Row("event-storm", "small requests while events pour in", measure, 150, 25),)
