"""A real Prometheus for a test: `async with Prometheus.run({JOB: addresses}, folder, guard) as running`.

It scrapes the routers of each job once a second and evaluates the shipped alerts, with Prometheus' defaults besides.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from router.lab.local_stack.guard import ProcessGuard
from router.lab.local_stack.preflight import free_ports
from tests.gateway.alerts import RULES
from tests.gateway.install import program
from tests.stack.children import Child

START_S = 30.0
JOB = "warmroute"
NUMBERS = itertools.count()

Labels = dict[str, str]


class Prometheus:
    """A running Prometheus."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def run(
        cls,
        jobs: Mapping[str, Sequence[str]],
        folder: Path,
        guard: ProcessGuard,
        *,
        honor_labels: bool = False,
        rules: Path = RULES,
    ) -> AsyncIterator[Self]:
        """Start it, wait until it is ready, end it. Its log and data are in `folder`."""
        name, (port,) = f"prometheus-{next(NUMBERS)}", free_ports(1)
        scrapes = [
            {"job_name": job, "honor_labels": honor_labels, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in jobs.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": scrapes,
        }
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        options = {"config.file": file, "storage.tsdb.path": folder / name, "web.listen-address": f"127.0.0.1:{port}"}
        command = [str(program("prometheus")), *(f"--{option}={value}" for option, value in options.items())]
        child = Child(name, command, folder, guard=guard)
        child.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                await asyncio.to_thread(child.wait, lambda: _is_ready(str(http.base_url)), START_S)
                yield cls(http)
        finally:
            child.kill()

    async def scrapes(self) -> int:
        """Return how often each router was scraped with success, the fewest of them."""
        found = await self.read("query", query="min(sum_over_time(up[1h]))")
        return int(float(found["result"][0]["value"][1])) if found["result"] else 0

    async def series(self, expression: str, since: float, until: float) -> list[Labels]:
        """Return the series of `expression` that had a number at some second of that time. Raises AssertionError for
        one that cannot be evaluated.
        """
        found = await self.read("query_range", query=expression, start=since, end=until, step=1)
        return [
            one["metric"] for one in found["result"] if any(math.isfinite(float(value)) for _, value in one["values"])
        ]

    async def firing(self, since: float | None = None) -> list[Labels]:
        """Return the labels of the alerts that fire now, or that fired at some second since then."""
        expression, now = 'ALERTS{alertstate="firing"}', time.time()
        return await self.series(expression, now if since is None else since, now)

    async def read(self, path: str, **parameters: Any) -> Any:
        """Return `data` of an answer of its HTTP API."""
        content = (await self._http.get(f"/api/v1/{path}", params=parameters)).json()
        assert content["status"] == "success", f"{parameters}: {content.get('error')}"
        return content["data"]


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
