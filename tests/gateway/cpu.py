"""`python -m tests.gateway.cpu FILE SECONDS` follows the pods of the configuration in FILE (JSON) and prints the cost.

Prints "listed N" when the first list is here; at the end the lists that were given on and the CPU time in seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import uvloop

from router.backends.discovery.kubernetes.discovery import KubernetesDiscovery
from router.backends.discovery.merge import merge_lists
from router.backends.feeds.jitter import Jitter
from router.clock import SystemClock
from router.config.sections.discovery import KubernetesConfig


async def follow(config: KubernetesConfig, seconds: float) -> None:
    discovery = KubernetesDiscovery(config, SystemClock(), Jitter())
    lists, began = 0, 0.0
    until: float | None = None
    try:
        async with asyncio.timeout(None) as deadline:
            async for found in discovery.watch():
                merge_lists({"kubernetes": found})
                lists += 1
                if until is None and found:
                    print(f"listed {len(found)}", flush=True)
                    until, began, lists = asyncio.get_running_loop().time() + seconds, time.process_time(), 0
                    deadline.reschedule(until)
    except TimeoutError:
        print(lists, time.process_time() - began, flush=True)


if __name__ == "__main__":
    uvloop.run(follow(KubernetesConfig.model_validate_json(Path(sys.argv[1]).read_text()), float(sys.argv[2])))
