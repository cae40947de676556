"""`python -m tests.browser.screenshots`: the pictures of docs/operate/observe.md, of emulated engines under load.

The same chats by the same clients, one size and one time zone: what is on the pictures differs from run to run only by
what is measured.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from playwright.async_api import Page

from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet
from tests.browser.conftest import open_page
from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, RouterProcess, _router_process, config_of
from tests.paths import ROOT

FOLDER = ROOT / "docs/img"
SIZE = {"width": 1180, "height": 720}
TALL = {"width": 1180, "height": 1010}
COLOURS = 256
ENGINES = 8
CLIENTS = 9
SPEED = {"prefill_tokens_per_s": 12_000, "decode_ms_per_token": 12, "answer_tokens": 40}
TOPICS = ("the weather at sea", "a library of old maps", "the repair of clocks", "trains in the mountains")
RULES = (
    "You are a patient assistant. You answer in short sentences, you say when you do not know, and you name sources. "
)
POLICIES = ("warm", "least_requests", "consistent_hash", "least_work_left")
ARMS = {
    "unit": "session",
    "seed": 1,
    "arms": {"warm": 50, "least_requests": 50},
    "shadows": ["least_work_left"],
    "observe_s": 3,
}
TOO_MANY, RETRY_S = 429, 2
TENANTS = ("search", "chat-eu", "chat-us", "batch")
SMALL = {"requests_per_minute": 60, "tokens_per_minute": 100_000, "concurrent": 8, "budget_per_day": 200_000}
GOLD = {"tokens_per_minute": 1_000_000, "concurrent": 32}


async def chat(r: RouterProcess, number: int, turns: int = 5) -> None:
    """One session: rules that all share, a topic that some share, and turns of its own. The client's key is the name of
    its tenant, where tenants are told apart.
    """
    headers = {"x-session-id": f"session-{number}", "x-api-key": TENANTS[number % CLIENTS % len(TENANTS)]}
    topic = TOPICS[number % len(TOPICS)]
    messages = [{"role": "system", "content": RULES * 30}, {"role": "user", "content": f"Tell me about {topic}. " * 60}]
    for turn in range(turns):
        body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 40}
        while (await r.post(PATH, body, headers=headers)).status_code == TOO_MANY:  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S)
        messages.append({"role": "assistant", "content": f"This is answer {turn} of session {number}. " * 20})
        messages.append(
            {"role": "user", "content": f"And then, after part {turn}, what else was there in {number}? " * 12}
        )


async def keep_busy(r: RouterProcess, client: int) -> None:
    number = client
    while True:
        await chat(r, number)
        number += CLIENTS


@asynccontextmanager
async def running_router(**sections: Any) -> AsyncIterator[RouterProcess]:
    """A router, with these sections of its configuration, and engines, each a process."""
    policies = {name: yaml.safe_load((ROOT / f"configs/policies/{name}.yaml").read_text()) for name in POLICIES}
    options = [EngineOptions(name=f"engine-{n}", **SPEED) for n in range(ENGINES)]
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedFleet(options) as fleet:
            instances = [{"name": member.name, "url": member.url} for member in fleet.members]
            config = config_of(instances, policies=policies, **sections)
            async with _router_process(config, Path(folder)) as r:
                yield r


@asynccontextmanager
async def working_clients(r: RouterProcess) -> AsyncIterator[None]:
    """Clients at work."""
    clients = [asyncio.create_task(keep_busy(r, n)) for n in range(CLIENTS)]
    try:
        yield
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def shoot(page: Page, name: str) -> None:
    """Save what the page shows, with few colours: text and flat areas need no more."""
    picture = Image.open(io.BytesIO(await page.screenshot()))
    picture.convert("RGB").quantize(COLOURS).save(FOLDER / f"live-{name}.png", optimize=True)
    print(f"live-{name}.png", (FOLDER / f"live-{name}.png").stat().st_size)


def write_keys(file: Path) -> dict[str, Any]:
    """Write a keys file; return the section `clients`."""
    file.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in TENANTS))
    classes = {"default": {"limits": SMALL}, "gold": {"limits": GOLD}}
    return {"keys_file": str(file), "tenants": {"search": {"service_class": "gold"}}, "service_classes": classes}


async def main() -> None:
    await shoot_views()
    await shoot_tenants()


async def shoot_tenants() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running_router(clients=write_keys(Path(folder, "keys"))) as r,
            working_clients(r),
            open_page(f"{r.admin_url}/#tenants", viewport=SIZE, color_scheme="light") as page,
        ):
            await asyncio.sleep(45)
            await shoot(page, "tenants")


async def shoot_views() -> None:
    async with (
        running_router() as r,
        working_clients(r),
        open_page(r.admin_url, viewport=SIZE, color_scheme="light") as page,
    ):
        await asyncio.sleep(25)
        await r.admin.post("/admin/activate", json={"policy": "least_requests"})
        await asyncio.sleep(20)
        await r.admin.post("/admin/activate", json={"policy": "warm"})
        await r.admin.post("/admin/instances/engine-6/drain")
        await asyncio.sleep(25)
        await page.goto(f"{r.admin_url}/#fleet/engine-2%2F0")
        await asyncio.sleep(3)
        await shoot(page, "fleet")
        for view in ("flow", "cache"):
            await page.goto(f"{r.admin_url}/#{view}")
            await asyncio.sleep(3)
            await shoot(page, view)
        record = next(record for record in await r.records(limit=40) if record["done"] and record["attempts"])
        await page.set_viewport_size(TALL)
        await page.goto(f"{r.admin_url}/#request/{record['id']}")
        await asyncio.sleep(2)
        await shoot(page, "request")
        (await r.admin.put("/admin/experiment", json={"experiment": ARMS})).raise_for_status()
        await page.goto(f"{r.admin_url}/#experiments")
        await asyncio.sleep(40)
        await shoot(page, "experiments")


if __name__ == "__main__":
    asyncio.run(main())
