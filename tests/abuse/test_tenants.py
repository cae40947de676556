"""A tenant that is over its limits and goes on sending: what the other tenants notice."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import pytest

from tests.abuse.conftest import Measured
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine_process

pytestmark = pytest.mark.abuse

COMPLETIONS = "/v1/completions"
TRIES = 3  # the least counts: other processes of the machine delay answers as well
MOST = 1.2  # times the p99 of an idle fleet
VICTIMS, REQUESTS = 4, 60  # each, one after the other: 240 latencies
LIMITS = {
    "requests": {"requests_per_minute": 5},
    "tokens": {"tokens_per_minute": 1000},
    "budget": {"budget_per_day": 1},
}

_FLOOD = """
import os, socket, sys, threading
os.nice(19)  # on a machine of its own it would take nothing of these cores
host, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
body = b'{"model": "%s", "max_tokens": 1, "prompt": "' % sys.argv[4].encode() + b"word " * (size // 5) + b'"}'
head = (
    b"POST /v1/completions HTTP/1.1\\r\\nhost: r\\r\\nauthorization: Bearer greedy\\r\\n"
    b"content-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body)
)
def flood():
    while True:
        with socket.create_connection((host, port)) as connection:
            try:
                while True:
                    connection.sendall(head + body)
                    if not connection.recv(65536):
                        break
            except OSError:
                pass
for _ in range(10):
    threading.Thread(target=flood).start()
print("begun", flush=True)
"""


@contextmanager
def flooded(url: httpx.URL, size: int) -> Iterator[None]:
    """Let ten connections of the tenant `greedy` send prompts of `size` bytes as fast as they are answered."""
    arguments = [sys.executable, "-S", "-c", _FLOOD, url.host, str(url.port), str(size), MODEL]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def ask(http: httpx.AsyncClient, url: httpx.URL, key: str, prompt: str) -> int:
    """Return the status of a short answer."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
    answer = await http.post(url.join(COMPLETIONS), json=body, headers={"authorization": f"Bearer {key}"})
    return answer.status_code


async def use_up(url: httpx.URL) -> None:
    """Let `greedy` send small requests until one is refused."""
    async with httpx.AsyncClient(timeout=60.0) as http:
        while await ask(http, url, "greedy", "word " * 20) == 200:
            pass


async def p99_ms(url: httpx.URL, statuses: list[int]) -> float:
    """Return the 99th percentile of what victims wait for a short answer; their statuses are added to `statuses`."""
    loop, waits = asyncio.get_running_loop(), list[float]()

    async def ask_all(number: int) -> None:
        async with httpx.AsyncClient(timeout=60.0) as http:
            for n in range(REQUESTS):
                begun = loop.time()
                statuses.append(await ask(http, url, f"victim-{number}", f"{number} {n} says hello"))
                waits.append((loop.time() - begun) * 1e3)

    await asyncio.gather(*(ask_all(number) for number in range(VICTIMS)))
    return quantiles(waits, n=100)[-1]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("size", [2_000, 200_000])
async def test_a_tenant_over_its_limit_delays_no_other(
    router_process: Any, fleet_config: Any, tmp_path: Path, measured: Measured, limit: str, size: int
) -> None:
    """No tokenizer is configured, so prompts are tokenised by engines."""
    keys = tmp_path / "keys"
    names = ["greedy", *(f"victim-{number}" for number in range(VICTIMS))]
    keys.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in names))
    clients = {
        "keys_file": str(keys),
        "tenants": {"greedy": {"service_class": "limited"}},
        "service_classes": {"limited": {"limits": LIMITS[limit]}},
    }
    pace = {"prefill_tokens_per_s": 8000.0, "decode_ms_per_token": 10.0}
    async with engine_process(**pace) as one, engine_process(**pace) as two:
        config = fleet_config([one(), two()], clients=clients)
        config["tokenizers"] = {}
        async with router_process(config) as r:
            url, statuses = httpx.URL(r.url), list[int]()
            await p99_ms(url, [])
            idle_ms = await p99_ms(url, statuses)
            await use_up(url)
            attacked_ms = inf
            with flooded(url, size):
                for _ in range(TRIES):
                    attacked_ms = min(attacked_ms, await p99_ms(url, statuses))
                    if attacked_ms <= MOST * idle_ms:
                        break
            what = f"beside ten connections over their limit of {limit}, {size:,} bytes each"
            measured(f"victims refused {what}", len(statuses) - statuses.count(200), 0, f"of {len(statuses)}")
            measured(
                f"victims' p99 over that of an idle fleet ({idle_ms:.0f} ms) {what}", attacked_ms / idle_ms, MOST, "x"
            )
