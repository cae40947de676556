"""Fixtures of the stack tests: two real vLLM engines without a store, and two over a store for modules that ask for it.

The store of a module holds its POOL_BLOCKS. There is a router in front of both pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.lab.local_stack.install import Models, stack_models, stack_venv
from router.lab.local_stack.supervisor import RunningStack
from tests.stack.behind import Behind, router_in_front, running
from tests.stack.engines import BLOCK_BYTES, Engine, small_stack
from tests.stack.over_store import OverStore, Store, engines_over_store


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
    """A router that sends every request to the engine with most of its prompt cached."""
    with router_in_front("router", engines, model, {"name": "best"}, logs) as router:
        router.wait()
        yield router


@pytest.fixture(scope="module")
def pooling(
    request: pytest.FixtureRequest, models: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Engine]]:
    """Two engines over a store."""
    pool_bytes = request.module.POOL_BLOCKS * BLOCK_BYTES
    with engines_over_store(models, tmp_path_factory.mktemp("pooling"), pool_bytes=pool_bytes) as engines:
        yield engines


@pytest.fixture(scope="module")
def store(pooling: list[Engine]) -> Iterator[Store]:
    """The store of these engines, accessed directly."""
    with Store(pooling[0].stack) as store:
        yield store


@pytest.fixture(scope="module")
def over(pooling: list[Engine], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverStore]:
    """A router with the store as its pool."""
    with running(OverStore("router", pooling, model, tmp_path_factory.mktemp("over"))) as over:
        over.wait()
        yield over
