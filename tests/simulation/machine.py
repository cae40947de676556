"""The machine below a simulated world: randomness, threads and ZeroMQ come from the world's seed and loop, garbage is
collected at its times, and no freed memory is given back: when, depends on this process.

Processes draw secrets, run ids and UUIDs from the operating system, hand work to thread pools, and exchange messages
by libzmq. All three are replaced where Python reaches them, so that the product's own code, compiled or not, and its
other libraries are unchanged. The garbage collector would run after so many allocations, of whatever the process did
before; what it finds may schedule callbacks (asynchronous generators that nobody closed).
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import zmq

from router.control import allocator
from router.lab.rng import Rng
from tests.simulation.loop import VirtualLoop
from tests.simulation.peer_sockets import SimulatedContext

SECRET_ENV = "SIMULATED_REPLICAS_SECRET"  # the name of the variable


@contextmanager
def simulated_machine(rng: Rng, loop: VirtualLoop) -> Iterator[None]:
    """Draw all randomness from `rng`, and run threads and ZeroMQ on `loop`, while entered. The caller collects
    garbage.
    """

    def urandom(size: int) -> bytes:
        return b"".join(rng.bits().to_bytes(8, "little") for _ in range(-(-size // 8)))[:size]

    def submit(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **named: Any) -> Any:
        return loop.submit(lambda: work(*args, **named))

    with (
        patch.object(os, "urandom", urandom),
        patch.object(random, "_urandom", urandom),
        patch.object(ThreadPoolExecutor, "submit", submit),
        patch.object(zmq, "Context", lambda: SimulatedContext(loop.network)),
        patch.object(allocator, "find_trim", lambda: None),
        patch.dict(os.environ, {SECRET_ENV: "the secret of simulated routers"}),
    ):
        gc.collect()
        gc.freeze()  # collecting takes a sixth of a run if it examines all modules each time
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            gc.unfreeze()
