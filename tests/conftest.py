"""Settings of every test: no test is judged by how fast the machine is. Speed is measured in `tests/bench`."""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

# gRPC reads this once, when it is imported. With its fork handlers about one of 200 child processes that a test starts
# beside open gRPC calls ended with a segmentation fault before it was executed: its other threads are in no child.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Spare full garbage collections the walk over every module and test, which property tests start thousands of."""
    gc.collect()
    gc.freeze()
