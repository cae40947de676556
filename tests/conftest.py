"""Settings of every test: no test is judged by how fast the machine is. Speed is measured in `tests/bench`."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from scorers.build import is_compiled

# gRPC reads this once, when it is imported. With its fork handlers about one of 200 child processes that a test starts
# beside open gRPC calls ended with a segmentation fault before it was executed: its other threads are in no child.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# How often properties are tried. `quick`, the default, tries the same examples each time: it never fails by chance.
# `deep` (make test-deep) tries new ones, as many as each test names (tests/suites/properties.py).
settings.register_profile("deep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("deep"), max_examples=20, derandomize=True, database=None)
settings.load_profile("quick")


def pytest_configure() -> None:
    """Refuse compiled modules whose source was edited since: what is tested would not be what is read."""
    if not is_compiled():
        return
    root = Path(__file__).parents[1]
    compiled = [file for name in ("router", "scorers") for file in (root / name).rglob("*.so")]
    built = [(file.with_name(file.name.partition(".")[0] + ".py"), file) for file in compiled]
    in_c = [file for file in compiled if file.name.startswith("bulk.")]
    built += [(source, file) for file in in_c for source in (file.parent / "native").iterdir()]
    edited = [
        str(source.relative_to(root))
        for source, file in built
        if source.exists() and source.stat().st_mtime > file.stat().st_mtime
    ]
    if edited:
        pytest.exit(f"edited since they were compiled (make compiled, or make pure): {' '.join(edited)}", returncode=2)


@pytest.fixture(autouse=True)
def _restore_log_levels() -> Iterator[None]:
    """Restore what a command that ran in this process has set."""
    loggers = [logging.getLogger(name) for name in ("warmroute", "warmroute.access", "opentelemetry")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def pytest_collection_finish() -> None:
    """Spare full garbage collections the walk over every module and test, which property tests start thousands of."""
    gc.collect()
    gc.freeze()
