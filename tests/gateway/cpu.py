"""`python -m tests.gateway.cpu FILE PODS` follows the pods that the configuration in FILE (JSON) selects.

Prints "joined" when PODS instances have, and at SIGTERM the seconds since (`wall_s`), their CPU time (`cpu_s`) and how
many instances get no requests (`refused`). Only discovery and membership run: no engine is probed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import uvloop

from router.app import App
from router.config import schema
from tests.fakes.engines import eventually


async def follow(config: schema.Config, pods: int) -> None:
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    app = App(config)
    name, discovery = next(iter(app.core.discoveries.items()))
    following = asyncio.create_task(app.core._follow(name, discovery))
    fleet = app.core.scheduler.fleet
    await eventually(lambda: len(list(fleet)) == pods, 30.0)
    print("joined", flush=True)
    began, cpu_began = time.monotonic(), time.process_time()
    await terminated.wait()
    spent = {"wall_s": time.monotonic() - began, "cpu_s": time.process_time() - cpu_began}
    print(json.dumps(spent | {"refused": sum(not found.accepting for found in fleet)}), flush=True)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await app.stop()


if __name__ == "__main__":
    uvloop.run(follow(schema.Config.model_validate_json(Path(sys.argv[1]).read_text()), int(sys.argv[2])))
