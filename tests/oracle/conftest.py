"""An engine, and a router in front of its twin: each gets the same requests in the same order."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import uvloop

from tests.e2e.conftest import (  # noqa: F401  fixtures
    RouterClient,
    fleet_config,
    router_of_module,
    router_process,
)
from tests.oracle.comparison import Comparison
from tests.oracle.corpus import BY_CACHE, HOST, JSON, Case, encode
from tests.oracle.http1 import Headers, Request, exchange

SAMPLE = re.compile(r"^warmroute_requests_total\{.*?\} ([\d.e+]+)", re.MULTILINE)
BATCH = 500
CREDENTIALS = (b"authorization", b"x-api-key")


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


class Alarm(logging.Handler):
    """Collects what a router in this process logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __enter__(self) -> Alarm:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


class Twins:
    """The engine at `engine_url`, and `router` in front of another one that is the same. Requests to the router have
    the header `key` in the place of the credentials that they have.
    """

    def __init__(self, engine_url: str, router: RouterClient, comparison: Comparison, key: Headers = ()) -> None:
        self._engine_url = engine_url
        self.router = router
        self.comparison = comparison
        self._key = key

    async def warm_up(self) -> None:
        """Let both engines have the prompts of the corpus in their caches, whatever the router refuses later."""
        for path in BY_CACHE:
            for url in (self._engine_url, self.router.url):
                await exchange(url, Request("POST", path, (HOST, JSON, *self._key), encode(path)))

    async def compare(self, cases: Iterable[Case]) -> list[str]:
        """Send each case to both; return what differs and is not listed, and what the router did not count, did not
        record, logged as an error, or answered with a 5xx of its own.
        """
        faults: list[str] = []
        with Alarm() as alarm:
            for batch in batched(cases, BATCH):
                faults += await self._compare(batch)
        return faults + [f"logged: {line}" for line in alarm.lines]

    async def _compare(self, cases: Sequence[Case]) -> list[str]:
        faults: list[str] = []
        records: dict[str, str] = {}
        before = await self._count()
        for case in cases:
            routed = case.request
            if self._key:
                others = tuple(one for one in routed.headers if one[0].lower() not in CREDENTIALS)
                routed = routed._replace(headers=(*others, *self._key))
            engine, router = await asyncio.gather(
                exchange(self._engine_url, case.request), exchange(self.router.url, routed)
            )
            if (fault := self.comparison.find_fault(case, engine, router)) is not None:
                faults.append(f"{case.name}: {fault}")
            if (id_ := router.header(b"x-warmroute-record")) is not None:
                records[id_.decode()] = case.name
            elif router.status >= 500:
                faults.append(f"{case.name}: {router.status} of the router's own")
        kept = {record["id"] for record in await self.router.records(BATCH) if record["done"]}
        faults += [f"{name}: no record of it" for id_, name in records.items() if id_ not in kept]
        if (counted := await self._count() - before) != len(cases):
            faults.append(f"{len(cases)} requests were sent and {counted} counted")
        return faults

    async def _count(self) -> int:
        page = (await self.router.http.get("/metrics")).text
        return int(sum(float(found) for found in SAMPLE.findall(page)))


def batched(cases: Iterable[Case], size: int) -> Iterator[Sequence[Case]]:
    """Yield the cases in lists of at most `size`."""
    left = iter(cases)
    while batch := list(islice(left, size)):
        yield batch
