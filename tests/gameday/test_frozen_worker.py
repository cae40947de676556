"""A worker of the router that is stopped (SIGSTOP), as a debugger or a machine that swaps would: it is replaced,
so that the connections which the kernel assigns to it do not wait for ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from router.control.workers.supervisor import MISSED_PINGS, PING_PAUSE_S, PING_TIMEOUT_S
from tests.e2e.workers import Clients, all_up, workers
from tests.fakes.engines import INSTANT, engine

REPLACED_S = MISSED_PINGS * (PING_PAUSE_S + PING_TIMEOUT_S) + 15.0  # and until the new process accepts connections


async def test_a_stopped_follower_is_replaced(
    router_process: Callable[[Any], AbstractAsyncContextManager[Any]], fleet_config: Callable[..., Any]
) -> None:
    async with engine(**INSTANT) as fake, router_process(fleet_config([fake], workers=2)) as router:
        follower = (await all_up(router))[1]["pid"]
        os.kill(follower, signal.SIGSTOP)
        try:
            async with asyncio.timeout(REPLACED_S):
                found = await all_up(router, but=[follower])
        finally:
            if follower in [one["pid"] for one in await workers(router)]:
                os.kill(follower, signal.SIGKILL)
        assert found[1]["pid"] != follower
        assert b"worker 1 has not answered 2 pings: killing it" in router.log
        async with Clients(router) as clients:  # each of the two workers answers
            assert len(clients.each) == 2
