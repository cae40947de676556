"""Who asks for the metrics page at the same time shares one, and nobody gets one that is older than his request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.clock import ManualClock
from router.tasks import Tasks
from router.telemetry.metrics.shared_scrape import SharedScrape


class Page:
    """Renders numbers, one after the other, each when it is let."""

    def __init__(self) -> None:
        self.begun = 0
        self.let = asyncio.Semaphore(0)
        self.fails = False

    async def render(self, form: str) -> bytes:
        self.begun += 1
        number = self.begun
        await self.let.acquire()
        if self.fails:
            raise RuntimeError("no page")
        return b"%d" % number


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    made = Tasks("test")
    yield made
    await made.close()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_requests_share_the_page_that_begins_after_them(tasks: Tasks) -> None:
    page = Page()
    scrape = SharedScrape(page.render, tasks, ManualClock())
    first = asyncio.create_task(scrape())
    await settle()
    later = [asyncio.create_task(scrape()) for _ in range(100)]
    await settle()
    assert page.begun == 1
    page.let.release()
    assert await first == b"1"
    page.let.release()
    assert set(await asyncio.gather(*later)) == {b"2"}
    page.let.release()
    assert await scrape() == b"3"
    assert page.begun == 3


async def test_one_that_leaves_takes_the_page_from_nobody(tasks: Tasks) -> None:
    page = Page()
    scrape = SharedScrape(page.render, tasks, ManualClock())
    leaving, staying = asyncio.create_task(scrape()), asyncio.create_task(scrape())
    await settle()
    leaving.cancel()
    page.let.release()
    assert await staying == b"1"


async def test_it_rests_as_long_as_it_worked(tasks: Tasks) -> None:
    page, clock = Page(), ManualClock()
    scrape = SharedScrape(page.render, tasks, clock)
    first = asyncio.create_task(scrape())
    await settle()
    clock.advance(0.05)
    page.let.release()
    assert await first == b"1"
    page.let.release()
    began = asyncio.get_running_loop().time()
    assert await scrape() == b"2"
    assert asyncio.get_running_loop().time() - began >= 0.04


async def test_a_page_that_fails_is_not_the_last(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    page = Page()
    scrape = SharedScrape(page.render, tasks, ManualClock())
    page.fails = True
    page.let.release()
    with pytest.raises(RuntimeError):
        await scrape()
    page.fails = False
    page.let.release()
    assert await scrape() == b"2"
    assert "no page" in caplog.text


async def test_pages_of_different_forms_are_two_and_wait_for_each_other(tasks: Tasks) -> None:
    page = Page()
    scrape = SharedScrape(page.render, tasks, ManualClock())
    text, other = asyncio.create_task(scrape()), asyncio.create_task(scrape("openmetrics"))
    await settle()
    assert page.begun == 1
    page.let.release()
    page.let.release()
    assert await asyncio.gather(text, other) == [b"1", b"2"]
