"""Real clients in front of a whole router, each as its users run it: nothing is changed but base URL and key.

Every test is marked `clients`: `make test-clients` installs the clients and runs them. The oracle is an engine asked
directly by the same client, so that the tests share no assumption with the router. Engines are emulated, on real
sockets; at temperature 0 all of them give the same answer to the same prompt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from tests.clients.clients import SdkScripts
from tests.clients.refusals import StrictRouter, strict_router
from tests.e2e.conftest import router_of_module  # noqa: F401, a fixture


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    """Everything here runs on uvloop, as production does."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SdkScripts]:
    """The SDKs' scripts: `await sdks.talk(sdk, url, "a user's text", ...)`."""
    scripts = SdkScripts(tmp_path_factory.mktemp("sdks"))
    try:
        yield scripts
    finally:
        await scripts.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(
    router_of_module: Any,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[StrictRouter]:
    """A router that refuses the requests of `refusals.CASES`, each for its reason."""
    async with strict_router(router_of_module, tmp_path_factory.mktemp("keys")) as running:
        yield running
