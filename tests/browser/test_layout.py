"""Every page at the sizes of a phone and of a laptop, with fleets of three sizes, light and dark.

Nothing may stick out, no word may be broken between two letters, and the router's time and the engines' have one colour
each wherever they are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from tests.browser.access import check_access
from tests.browser.scene import Scene, name_of, scene

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}
LAPTOP = {"width": 1280, "height": 800}
FAULTS = """() => {
    const faults = [];
    const width = document.documentElement.scrollWidth;
    if (width > innerWidth) faults.push(`the page is ${width} wide`);
    const visible = (e) => e.checkVisibility({visibilityProperty: true}) && !e.closest('.hidden');
    const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    while (nodes.nextNode()) {
        const node = nodes.currentNode;
        if (!node.data.trim() || !visible(node.parentElement)) continue;
        for (const found of node.data.matchAll(/[^\\s/_.-]{2,24}/g)) {
            range.setStart(node, found.index);
            range.setEnd(node, found.index + found[0].length);
            const lines = new Set([...range.getClientRects()].filter((r) => r.width).map((r) => Math.round(r.top)));
            if (lines.size > 1) faults.push(`broken: ${found[0]} in ${node.data.trim().slice(0, 80)}`);
        }
    }
    for (const own of document.querySelectorAll('.name .own'))
        if (own.scrollWidth > own.clientWidth + 1) faults.push(`cut: ${own.parentElement.textContent}`);
    for (const text of document.querySelectorAll('svg text')) {
        const [inner, outer] = [text.getBoundingClientRect(), text.closest('svg').getBoundingClientRect()];
        if (inner.left < outer.left - 1 || inner.right > outer.right + 1) faults.push(`cut off: ${text.textContent}`);
    }
    return faults;
}"""
COLOURS = """() => Object.fromEntries(['client', 'router', 'wait', 'engine'].map((side) => {
    const drawn = document.querySelector(`i.${side}, rect.${side}`);
    const style = getComputedStyle(drawn);
    return [side, drawn.tagName === 'rect' ? style.fill : style.backgroundColor];
}))"""


def pages_of(shown: Scene) -> Iterator[tuple[str, str]]:
    """Yield the url of each page, and a selector of what it has when it is complete."""
    yield f"{shown.url}/#fleet", ".cell.ready"
    yield f"{shown.url}/#fleet/{quote(name_of(1), safe='')}%2F0", ".detail tbody tr"
    yield f"{shown.url}/#flow", ".sankey"
    yield f"{shown.url}/#cache", ".icicle"
    yield f"{shown.url}/#experiments", ".intervals td.lane"
    yield f"{shown.url}/#request", ".found tbody tr"
    yield f"{shown.url}/#tenants", "meter"
    yield f"{shown.url}/#router", ".yaml"
    for record in (shown.answered, shown.failed):
        yield f"{shown.url}/#request/{record}", ".record .waterfall"
        yield f"{shown.url}/admin/records/{record}", "svg.bar"


async def look(page: Page, url: str, complete: str) -> None:
    await page.goto("about:blank")
    await page.goto(url)
    await expect(page.locator(complete).first).to_be_attached()
    await page.evaluate("() => new Promise(requestAnimationFrame)")


@pytest.mark.parametrize("size", [PHONE, LAPTOP], ids=["phone", "laptop"])
@pytest.mark.parametrize("engines", [4, 40, 200])
async def test_nothing_sticks_out_and_no_word_is_broken(browse, tmp_path: Path, engines: int, size: dict) -> None:
    still = {"viewport": size, "reduced_motion": "reduce"}  # colours change at once
    async with scene(engines, tmp_path) as shown, browse(shown.url, **still) as page:
        for url, complete in pages_of(shown):
            await look(page, url, complete)
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                assert await page.evaluate(FAULTS) == [], f"{scheme}: {url}"
                if engines == 4:
                    await check_access(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_router_and_the_engines_have_one_colour_each(browse, tmp_path: Path, scheme: str) -> None:
    async with scene(2, tmp_path) as shown, browse(shown.url, color_scheme=scheme) as page:
        found = []
        for url, complete in pages_of(shown):
            if shown.answered in url:
                await look(page, url, complete)
                found.append(await page.evaluate(COLOURS))
        assert len(found) == 2
        assert found[0] == found[1]
        assert len(set(found[0].values())) == 4
