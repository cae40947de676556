"""A simulated engine: the emulator's whole server on the in-memory network, which crashes and starts again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from router.kvcache.events import EngineHash
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.server import EmulatedServer
from tests.simulation.event_sockets import SimulatedEventSockets
from tests.simulation.loop import LoopClock
from tests.simulation.network import Network, run_on_host

PORT, EVENTS_PORT, REPLAY_PORT = 8000, 5557, 5558
NO_FAULTS = EngineOptions().faults


class EngineHost:
    """One engine on a host of its own. `server` is None while it is down."""

    def __init__(self, network: Network, name: str, **options: Any) -> None:
        self._network = network
        self.name = name
        self.options = EngineOptions(
            name=name, host=name, port=PORT, events_port=EVENTS_PORT, replay_port=REPLAY_PORT, **options
        )
        self.server: EmulatedServer | None = None
        self.finished = 0  # answers of all former cores
        self.lossless = True  # since the core started, whatever was lost could be replayed

    @property
    def url(self) -> str:
        return f"http://{self.name}:{PORT}"

    async def start(self) -> None:
        """Start the server with an empty cache."""
        self._network.boot(self.name)
        self.server = await run_on_host(self.name, self._enter())
        self.lossless = True

    async def crash(self, *, silently: bool) -> None:
        """End the process at once; `silently`: its host loses its power."""
        assert self.server is not None
        self._count_answers()
        server, self.server = self.server, None
        self._network.crash(self.name, silently=silently)
        await run_on_host(self.name, server.__aexit__())

    def restart_core(self) -> None:
        """End the engine core's process, which starts again with an empty cache; the HTTP server stays."""
        assert self.server is not None
        self._network.end_process(self.name, (EVENTS_PORT, REPLAY_PORT))
        self._count_answers()
        self.server.cores.restart()
        self.lossless = True

    def set_faults(self, **changes: Any) -> None:
        """Put exactly these faults in force, if the engine is up."""
        if self.server is not None:
            self.lossless = self.lossless and not changes.get("silent_replays", False)
            self.server.cores.apply_faults(msgspec.structs.replace(NO_FAULTS, **changes))

    def publish_nothing(self) -> None:
        """Publish a batch without events: the loss of a batch shows in the number of the next one only."""
        assert self.server is not None
        self.server.cores.all[0].publisher.publish([])

    @property
    def busy(self) -> bool:
        """True while a request runs or waits in the engine."""
        if self.server is None:
            return False
        gauges = [core.engine.gauges() for core in self.server.cores.all]
        return any(one.running or one.waiting for one in gauges)

    def _count_answers(self) -> None:
        """Add the answers of the core that ends."""
        assert self.server is not None
        gauges = self.server.cores.all[0].engine.gauges()
        self.finished += gauges.stopped + gauges.truncated

    def cached(self) -> Counter[EngineHash]:
        """The blocks in the cache of the engine's only rank, by their hash, copies counted."""
        assert self.server is not None
        copies = self.server.cores.all[0].engine._pool._copies  # vLLM publishes no list of them either
        return Counter({label: len(blocks) for (_, label), blocks in copies.items()})

    async def _enter(self) -> EmulatedServer:
        server = EmulatedServer(self.options, LoopClock(self._network.loop), SimulatedEventSockets(self._network))
        return await server.__aenter__()
