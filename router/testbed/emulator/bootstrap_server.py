"""The bootstrap server of a prefill engine, where decode engines identify it and fetch the KV computed for them.

    GET  /query          as a Mooncake bootstrap server: engine ids by data-parallel rank, new at every start
    POST /emulate/fetch  {"engine_id", "name", "wait_s"}: hand over and free the blocks held under that name, in place
                         of the RDMA transfer between real engines. 404: another engine's id; 410: not ready in time

A decode engine may ask before the prompt is computed, and waits. Blocks that no engine fetches are freed after a while.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from router.testbed.emulator.http_server import ClientLeft, EmulatorListener, HttpExchange, Message, Receive, Send


class _FetchRequest(msgspec.Struct, forbid_unknown_fields=True):
    engine_id: str
    name: str
    wait_s: float


class BootstrapServer(EmulatorListener):
    """Listens while entered."""

    def __init__(self, host: str, port: int, ranks: int) -> None:
        super().__init__(self._handle, host, port)
        self.engine_ids: list[str] = []
        self._ranks = ranks
        self._held: dict[str, asyncio.Future[Callable[[], None]]] = {}
        self.restart()

    def restart(self) -> None:
        """Act as a new engine: with new ids, and without the blocks that were held."""
        self.engine_ids = [f"{uuid.uuid4()}_dp{rank}" for rank in range(self._ranks)]
        self._held.clear()

    def hold(self, name: str, free: Callable[[], None], lease_s: float) -> None:
        """Offer blocks for fetching; `free` is called once, when they are fetched or `lease_s` has passed."""
        self._release(name)  # names are meant to be unique; a repeated one replaces the earlier
        self._future(name).set_result(free)
        asyncio.get_running_loop().call_later(lease_s, self._release, name)

    async def _handle(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send)
        with suppress(ClientLeft):
            await exchange.read()
            match exchange.method, exchange.path:
                case "GET", "/query":
                    await exchange.send_json({str(rank): self._entry(id) for rank, id in enumerate(self.engine_ids)})
                case "POST", "/emulate/fetch":
                    request = msgspec.json.decode(exchange.body, type=_FetchRequest)
                    await exchange.send_json({}, await self._fetch(request))
                case _:
                    await exchange.send_json({"detail": "Not Found"}, 404)

    def _entry(self, engine_id: str) -> dict[str, object]:
        address = self.url.replace("http://", "tcp://")
        return {"engine_id": engine_id, "worker_addr": {"0": {"0": address}}}

    async def _fetch(self, request: _FetchRequest) -> int:
        """Return the status of the answer."""
        if request.engine_id not in self.engine_ids:
            return 404
        future = self._future(request.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(request.wait_s):
                await asyncio.wait([future])
        if not future.done():
            self._held.pop(request.name, None)
            return 410
        return 200 if self._release(request.name) else 410

    def _future(self, name: str) -> asyncio.Future[Callable[[], None]]:
        if name not in self._held:
            self._held[name] = asyncio.get_running_loop().create_future()
        return self._held[name]

    def _release(self, name: str) -> bool:
        """Free the blocks held under `name`; return whether there were any."""
        future = self._held.get(name)
        if future is None or not future.done():
            return False
        del self._held[name]
        future.result()()
        return True
