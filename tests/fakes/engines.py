"""Emulated engines for tests: real sockets, ports chosen by the system, no time spent unless configured.

    async with engine(ranks=2) as fake:              in this process and loop; look inside with fake.server
    async with engine_process(model="m") as member:  a process of its own, for tests that kill it; its fleet restarts it

Options are the fields of `EngineOptions`. Everything is stopped when the block is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from router.clock import SystemClock
from router.lab.emulator.http_server import HttpExchange
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.server import EmulatedServer
from router.lab.emulator.supervisor import EmbeddedFleet, EmulatedEngine
from router.lab.simulator.engine_types import EngineGauges
from tests.patience import PATIENCE_S

INSTANT: dict[str, Any] = {
    "prefill_tokens_per_s": 0,
    "decode_ms_per_token": 0,
    "answer_tokens": 16,
    "pool_timeout_s": PATIENCE_S,  # a busy machine is not a silent pool
    "scale_out": True,  # token ids are proved by /render: engines see no chat that no client sent
}


class FakeEngine:
    """A running emulated engine, with what tests inspect and change."""

    def __init__(self, server: EmulatedServer) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def address(self) -> str:
        """host:port"""
        return f"{self.server.options.host}:{self.server.port}"

    @property
    def bootstrap_url(self) -> str | None:
        """Base URL at which decode engines find a prefill engine; `None` for one without a transfer."""
        return self.server.connectors.bootstrap_url

    def faults(self, **changes: Any) -> None:
        """Set the named faults, keep the others."""
        cores = self.server.cores
        cores.apply_faults(cores.faults.merge_json(msgspec.json.encode(changes)))

    def restart(self) -> None:
        """Crash the engine core, which comes back empty; the HTTP server stays."""
        self.server.cores.restart()
        self.server.connectors.restart()

    def seen(self, path: str) -> list[HttpExchange]:
        """Requests to this path, oldest first, as they arrived."""
        return [exchange for exchange in self.server.app.requests if exchange.path == path]

    def gauges(self, rank: int = 0) -> EngineGauges:
        return self.server.cores.all[rank].engine.gauges()

    @property
    def saving(self) -> int:
        """Computed prompts that are not in the pool yet."""
        return sum(core.saving for core in self.server.cores.all)

    def sources(self) -> dict[str, dict[str, Any]]:
        """The body of GET /kv_event_sources."""
        return self.server.cores.sources()


@asynccontextmanager
async def engine(**options: Any) -> AsyncIterator[FakeEngine]:
    async with EmulatedServer(EngineOptions(**(INSTANT | options)), SystemClock()) as server:
        yield FakeEngine(server)


@asynccontextmanager
async def engine_process(**options: Any) -> AsyncIterator[Callable[[], EmulatedEngine]]:
    """Yield a function that returns the current process: its pid changes when it is killed and restarted."""
    async with EmbeddedFleet([EngineOptions(**(INSTANT | options))]) as fleet:
        yield lambda: fleet.members[0]


def is_proof(head: bytes, body: bytes) -> bool:
    """Return whether a request is the router's own, by which it proves token ids: for engines that are scripts."""
    return b"/render " in head or body.endswith(b'"max_tokens":1,"temperature":0,"return_token_ids":true}')


async def eventually(condition: Callable[[], object], deadline_s: float = PATIENCE_S) -> None:
    """Wait until `condition()` is true. Fails with its last value after `deadline_s`."""
    end = asyncio.get_running_loop().time() + deadline_s
    while not (value := condition()):
        assert asyncio.get_running_loop().time() < end, f"not in {deadline_s} s: still {value!r}"
        await asyncio.sleep(0.002)
