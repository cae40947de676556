"""A quarter of an hour of mixed load while engines die and come back: memory must not grow, bookings must close.

Emulated engines are child processes; every half minute one is killed outright and started again on its ports. Clients
send small requests, large ones, streams, streams that they abandon, and agents' growing chats. Failures while an engine
dies are not judged. The router alone is judged: its resident memory after the warm-up, first fifth against last, and
the requests that it counts as running when there are none any more. Its caches are bounded low, so that these bounds
are reached while it warms up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import httpx

from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from router.lab.emulator.vocabulary import DATA
from tests.bench import routers
from tests.bench.agent_turns import cache_aware_settings
from tests.bench.answers import MODEL
from tests.bench.asking import PATH
from tests.bench.figures import Bar, Line, grown_percent
from tests.bench.prompts import Chat, Words
from tests.bench.real_stack.engine_counters import CounterPage
from tests.bench.routers import Running
from tests.bench.row import BenchRun, Row

ENGINES = 4
OPTIONS: dict[str, Any] = {
    "model": MODEL, "blocks": 8192, "prefill_tokens_per_s": 200_000, "decode_ms_per_token": 5, "max_model_len": 65536,
}  # fmt: skip
BOUNDS: dict[str, Any] = {
    "tokens": {"memory_bytes": 8 << 20},
    "records": {"keep": 500},
    "index": {"approximate_blocks": 2000},
}
SMALL_PER_S, LARGE_EVERY_S, KILL_EVERY_S, SAMPLE_EVERY_S = 20, 3.0, 30.0, 2.0
STREAMS, LEAVERS, AGENTS = 8, 4, 4
CLOSED_S = 30.0  # in which everything that was under way has ended
Body = dict[str, Any]


def measure(run: BenchRun) -> list[Line]:
    logging.getLogger("warmroute.fleet").setLevel(logging.ERROR)  # that engines end is what is wanted
    return asyncio.run(_measure(run))


async def _measure(run: BenchRun) -> list[Line]:
    lasts_s, warm_up_s = run.effort.seconds(900.0, 32.0), run.effort.seconds(180.0, 15.0)
    engines = [EngineOptions(name=f"engine-{i}", seed=i, **OPTIONS) for i in range(ENGINES)]
    async with EmbeddedFleet(engines) as fleet:
        with ExitStack() as stack:
            ports = [int(member.url.rpartition(":")[2]) for member in fleet.members]
            router = stack.enter_context(routers.warmroute(ports, run.folder, cache_aware_settings(DATA, **BOUNDS)))
            clients = Clients(router.port, Words(DATA))
            async with clients.running():
                samples = await _watch(run, router, fleet, clients, lasts_s, warm_up_s)
            left = await _left(router)
    run.notes.append(f"answers by kind and end: {dict(sorted(clients.ends.items()))}")
    run.notes.append(f"resident memory {min(samples):.0f} to {max(samples):.0f} MB after the warm-up")
    return [
        Line(
            f"{lasts_s / 60:.0f} minutes: memory grown after the warm-up", "%", [grown_percent(samples)], bar=Bar(5.0)
        ),
        *(Line(what, "", [count], bar=Bar(0.0, take="worst")) for what, count in left.items()),
    ]


async def _watch(
    run: BenchRun, router: Running, fleet: EmbeddedFleet, clients: Clients, lasts_s: float, warm_up_s: float
) -> list[float]:
    """Kill engines in turn; return the router's resident megabytes since the warm-up."""
    began, samples, killed = time.monotonic(), [], 0
    while (passed := time.monotonic() - began) < lasts_s:
        await asyncio.sleep(SAMPLE_EVERY_S)
        if passed > warm_up_s:
            samples.append(router.rss_mb())
        if passed > (killed + 1) * min(KILL_EVERY_S, lasts_s / 5):
            with suppress(ProcessLookupError):  # it is just being started again
                os.kill(fleet.members[killed % ENGINES].pid, signal.SIGKILL)
            killed += 1
        run.report(f"{passed:.0f} of {lasts_s:.0f} s, {sum(clients.ends.values())} answers, {killed} engines killed")
    return samples


