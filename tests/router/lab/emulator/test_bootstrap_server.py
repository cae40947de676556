"""Blocks held for peers: which peer gets them, and when they are freed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from router.lab.emulator.disaggregation import BootstrapServer
from tests.fakes.engines import eventually


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[BootstrapServer, httpx.AsyncClient]]:
    bootstrap = BootstrapServer("127.0.0.1", 0, 1)
    async with bootstrap, httpx.AsyncClient(base_url=bootstrap.url) as http:
        yield bootstrap, http


async def fetch(
    bootstrap: BootstrapServer, http: httpx.AsyncClient, name: str, wait_s: float = 0.0, **more: Any
) -> int:
    request = {"engine_id": bootstrap.engine_ids[0], "name": name, "wait_s": wait_s} | more
    return (await http.post("/emulate/fetch", json=request)).status_code


async def test_it_is_given_away_once() -> None:
    freed: list[str] = []
    async with opened() as (bootstrap, http):
        bootstrap.hold("a", lambda: freed.append("a"), 30)
        assert await fetch(bootstrap, http, "a", engine_id="another") == 404
        assert freed == []
        assert await fetch(bootstrap, http, "a") == 200
        assert freed == ["a"]
        assert await fetch(bootstrap, http, "a") == 410
        assert (await http.get("/elsewhere")).status_code == 404


async def test_of_two_that_wait_for_it_one_gets_it() -> None:
    freed: list[str] = []
    async with opened() as (bootstrap, http):
        both = [asyncio.create_task(fetch(bootstrap, http, "a", 0.3)) for _ in range(2)]
        await eventually(lambda: "a" in bootstrap._held)
        bootstrap.hold("a", lambda: freed.append("a"), 30)
        assert sorted(await asyncio.gather(*both)) == [200, 410]
        assert freed == ["a"]


async def test_it_is_freed_in_time_and_so_is_an_older_one_of_the_same_name() -> None:
    freed: list[int] = []
    async with opened() as (bootstrap, http):
        bootstrap.hold("a", lambda: freed.append(1), 30)
        bootstrap.hold("a", lambda: freed.append(2), 0.01)
        assert freed == [1]
        await eventually(lambda: freed == [1, 2])
        assert await fetch(bootstrap, http, "a") == 410


async def test_a_restart_forgets_what_was_kept_and_who_it_was() -> None:
    async with opened() as (bootstrap, http):
        before = bootstrap.engine_ids[0]
        bootstrap.hold("a", lambda: None, 30)
        bootstrap.restart()
        assert await fetch(bootstrap, http, "a") == 410
        assert await fetch(bootstrap, http, "a", engine_id=before) == 404
