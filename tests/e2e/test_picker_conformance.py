"""The router's own picker passes the conformance suite, in both profiles, and nothing of it stays in the books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router.clock import SystemClock
from tests.e2e.conftest import LOCAL, MODEL, Router
from tests.fakes.engines import engine, eventually
from tests.picker_conformance.report import ConformanceReport
from tests.picker_conformance.suite import CASES, ConformanceOptions, run_suite

PICKER = LOCAL | {"health_port": 0}
THIN = ("EPP-701", "EPP-702", "EPP-703", "EPP-707")
FEW_AT_ONCE = {"concurrent": 40}  # fewer than the suite keeps open in EPP-502


async def report_on(running: Router, **options: Any) -> ConformanceReport:
    address = f"127.0.0.1:{running.app.picker_port}"
    return await run_suite(ConformanceOptions(address, **options), SystemClock())


def received(report: ConformanceReport, result: str) -> dict[str, str]:
    return {case.id: case.received for case in report.cases if case.result == result}


@pytest.mark.parametrize(
    ("settings", "skipped"),
    [
        ({"tls": "off"}, {"EPP-307", "EPP-410", "EPP-501", "EPP-611"}),
        ({"tls": "self-signed", "testing": True}, {"EPP-410", "EPP-501"}),
    ],
    ids=["plaintext", "tls, testing"],
)
async def test_the_picker_conforms(router: Callable[..., Any], settings: dict[str, Any], skipped: set[str]) -> None:
    own = PICKER | settings
    async with engine() as a, engine() as b, router([a, b], picker=own, limits=FEW_AT_ONCE) as running:
        report = await report_on(running, endpoints=(a.address, b.address))
        assert report.tls == (settings["tls"] != "off")
        assert report.conforms
        assert set(received(report, "fail")) == {"EPP-708"}, received(report, "fail")
        assert set(received(report, "skip")) == skipped


async def test_nothing_stays_in_the_books(router: Callable[..., Any]) -> None:
    """But for the thin profile, where a request ends with the access log of an Envoy, or 30 s without one."""
    conforming = tuple(case.id for case in CASES if case.id not in THIN)
    async with engine() as a, engine() as b, router([a, b], picker=PICKER, limits=FEW_AT_ONCE) as running:
        report = await report_on(running, cases=conforming)
        assert report.conforms
        await eventually(running.idle)


async def test_a_picker_without_engines_conforms(router: Callable[..., Any]) -> None:
    async with router([], picker=PICKER) as running:
        report = await report_on(running, model=MODEL)
        assert received(report, "fail") == {}
        assert set(received(report, "pass")) == {"EPP-101", "EPP-501", "EPP-801", "EPP-803", "EPP-805"}