class Clients:
    """All clients. `ends` counts answers by kind and outcome."""

    def __init__(self, port: int, words: Words) -> None:
        self.ends: Counter[str] = Counter()
        self._words = words
        self._dice = random.Random(1)
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=60.0, limits=limits, trust_env=False
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        kinds: list[Callable[[], Awaitable[None]]] = [self._small, self._large]
        kinds += [self._streaming] * STREAMS + [self._leaving] * LEAVERS + [self._agent] * AGENTS
        async with self._http:
            tasks = [asyncio.ensure_future(self._again(kind)) for kind in kinds]
            yield
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if not isinstance(end, asyncio.CancelledError) and isinstance(end, BaseException):
                raise end

    async def _again(self, kind: Callable[[], Awaitable[None]]) -> None:
        while True:
            await kind()

    async def _small(self) -> None:
        await asyncio.sleep(1 / SMALL_PER_S)
        await self._post("small", self._body(f"What is {self._dice.random()}?", max_tokens=1))

    async def _large(self) -> None:
        await asyncio.sleep(LARGE_EVERY_S)
        chat = Chat(self._words, 20_000, seed=self._dice.getrandbits(40))
        await self._post("large", json.loads(chat.body()) | {"max_tokens": 2})

    async def _streaming(self) -> None:
        await self._stream("stream", self._body(f"Tell me of {self._dice.random()}", max_tokens=100), leave_after=None)

    async def _leaving(self) -> None:
        body = self._body(f"Tell me of {self._dice.random()}", max_tokens=200)
        await self._stream("left", body, leave_after=self._dice.randrange(30))

    async def _agent(self) -> None:
        chat = Chat(self._words, 4_000, seed=self._dice.getrandbits(40))
        session = {"x-session-id": f"{self._dice.getrandbits(40):x}"}
        for _ in range(20):
            await self._post("agent", json.loads(chat.body()) | {"max_tokens": 20}, session)
            await asyncio.sleep(self._dice.random())
            chat.turn(1000)

    def _body(self, text: str, max_tokens: int) -> Body:
        return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}

    async def _post(self, kind: str, body: Body, headers: dict[str, str] | None = None) -> None:
        try:
            answer = await self._http.post(PATH, json=body, headers=headers)
            self.ends[f"{kind} {answer.status_code}"] += 1
        except httpx.HTTPError as trouble:
            self.ends[f"{kind} {type(trouble).__name__}"] += 1

    async def _stream(self, kind: str, body: Body, leave_after: int | None) -> None:
        seen = 0
        try:
            async with self._http.stream("POST", PATH, json=body | {"stream": True}) as answer:
                async for _ in answer.aiter_raw():
                    seen += 1
                    if leave_after is not None and seen > leave_after:
                        break
            self.ends[f"{kind} {answer.status_code}"] += 1
        except httpx.HTTPError as trouble:
            self.ends[f"{kind} {type(trouble).__name__}"] += 1


async def _left(router: Running) -> dict[str, float]:
    """Return the requests that the router counts as running, by its metrics and its books, once that stops changing."""
    until = time.monotonic() + CLOSED_S
    while True:
        left = await asyncio.to_thread(_under_way, router)
        if not any(left.values()) or time.monotonic() > until:
            return left
        await asyncio.sleep(0.5)


def _under_way(router: Running) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{router.port}/metrics", timeout=10) as page:
        in_flight = CounterPage(page.read().decode()).total("warmroute_in_flight_requests")
    targets = [t["load"] for one in router.get_admin("/admin/instances")["instances"] for t in one["targets"]]
    booked = sum(load[what] for load in targets for what in ("requests", "prefilling", "prefill_tokens"))
    assert in_flight is not None
    return {"requests in flight at the end": in_flight, "booked at the end": float(booked)}


ROWS = (Row("soak", "mixed load while engines restart", measure, 910, 38),)
