"""Two real vLLM engines and the router in front of them, once for all tests of this folder (`make test-stack`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stack.behind import Behind, router_in_front
from tests.stack.engines import Engine
from tests.stack.install import stack_model, stack_venv


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="session")
def model() -> Path:
    return stack_model(stack_venv())


@pytest.fixture(scope="session")
def engines(model: Path, logs: Path) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        pair = [stack.enter_context(Engine(name, stack_venv(), model, logs)) for name in ("east", "west")]
        for engine in pair:
            engine.wait()
        yield pair


@pytest.fixture(scope="session")
def behind(engines: list[Engine], model: Path, logs: Path) -> Iterator[Behind]:
    """The router that sends every request to where most of its prompt is cached."""
    with router_in_front("router", engines, model, {"name": "best"}, logs) as router:
        router.wait()
        yield router
