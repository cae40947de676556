"""Attacks on a running router: hostile clients, broken engines, careless operators.

Each test does one attack through real sockets, at default limits, and checks what everybody else notices of it with
`measured(what, value, bar, unit)`: it fails over the bar, and the figures of a run are printed as a table at its end.
Attacks that take longer than some seconds are marked `abuse`: they run with `make abuse`, not with `make test`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from tests.e2e.conftest import fleet_config, router, router_process  # noqa: F401  fixtures

FIGURE = "figure"

Measured = Callable[[str, float, float, str], None]


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    """Everything here runs on uvloop, as production does."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measured:
    """`measured(what, value, bar, unit)`: note a figure for the table, and fail when it is over the bar."""

    def measure(what: str, value: float, bar: float, unit: str) -> None:
        record_property(FIGURE, f"{what}: {value:,.3g} {unit} (bar {bar:,g})")
        assert value <= bar, f"{what}: {value:,.3g} {unit}, more than {bar:,g}"

    return measure


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures of every test that ran."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [text for report in reports for name, text in getattr(report, "user_properties", []) if name == FIGURE]
    if lines:
        terminalreporter.section("attacks: what was measured")
        for line in sorted(lines):
            terminalreporter.line(line)
