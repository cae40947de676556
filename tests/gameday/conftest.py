"""Fixtures of the game day's tests, which are marked `gameday`: `make gameday` runs them."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import fleet_config, router_process  # noqa: F401  fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gameday/test_" in item.nodeid:
            item.add_marker(pytest.mark.gameday)
