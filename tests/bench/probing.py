"""A prober beside another load: started, checked whether it still runs, and read when it is over."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench import routers
from tests.bench.row import NotMeasured

Seen = dict[int, list[float]]  # milliseconds of each request, by port


@contextmanager
def probing(
    ports: Sequence[int], body: Path, rate: float, seconds: float
) -> Iterator[tuple[Callable[[], Seen], Callable[[], bool]]]:
    """Yield a function that waits for the end and returns the figures, and one that says whether it still probes."""
    command = [sys.executable, "-m", "tests.bench.prober", "--body", str(body), "--rate", str(rate)]
    command += ["--seconds", str(seconds), "--ports", *map(str, ports)]
    with routers.child(command) as process:
        yield lambda: _read(process.communicate()[0]), lambda: process.poll() is None


def probe(ports: Sequence[int], body: Path, rate: float, seconds: float) -> Seen:
    """Probe with no other load."""
    with probing(ports, body, rate, seconds) as (seen, _):
        return seen()


def _read(told: bytes) -> Seen:
    if not told:
        raise NotMeasured("the prober ended without figures: not every request was answered")
    by_port = {int(port): one for port, one in json.loads(told).items()}
    if failed := {port: one["failed"] for port, one in by_port.items() if one["failed"]}:
        raise NotMeasured(f"requests that were not answered with 200, by port: {failed}")
    return {port: one["took_ms"] for port, one in by_port.items()}
