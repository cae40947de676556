"""Accessibility of a page, by axe-core."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()


async def check_access(page: Page) -> None:
    """No finding of axe-core, whose rules stand for WCAG 2 A and AA and best practice."""
    await page.evaluate(AXE)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    told = [(v["id"], v["help"], [node["html"][:200] for node in v["nodes"][:3]]) for v in found["violations"]]
    assert told == []
