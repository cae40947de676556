"""Engines for a benchmark: those of a stack that runs already, or of one started for the time.

Between the rooms that may not know each other: `drive` measures a `Environment` and does not ask where it comes from,
`stack` starts processes and does not know why.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from router.config.schema import Config
from router.config.sections.local_stack import LocalStackConfig
from router.errors import ConfigError
from router.testbed.bench.agents import EnvironmentFactory
from router.testbed.bench.environment import Environment, find_running_stack
from router.testbed.local_stack.router_config import build_router_config
from router.testbed.local_stack.supervisor import ReportLine, RunningStack, StackFailed

PORTS = ("first_port", "master_port", "master_http_port", "client_port")


def environment_factory(settings: Config, logs: Path, say: ReportLine) -> EnvironmentFactory:
    """Raises ConfigError without a `stack` section. What is started writes its logs to the folder `logs`."""
    asked = settings.stack
    if asked is None:
        raise ConfigError("stack: is needed to know which engines to measure")

    @asynccontextmanager
    async def opened(pool: bool) -> AsyncIterator[Environment]:
        if pool and (found := await find_running_stack(settings, asked)) is not None:
            say(f"measuring the stack that runs at {found.engines[0]}")
            yield found
            return
        own = {"store": pool, "logs_dir": str(logs / ("with-pool" if pool else "no-pool"))} | dict.fromkeys(PORTS, 0)
        async with _started(asked.model_copy(update=own), say) as stack:
            urls = tuple(engine.url for engine in stack.engines)
            yield Environment(urls, stack.master_url, stack.config.served_name, build_router_config(settings, stack))

    return opened


@asynccontextmanager
async def _started(asked: LocalStackConfig, say: ReportLine) -> AsyncIterator[RunningStack]:
    """A thread starts and ends it, so that a Ctrl-C meanwhile is heard."""
    given_up = threading.Event()

    def waiting(for_whom: str) -> None:
        if given_up.is_set():
            raise StackFailed(f"interrupted while {for_whom}")

    stack = RunningStack(asked, report=say, report_wait=waiting)
    starting = asyncio.get_running_loop().run_in_executor(None, stack.__enter__)
    try:
        await asyncio.shield(starting)
        yield stack
    except asyncio.CancelledError:
        given_up.set()
        raise
    finally:
        await asyncio.wait([starting])
        if starting.exception() is None:  # else it has cleaned up after itself
            await asyncio.to_thread(stack.__exit__, None, None, None)
