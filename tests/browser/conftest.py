"""The live page in Debian's Chromium, without a window, driven by Playwright (whose own browsers are not used)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop
from playwright.async_api import Page, async_playwright

from tests.e2e.conftest import fleet_config, router, router_process  # noqa: F401  fixtures

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SWITCHES = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
]  # in a container there is neither a user namespace nor much /dev/shm
SIZE = {"width": 1280, "height": 800}

OpenPage = Callable[..., AbstractAsyncContextManager[Page]]


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    """Everything here runs on uvloop, as production does."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where there is no browser."""
    if CHROMIUM is None:
        for item in items:
            if "tests/browser/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="needs Chromium (make test-browser installs Debian's)"))


@asynccontextmanager
async def open_page(url: str, *, expected: tuple[str, ...] = (), **context: Any) -> AsyncIterator[Page]:
    """A browser at `url`. Fails at the end for whatever it complained of, except lines with one of `expected`."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        opened = await browser.new_context(**({"viewport": SIZE, "timezone_id": "Europe/Berlin"} | context))
        opened.set_default_timeout(10_000)
        page = await opened.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(url)
        yield page
        await browser.close()
    assert [text for text in complaints if not any(part in text for part in expected)] == []


@pytest.fixture
def browse() -> OpenPage:
    """`browse(url, expected=(), **context)`: the page of a browser there; see `open_page`."""
    return open_page
