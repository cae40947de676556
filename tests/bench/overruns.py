"""By how much workers exceed together what one would never exceed: limits of a tenant, and places of admission.

Each is filled at once by more requests than it allows, on connections of their own, so that all workers get them in the
same moment, before they know of each other's.

    python -m tests.bench.overruns [workers ...]
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import uvloop

from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from tests.bench.workers import router_of

AT_ONCE = 200
CONCURRENT, PER_MINUTE, PER_TARGET, ENGINES = 20, 100, 10, 2
LONG = {"model": "warm-tiny", "prompt": "Once", "max_tokens": 2_000, "ignore_eos": True, "stream": True}
SHORT = {"model": "warm-tiny", "prompt": "Once", "max_tokens": 1}
HEADERS = {"authorization": "Bearer k"}


def limited(folder: Path, limits: dict[str, int]) -> dict[str, Any]:
    """Return the sections for one tenant with these limits."""
    keys = folder / "keys"
    keys.write_text(f"{hashlib.sha256(b'k').hexdigest()} acme\n")
    tenants = {"acme": {"service_class": "small"}}
    return {"clients": {"keys_file": str(keys), "tenants": tenants, "service_classes": {"small": {"limits": limits}}}}


async def fill(port: int, body: dict[str, Any], hold_s: float) -> int:
    """Send `AT_ONCE` requests at once. Return how many were answered with 200; streams are held for a while."""

    async def one(client: httpx.AsyncClient) -> int:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code == 200 and hold_s:
                await asyncio.sleep(hold_s)
            return int(answer.status_code == 200)

    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS, limits=limits, timeout=60) as c:
        return sum(await asyncio.gather(*(one(c) for _ in range(AT_ONCE))))


async def most_running(port: int, ports: list[int], seconds: float) -> int:
    """Return the most requests that ran on all engines at once, while `AT_ONCE` want to."""
    begun = [asyncio.create_task(fill(port, LONG, seconds))]
    most, until = 0, time.monotonic() + seconds
    async with httpx.AsyncClient(timeout=60) as client:
        while time.monotonic() < until:
            pages = [await client.get(f"http://127.0.0.1:{one}/metrics") for one in ports]
            lines = [line for page in pages for line in page.text.splitlines() if "num_requests_running{" in line]
            most = max(most, round(sum(float(line.rpartition(" ")[2]) for line in lines)))
            await asyncio.sleep(0.05)
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
    return most


async def measure(workers: int, folder: Path) -> dict[str, int]:
    """Return by how much each is exceeded."""
    options = [
        EngineOptions(
            name=f"engine-{n}", blocks=20_000, prefill_tokens_per_s=20_000.0, decode_ms_per_token=50.0, seed=n
        )
        for n in range(ENGINES)
    ]
    found = {}
    async with EmbeddedFleet(options) as fleet:
        ports = [int(member.url.rpartition(":")[2]) for member in fleet.members]
        admission = {"admission": {"enabled": True, "rule": {"name": "concurrency", "per_target": PER_TARGET}}}
        cases: list[tuple[str, dict[str, Any]]] = [
            ("concurrent", limited(folder, {"concurrent": CONCURRENT})),
            ("requests_per_minute", limited(folder, {"requests_per_minute": PER_MINUTE})),
            ("places of admission", admission),
        ]
        for name, sections in cases:
            opened = router_of(ports, folder, workers, sections)
            running = await asyncio.to_thread(opened.__enter__)
            try:
                if name == "concurrent":
                    found[name] = await fill(running.port, LONG, 2.0) - CONCURRENT
                elif name == "requests_per_minute":
                    found[name] = await fill(running.port, SHORT, 0.0) - PER_MINUTE
                else:
                    found[name] = await most_running(running.port, ports, 4.0) - PER_TARGET * ENGINES
            finally:
                await asyncio.to_thread(opened.__exit__, None, None, None)
    return found


def main() -> None:
    for workers in map(int, sys.argv[1:] or ("1", "2", "4", "8")):
        with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
            print(workers, uvloop.run(measure(workers, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
