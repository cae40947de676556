"""The side door of a prefill engine: where decode engines find out who it is, and fetch what it has computed for them.

    GET  /query          of a Mooncake bootstrap server: engine ids by data-parallel rank, new at every start
    POST /emulate/fetch  {"engine_id", "name", "wait_s"}: the blocks kept under that name are given away and freed;
                         in place of the RDMA between real ones. 404: another engine's id; 410: not there in time

A decode engine may come before the prompt is computed, and waits. Blocks that nobody fetches are freed after a while.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from router.testbed.emulator.http_exchange import ClientLeft, HttpExchange, Message, Receive, Send
from router.testbed.emulator.listener import EmulatorListener


class _Fetch(msgspec.Struct, forbid_unknown_fields=True):
    engine_id: str
    name: str
    wait_s: float


class BootstrapServer:
    """Open between enter and exit."""

    def __init__(self, host: str, port: int, ranks: int) -> None:
        self.listener = EmulatorListener(self._serve, host, port)
        self.engine_ids: list[str] = []
        self._ranks = ranks
        self._places: dict[str, asyncio.Future[Callable[[], None]]] = {}
        self.restart()

    def restart(self) -> None:
        """A new engine: nobody knows its ids, and what was kept is lost."""
        self.engine_ids = [f"{uuid.uuid4()}_dp{rank}" for rank in range(self._ranks)]
        self._places.clear()

    def keep(self, name: str, free: Callable[[], None], for_s: float) -> None:
        """Blocks are ready to be fetched; `free` is called once, when they are not needed any longer."""
        self._let_go(name)  # of an earlier one of that name: ids were to be unique
        self._place(name).set_result(free)
        asyncio.get_running_loop().call_later(for_s, self._let_go, name)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpExchange(scope, receive, send)
        with suppress(ClientLeft):
            await call.read()
            match call.method, call.path:
                case "GET", "/query":
                    await call.answer({str(rank): self._entry(id) for rank, id in enumerate(self.engine_ids)})
                case "POST", "/emulate/fetch":
                    await call.answer({}, await self._fetch(msgspec.json.decode(call.body, type=_Fetch)))
                case _:
                    await call.answer({"detail": "Not Found"}, 404)

    def _entry(self, engine_id: str) -> dict[str, object]:
        address = self.listener.url.replace("http://", "tcp://")
        return {"engine_id": engine_id, "worker_addr": {"0": {"0": address}}}

    async def _fetch(self, asked: _Fetch) -> int:
        if asked.engine_id not in self.engine_ids:
            return 404
        place = self._place(asked.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(asked.wait_s):
                await asyncio.wait([place])
        if not place.done():
            self._places.pop(asked.name, None)
            return 410
        return 200 if self._let_go(asked.name) else 410

    def _place(self, name: str) -> asyncio.Future[Callable[[], None]]:
        if name not in self._places:
            self._places[name] = asyncio.get_running_loop().create_future()
        return self._places[name]

    def _let_go(self, name: str) -> bool:
        """False: nothing is kept under that name, or not any longer."""
        place = self._places.get(name)
        if place is None or not place.done():
            return False
        del self._places[name]
        place.result()()
        return True
