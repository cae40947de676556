"""Settings of every test: no test is judged by how fast the machine is. Speed is measured in `tests/bench`."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """End-to-end tests start many processes and sockets: with several pytest workers they stay on one of them, so that
    they do not wait for each other. Tests that share a built wheel are among them.
    """
    for item in items:
        if "/e2e/" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("e2e"))


def pytest_collection_finish() -> None:
    """Spare full garbage collections the walk over every module and test, which property tests start thousands of."""
    gc.collect()
    gc.freeze()
