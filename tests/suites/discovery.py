"""What every discovery must do. A test file subclasses `DiscoverySuite` and provides `source`.

class TestFile(DiscoverySuite):
    @pytest.fixture
    def source(self, tmp_path) -> Source: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from router.backends.discovery.discovery import DiscoveredInstance, Discovery
from router.config.schema import InstanceConfig

DEADLINE_S = 5.0


class Source(Protocol):
    """A discovery and the hand that changes what it discovers."""

    changes: bool  # False: `put` works only before watching

    @property
    def discovery(self) -> Discovery: ...

    def put(self, instances: list[InstanceConfig]) -> None: ...


def instances(*names: str) -> list[InstanceConfig]:
    return [InstanceConfig(url=f"http://{name}:8000", name=name) for name in names]


@asynccontextmanager
async def watching(discovery: Discovery) -> AsyncIterator[asyncio.Queue[list[DiscoveredInstance]]]:
    """Its lists, as they come."""
    lists: asyncio.Queue[list[DiscoveredInstance]] = asyncio.Queue()

    async def watch() -> None:
        async for found in discovery.watch():
            lists.put_nowait(found)

    task = asyncio.create_task(watch())
    try:
        yield lists
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_of(lists: asyncio.Queue[list[DiscoveredInstance]]) -> list[InstanceConfig]:
    """What is described in the next list."""
    return [instance.config for instance in await asyncio.wait_for(lists.get(), DEADLINE_S)]


class DiscoverySuite:
    @pytest.fixture
    def source(self) -> Source:
        raise NotImplementedError

    async def test_the_whole_list_comes_at_once(self, source: Source) -> None:
        source.put(instances("a", "b"))
        async with watching(source.discovery) as lists:
            assert await next_of(lists) == instances("a", "b")
        assert source.discovery.trouble is None

    async def test_every_watcher_gets_its_own_list(self, source: Source) -> None:
        source.put(instances("a", "b"))
        async with watching(source.discovery) as lists:
            (await asyncio.wait_for(lists.get(), DEADLINE_S)).clear()
        async with watching(source.discovery) as lists:
            assert await next_of(lists) == instances("a", "b")

    async def test_a_change_brings_the_whole_new_list(self, source: Source) -> None:
        if not source.changes:
            return
        source.put(instances("a", "b"))
        async with watching(source.discovery) as lists:
            assert await next_of(lists) == instances("a", "b")
            for names in (("a", "b", "c"), ("c",), ()):
                source.put(instances(*names))
                assert await next_of(lists) == instances(*names)
        assert source.discovery.trouble is None
