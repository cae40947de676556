"""Two real vLLM engines without a store, and the router in front of them, for the tests that need no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.stack.install import Models, stack_models, stack_venv
from router.stack.supervise import RunningStack
from tests.stack.behind import Behind, router_in_front
from tests.stack.engines import Engine, small_stack


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="session")
def models() -> Models:
    return stack_models(stack_venv())


@pytest.fixture(scope="session")
def model(models: Models) -> Path:
    return models.tiny


@pytest.fixture(scope="session")
def engines(models: Models, logs: Path) -> Iterator[list[Engine]]:
    with ExitStack() as opened:
        stack = opened.enter_context(RunningStack(small_stack(models, logs)))
        pair = [opened.enter_context(Engine(stack, server.name)) for server in stack.engines]
        for engine in pair:
            engine.wait()
        yield pair


@pytest.fixture(scope="session")
def behind(engines: list[Engine], model: Path, logs: Path) -> Iterator[Behind]:
    """The router that sends every request to where most of its prompt is cached."""
    with router_in_front("router", engines, model, {"name": "best"}, logs) as router:
        router.wait()
        yield router
