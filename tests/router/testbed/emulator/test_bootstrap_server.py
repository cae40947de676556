"""What is kept behind the side door, who gets it, and when it is freed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from router.testbed.emulator.bootstrap_server import BootstrapServer
from tests.fakes.engines import eventually


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[BootstrapServer, httpx.AsyncClient]]:
    door = BootstrapServer("127.0.0.1", 0, 1)
    async with door.listener, httpx.AsyncClient(base_url=door.listener.url) as http:
        yield door, http


async def fetch(door: BootstrapServer, http: httpx.AsyncClient, name: str, wait_s: float = 0.0, **more: Any) -> int:
    asked = {"engine_id": door.engine_ids[0], "name": name, "wait_s": wait_s} | more
    return (await http.post("/emulate/fetch", json=asked)).status_code


async def test_it_is_given_away_once() -> None:
    freed: list[str] = []
    async with opened() as (door, http):
        door.keep("a", lambda: freed.append("a"), 30)
        assert await fetch(door, http, "a", engine_id="somebody") == 404
        assert freed == []
        assert await fetch(door, http, "a") == 200
        assert freed == ["a"]
        assert await fetch(door, http, "a") == 410
        assert (await http.get("/elsewhere")).status_code == 404


async def test_of_two_that_wait_for_it_one_gets_it() -> None:
    freed: list[str] = []
    async with opened() as (door, http):
        both = [asyncio.create_task(fetch(door, http, "a", 0.3)) for _ in range(2)]
        await eventually(lambda: "a" in door._places)
        door.keep("a", lambda: freed.append("a"), 30)
        assert sorted(await asyncio.gather(*both)) == [200, 410]
        assert freed == ["a"]


async def test_it_is_freed_in_time_and_so_is_an_older_one_of_the_same_name() -> None:
    freed: list[int] = []
    async with opened() as (door, http):
        door.keep("a", lambda: freed.append(1), 30)
        door.keep("a", lambda: freed.append(2), 0.01)
        assert freed == [1]
        await eventually(lambda: freed == [1, 2])
        assert await fetch(door, http, "a") == 410


async def test_a_restart_forgets_what_was_kept_and_who_it_was() -> None:
    async with opened() as (door, http):
        before = door.engine_ids[0]
        door.keep("a", lambda: None, 30)
        door.restart()
        assert await fetch(door, http, "a") == 410
        assert await fetch(door, http, "a", engine_id=before) == 404
