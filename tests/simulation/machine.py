"""The machine below a simulated world: randomness and threads come from the world's seed and loop.

Processes draw secrets, run ids and UUIDs from the operating system, and hand work to thread pools. Both are replaced
where Python reaches the machine, so that the product's own code, compiled or not, and its libraries are unchanged.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from router.lab.rng import Rng
from tests.simulation.loop import VirtualLoop


@contextmanager
def simulated_machine(rng: Rng, loop: VirtualLoop) -> Iterator[None]:
    """Draw all randomness from `rng`, and run all work of threads on `loop`, while entered."""

    def urandom(size: int) -> bytes:
        return b"".join(rng.bits().to_bytes(8, "little") for _ in range(-(-size // 8)))[:size]

    def submit(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **named: Any) -> Any:
        return loop.submit(lambda: work(*args, **named))

    with (
        patch.object(os, "urandom", urandom),
        patch.object(random, "_urandom", urandom),
        patch.object(ThreadPoolExecutor, "submit", submit),
    ):
        yield
