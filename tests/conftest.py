"""Settings of every test: no test is judged by how fast the machine is. Speed is measured in `tests/bench`."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Spare full garbage collections the walk over every module and test, which property tests start thousands of."""
    gc.collect()
    gc.freeze()
