"""The page as a whole and the fleet's view, in a browser."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from playwright.async_api import expect

from router.clock import SystemClock
from router.scheduling.policy.record import Stages
from tests.browser.access import check_access
from tests.e2e.test_silent_faults import POLICIES, LaterClock, look, ready, switch
from tests.e2e.workers import say
from tests.fakes.engines import engine, eventually
from tests.router.telemetry.records import a_record

pytestmark = pytest.mark.browser

SOON_MS = 2000  # after something happened it is to be seen
HEALTH = {"interval_s": 0.2, "failures": 2}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_the_fleet_is_shown_and_usable_by_everybody(router, browse, scheme: str, width: int) -> None:
    async with engine() as a, engine(ranks=2) as b, router([a, b]) as r:
        await say(r.http, "one request")
        look = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
        async with browse(r.admin_url, **look) as page:
            await expect(page.locator(".cell")).to_have_count(3)
            await expect(page.locator(".verdict", has_text="Engines")).to_contain_text("2 of 2 ready")
            await expect(page.locator(".verdict", has_text="Pool")).to_contain_text("none configured")
            await check_access(page)
            if width == 360:
                assert await page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing sticks out"


async def test_a_target_opens_with_its_facts_and_requests(router, browse) -> None:
    async with engine() as a, router([a]) as r:
        for n in range(3):
            await say(r.http, f"question {n}")
        async with browse(r.admin_url) as page:
            await page.locator(".cell").focus()
            await page.keyboard.press("Enter")
            detail = page.get_by_role("complementary")
            await expect(detail.get_by_role("heading", level=2)).to_be_focused()
            await expect(detail).to_contain_text(a.url)
            await expect(detail.locator("tbody tr")).to_have_count(3)
            await check_access(page)
            await detail.get_by_role("link", name=re.compile("Close")).click()
            await expect(detail).to_have_count(0)


async def test_a_join_is_seen(router, browse, tmp_path: Path) -> None:
    listed = tmp_path / "fleet.yaml"
    async with engine() as a, engine() as b:
        listed.write_text(json.dumps([{"url": a.url}]))
        fleet = {"file": str(listed), "file_poll_s": 0.02, "instances": []}
        async with router(fleet=fleet) as r, browse(r.admin_url) as page:
            await expect(page.locator(".cell")).to_have_count(1)
            listed.write_text(json.dumps([{"url": a.url}, {"url": b.url}]))
            await eventually(lambda: len(list(r.core.fleet)) == 2)
            await expect(page.locator(".cell")).to_have_count(2, timeout=SOON_MS)
            await expect(page.locator(".verdict", has_text="Engines")).to_contain_text("2 of 2", timeout=SOON_MS)


async def test_an_engine_that_ends_is_seen(router, browse) -> None:
    """It is not started again, as one under a supervisor is: that can be over before the next picture."""
    async with AsyncExitStack() as life:
        a = await life.enter_async_context(engine())
        fleet = {"instances": [{"url": a.url}], "health": HEALTH}
        async with router([a], fleet=fleet) as r, browse(r.admin_url) as page:
            await expect(page.locator(".cell.ready")).to_have_count(1)
            await life.aclose()
            await expect(page.locator(".cell.bad")).to_contain_text("down", timeout=SOON_MS)


async def test_a_fault_that_costs_hits_is_amber_while_a_policy_reads_caches(router, browse) -> None:
    clock = LaterClock()
    async with (
        engine(events=False) as a,
        router([a], clock=clock, policies=POLICIES, wait=False) as r,
        browse(r.admin_url) as page,
    ):
        await ready(r)
        await look(r, clock)
        cell, verdict = page.locator(".cell"), page.locator(".verdict", has_text="Events")
        await expect(page.locator(".cell.warn")).to_contain_text("KV events are off", timeout=SOON_MS)
        await expect(verdict).to_contain_text(f"{a.address}: KV events are off")
        await switch(r, "blind")
        await expect(page.locator(".cell.ok")).not_to_contain_text("KV events are off", timeout=SOON_MS)
        await expect(verdict).to_contain_text("no engine publishes any")
        await cell.click()
        await expect(page.get_by_role("complementary")).to_contain_text("events.on")
        await expect(page.get_by_role("complementary")).to_contain_text("engine: --kv-events-config")


class LaterDay(LaterClock):
    """A clock whose time of day a test sets forward, too."""

    def wall(self) -> float:  # type: ignore[override]
        return SystemClock.wall() + self.ahead_s


async def test_a_refused_command_is_news_of_a_minute(router, browse) -> None:
    clock = LaterDay()
    async with engine() as a, router([a], clock=clock) as r, browse(r.admin_url) as page:
        verdict = page.locator(".verdict", has_text="Policy")
        refused = await r.admin.put("/admin/policies/mine", json={"scorers": [{"name": "nonsense"}]})
        assert refused.status_code == 422
        await expect(verdict).to_contain_text("a command was refused", timeout=SOON_MS)
        await expect(verdict).to_have_class(re.compile("warn"))
        clock.ahead_s = 61.0
        await expect(verdict).to_have_class(re.compile("ok"), timeout=SOON_MS)


async def test_a_router_that_holds_requests_up_is_amber(router, browse) -> None:
    async with engine() as a, router([a]) as r, browse(r.admin_url) as page:
        verdict = page.locator(".verdict", has_text="Router")
        await say(r.http, "one request")
        await expect(verdict).to_contain_text("p99 of 5 min", timeout=SOON_MS)
        held_up = a_record(at_wall_s=r.app.core.clock.wall(), stages=Stages(tokens_ms=109.0))
        r.app.core.recent_records.add(held_up)
        await expect(verdict).to_have_class(re.compile("warn"), timeout=SOON_MS)
        await expect(verdict).to_contain_text("adds 1")


async def test_errors_of_an_engine_are_counted_at_it_and_its_requests_are_found(router, browse) -> None:
    async with engine() as a, router([a]) as r, browse(r.admin_url) as page:
        for n in range(2):
            await say(r.http, f"good {n}")
        a.faults(error_rate=1.0)
        for n in range(3):
            assert (await say(r.http, f"bad {n}")).status == 500
        await expect(page.locator(".cell")).to_contain_text("3 errors", timeout=5 * SOON_MS)  # in every fifth picture
        await expect(page.locator(".verdict", has_text="Engines")).to_contain_text("3 requests (60 %) failed in 5 min")
        await page.locator(".now").get_by_role("link", name="60 %").click()
        rows = page.locator(".found tbody tr")
        await expect(rows).to_have_count(3)
        await expect(rows.first).to_contain_text("500 engine_5xx")
        await page.get_by_label("Show").select_option("slowest")
        await page.get_by_role("button", name="Find").click()
        await expect(rows).to_have_count(5)
        await page.get_by_label("Status").fill("2xx")
        await page.get_by_role("button", name="Find").click()
        await expect(rows).to_have_count(2)
        assert "show=slowest" in page.url


async def test_version_uptime_and_the_configuration_in_force(router, browse) -> None:
    tokens = [token("eye", "read", "write")]
    admin = {"host": "127.0.0.1", "port": 0, "tokens": tokens}
    clock = LaterDay()
    async with engine() as a, router([a], admin=admin, policies=POLICIES, clock=clock, wait=False) as r:
        r.admin.headers["authorization"] = "Bearer eye"
        await eventually(lambda: r.app.unready_reason() is None)
        text = (await r.admin.get("/admin/config")).text
        assert yaml.safe_load(text)["active"] == next(iter(POLICIES))
        assert tokens[0]["hash"] not in text
        await switch(r, "blind")
        clock.ahead_s = 7400.0
        async with browse(f"{r.admin_url}/#router", expected=("401",)) as page:
            await page.get_by_label("Admin token").fill("eye")
            await page.get_by_role("button", name="Enter").click()
            main = page.get_by_role("main")
            await expect(main).to_contain_text("up for2 h 3 min")
            await expect(main).to_contain_text(f"version{version('warmroute')}")
            await expect(main).to_contain_text("active: blind")
            await page.locator("summary", has_text=re.compile("^fleet")).click()
            await expect(main).to_contain_text(a.url)


async def test_draining_is_confirmed_first(router, browse) -> None:
    async with engine() as a, router([a]) as r, browse(f"{r.admin_url}/#fleet/{quote(a.address)}%2F0") as page:
        await page.get_by_role("button", name="Drain …").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("gets no new ones")
        await check_access(page)
        await dialog.get_by_role("button", name="Cancel").click()
        assert (await r.instances())[a.address]["state"] == "ready"
        await page.get_by_role("button", name="Drain …").click()
        await dialog.get_by_role("button", name="Drain").click()
        await expect(page.locator(".cell.draining")).to_have_count(1, timeout=SOON_MS)
        assert (await r.instances())[a.address]["state"] == "draining"


def token(name: str, *rights: str) -> dict[str, Any]:
    return {"name": name, "hash": hashlib.sha256(name.encode()).hexdigest(), "rights": list(rights)}


async def test_a_token_is_asked_for_and_decides_what_is_offered(router, browse) -> None:
    admin = {"host": "127.0.0.1", "port": 0, "tokens": [token("eye", "read"), token("hand", "read", "write")]}
    async with engine() as a, router([a], admin=admin, wait=False) as r:
        await eventually(lambda: r.app.unready_reason() is None)
        async with browse(r.admin_url, expected=("401",)) as page:
            await check_access(page)
            for text in ("wrong", "eye"):
                await page.get_by_label("Admin token").fill(text)
                await page.get_by_role("button", name="Enter").click()
                if text == "wrong":
                    await expect(page.get_by_role("alert")).to_contain_text("token is needed")
            await page.locator(".cell").click()
            await expect(page.get_by_role("complementary")).to_be_visible()
            await expect(page.get_by_role("button", name="Drain …")).to_have_count(0)
            await page.get_by_role("button", name="sign out").click()
            await page.get_by_label("Admin token").fill("hand")
            await page.get_by_role("button", name="Enter").click()
            await expect(page.get_by_role("button", name="Drain …")).to_be_visible()
            assert await page.evaluate("document.cookie") == ""


async def test_the_page_outlives_the_router(router_process, fleet_config, browse, tmp_path: Path) -> None:
    """The same page goes on with the next process on the same port."""
    async with engine() as a:
        async with router_process(fleet_config([a])) as first:
            port = int(first.admin_url.rpartition(":")[2])
            opened = browse(first.admin_url, expected=("ERR_", "Failed to load"))
            page = await opened.__aenter__()
            await expect(page.locator(".cell.ready")).to_have_count(1)
        await expect(page.get_by_role("status")).to_contain_text("no connection since")
        await expect(page.locator(".cell")).to_have_count(1)  # the last picture stays
        async with router_process(fleet_config([a], admin={"host": "127.0.0.1", "port": port})):
            await expect(page.get_by_role("status")).to_have_text("connected", timeout=10_000)
            await expect(page.locator(".cell.ready")).to_have_count(1)
            await opened.__aexit__(None, None, None)
