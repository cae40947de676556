"""The other views in a browser: where requests go, the cache, experiments, one request."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from router.scheduling.experiments.results import Finding
from tests.browser.access import check_access
from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL
from tests.e2e.workers import say
from tests.fakes.engines import engine

pytestmark = pytest.mark.browser

SOON_MS = 2000
POLICIES = {"warm": {"scorers": [{"name": "expected_ttft"}]}, "least": {"scorers": [{"name": "least_requests"}]}}
ARMS = "experiment: {unit: request, seed: 1, arms: {warm: 50, least: 50}, shadows: [], guard: {min_units: 1}}"


async def fill(r, requests: int = 4) -> None:
    """Some streamed chats with a common beginning."""
    for n in range(requests):
        text = "All of this is common to everybody who asks here. " * 12 + f"Question {n}?"
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 4}
        (await r.post(PATH, body)).raise_for_status()


def mark(page: Page, kind: str):
    return page.get_by_role("row").filter(has_text=kind)


async def test_flow_and_a_switch_and_its_undoing_are_seen(router, browse) -> None:
    async with engine() as a, engine() as b, router([a, b], policies=POLICIES) as r:
        await fill(r)
        async with browse(f"{r.admin_url}/#flow") as page:
            await expect(page.get_by_role("img", name=re.compile("warm: 4 requests"))).to_be_visible()
            await check_access(page)
            await r.admin.post("/admin/activate", json={"policy": "least"})
            await expect(page.locator(".verdict", has_text="Policy")).to_contain_text("least", timeout=SOON_MS)
            await expect(mark(page, "switch").first).to_contain_text("activate least", timeout=SOON_MS)
            await page.get_by_role("button", name=re.compile("Undo")).click()
            dialog = page.get_by_role("dialog")
            await expect(dialog.get_by_role("listitem").first).to_be_visible()
            await dialog.get_by_role("button", name=re.compile("Undo")).click()
            await expect(page.locator(".verdict", has_text="Policy")).to_contain_text("warm", timeout=SOON_MS)


async def test_a_policy_is_switched_with_its_plan(router, browse) -> None:
    async with engine() as a, engine() as b, router([a, b], policies=POLICIES) as r:
        await fill(r)
        async with browse(f"{r.admin_url}/#flow") as page:
            await page.get_by_label("Switch to").select_option("least")
            await page.get_by_role("button", name="Show the plan …").click()
            dialog = page.get_by_role("dialog")
            await expect(dialog).to_contain_text("of the last 4 choices")
            assert (await r.admin.get("/admin/policies")).json()["active"] == "warm"
            await check_access(page)
            await dialog.get_by_role("button", name="Switch to least").click()
            await expect(page.locator(".verdict", has_text="Policy")).to_contain_text("least", timeout=SOON_MS)


async def test_an_experiment_runs_and_is_rolled_back(router, browse) -> None:
    async with engine() as a, router([a], policies=POLICIES) as r, browse(f"{r.admin_url}/#experiments") as page:
        await page.get_by_text("Start an experiment").click()
        await page.get_by_label("The section “experiment”").fill(ARMS)
        await page.get_by_role("button", name="Show the plan …").click()
        await page.get_by_role("dialog").get_by_role("button", name="Start the experiment").click()
        await expect(page.locator(".arm")).to_have_count(2, timeout=SOON_MS)
        await fill(r)
        await expect(page.locator(".intervals").first).to_contain_text("time to first token")
        await check_access(page)
        finding = Finding("least", "guard", "ttft_p90", "it is slower", 9, 99.0, 2.0, 1.0)
        r.app.core.control.handle_finding(finding)
        await expect(page.locator(".verdict", has_text="Policy")).to_contain_text("rolled back", timeout=SOON_MS)
        await page.get_by_role("link", name="Request flow").click()
        await expect(mark(page, "rollback")).to_contain_text("it is slower", timeout=SOON_MS)
        await check_access(page)


async def test_a_request_is_found_and_told(router, browse) -> None:
    async with engine() as a, engine() as b, router([a, b], policies=POLICIES) as r:
        await fill(r)
        said = await say(r.http, "the one that is looked for")
        async with browse(r.admin_url) as page:
            await expect(page.locator(".cell")).to_have_count(2)
            await page.keyboard.press("/")
            await expect(page.get_by_label("Id begins with")).to_be_focused()
            await page.keyboard.type(said.record)
            await page.keyboard.press("Enter")
            await expect(page.locator(".found tbody tr")).to_have_count(1)
            await page.get_by_role("link", name=said.record).click()
            record = page.get_by_role("article")
            await expect(record.get_by_role("heading", level=2)).to_have_text(said.record)
            await expect(record.get_by_role("region", name="Timeline").get_by_role("row")).not_to_have_count(1)
            await expect(
                record.get_by_role("region", name="Costs of the candidates").locator("tbody tr")
            ).to_have_count(2)
            await expect(record.locator("tr.chosen")).to_contain_text(said.target)
            await check_access(page)


async def test_a_request_that_is_not_there(router, browse) -> None:
    async with engine() as a, router([a]) as r, browse(f"{r.admin_url}/#request/nobody-1", expected=("404",)) as page:
        await expect(page.get_by_role("alert")).to_contain_text("no such record")
        await expect(page.get_by_text("No record matches")).to_be_visible()
        await check_access(page)


async def test_what_prompts_share_and_who_holds_it(router, browse) -> None:
    async with engine() as a, engine() as b, router([a, b], policies=POLICIES) as r:
        await fill(r)
        await r.hear()
        async with browse(f"{r.admin_url}/#cache") as page:
            rows = page.get_by_role("region", name="Shared prefixes").locator("tbody tr")
            await expect(rows.first).to_contain_text("4")
            await rows.first.get_by_role("button").click()
            await expect(page.locator(".chosen-prefix")).to_contain_text(re.compile(f"{a.address}|{b.address}"))
            assert "common to everybody" not in await page.content()
            await check_access(page)


async def test_what_tenants_use_and_how_near_they_are_to_their_limits(router, browse, tmp_path: Path) -> None:
    """Also on a narrow screen, where nothing may stick out."""
    keys = tmp_path / "keys"
    names = ("acme", "zeta")
    keys.write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in names))
    limits = {"requests_per_minute": 2, "budget_per_day": 1e6}
    classes = {"small": {"limits": limits}}
    clients = {"keys_file": str(keys), "tenants": {"acme": {"service_class": "small"}}, "service_classes": classes}
    async with engine() as a, router([a], clients=clients) as r:
        body = {"model": MODEL, "prompt": "All of this is common to everybody who asks here. " * 12, "max_tokens": 4}
        for name, statuses in (("acme", (200, 200, 429)), ("zeta", (200,))):
            for status in statuses:
                answer = await r.post("/v1/completions", body, headers={"authorization": f"Bearer {name}"})
                assert answer.status_code == status
        async with browse(r.admin_url) as page:
            await page.get_by_role("link", name="Tenants").click()
            used = page.get_by_role("region", name="Usage of tenants")
            await expect(used.get_by_role("row", name="acme")).to_contain_text("requests_per_minute 1")
            assert (await used.get_by_role("row", name="acme").get_by_role("cell").all_inner_texts())[0] == "2"
            await expect(used.get_by_role("row", name="zeta")).to_be_visible()
            now = page.get_by_role("region", name="Limits of tenants")
            await expect(now.get_by_role("row", name="acme")).to_contain_text("2 of 2")
            await expect(now.get_by_role("row", name="zeta")).to_have_count(0)
            async with page.expect_download() as download:
                await page.get_by_role("button", name="Download CSV").click()
            text = (await (await download.value).path()).read_text()
            assert [line.split(",")[1] for line in text.splitlines()] == ["tenant", "acme", "acme", "zeta"], (
                "the refused request has no model: its body was not read"
            )
            await check_access(page)
            await page.set_viewport_size({"width": 360, "height": 700})
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
            await page.get_by_label("From").fill("2026-01-01")
            await page.get_by_label("to", exact=True).fill("2026-01-01")
            await expect(page.locator("main")).to_contain_text("No tenant sent a request on these days")


async def test_without_clients_there_is_no_view_of_tenants(router, browse) -> None:
    async with engine() as a, router([a]) as r, browse(f"{r.admin_url}/#tenants") as page:
        await expect(page.locator(".cell")).to_have_count(1)
        await expect(page.get_by_role("link", name="Tenants")).to_have_count(0)


@pytest.mark.parametrize("view", ["flow", "cache", "experiments", "request"])
async def test_a_router_without_requests_shows_nothing_as_unknown(router, browse, view: str) -> None:
    """On a narrow screen, where nothing may stick out either."""
    async with engine() as a, router([a], policies=POLICIES) as r:
        narrow = {"width": 360, "height": 700}
        async with browse(f"{r.admin_url}/#{view}", viewport=narrow, color_scheme="dark") as page:
            await expect(page.locator(".now")).to_contain_text("–")
            await expect(page.locator("main")).not_to_contain_text("Reading")
            await check_access(page)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
