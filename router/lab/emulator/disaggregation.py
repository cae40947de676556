"""The half of a prefill/decode pair that a request selects: `kv_transfer_params`, read as vLLM's connectors do.

    mooncake   P and D receive the same `transfer_id`; D finds P through P's bootstrap server, where D waits for KV
    nixl       P's answer carries the params for D; D receives them verbatim, and they name blocks under a lease

At a prefill engine's bootstrap server, decode engines identify the engine and fetch the KV computed for them:

    GET  /query          as a Mooncake bootstrap server: engine ids by data-parallel rank, new at every start
    POST /emulate/fetch  {"engine_id", "name", "wait_s"}: hand over and free the blocks of this name, in place of
                         the RDMA transfer between real engines. 404: another engine's id; 410: not ready in time

A decode engine may request the blocks before the prompt is computed; the request then waits. Blocks that no engine
fetches are freed after a while. Facts: protocol 7.1 and 7.2; vllm .../v1/mooncake/mooncake_connector.py and
.../v1/nixl/pull_scheduler.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from router.lab.emulator.engine_cores import EngineFailed
from router.lab.emulator.http_server import ClientLeft, EmulatorListener, HttpExchange, Message, Receive, Send
from router.lab.emulator.options import EngineOptions
from router.lab.simulator.engine_types import Finish

REMOTE_KEYS = {
    "mooncake": ("remote_engine_id", "remote_bootstrap_addr", "transfer_id"),
    "nixl": ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids"),
}
HOLD_AFTER: dict[str, tuple[Finish, ...]] = {"mooncake": ("length",), "nixl": ("length", "stop")}


class PrefillParams(NamedTuple):
    """This engine computes the prompt and holds its blocks under `name` until a peer fetches them."""

    name: str
    keeps_after: tuple[Finish, ...]  # finish reasons after which the blocks are held


class DecodeParams(NamedTuple):
    """This engine fetches the KV that a peer has computed."""

    address: str  # base URL of the peer's bootstrap server
    engine_id: str
    name: str
    cached_tokens: int | None  # prefix hit of P; `None`: not reported (mooncake)


def read_transfer(options: EngineOptions, params: object, request_id: str) -> PrefillParams | DecodeParams | None:
    """Return the half of a pair that the request is. None if it is neither or its params are incomplete.

    Raises EngineFailed where a real engine's scheduler dies on the assertion of its role.
    """
    if options.transfer is None or not isinstance(params, dict):
        return None
    strict = options.transfer == "mooncake"
    if params.get("do_remote_prefill"):
        if strict and options.role == "prefill":
            raise EngineFailed("EngineCore encountered an issue: assert not self.is_kv_producer")
        return _read_decode(options, params)
    if params.get("do_remote_decode"):
        if strict and options.role == "decode":
            raise EngineFailed("EngineCore encountered an issue: assert not self.is_kv_consumer")
        name = params.get("transfer_id") if strict else request_id
        return PrefillParams(str(name), HOLD_AFTER[options.transfer]) if name else None
    return None


def _read_decode(options: EngineOptions, params: dict[str, Any]) -> DecodeParams | None:
    assert options.transfer is not None
    if any(not params.get(key) for key in REMOTE_KEYS[options.transfer]):
        return None
    if options.transfer == "mooncake":
        address, name, cached = params["remote_bootstrap_addr"], params["transfer_id"], None
    else:
        address = f"http://{params['remote_host']}:{int(params['remote_port'])}"
        name, cached = params["remote_request_id"], params.get("remote_prefill_cached_tokens")
    return DecodeParams(str(address), str(params["remote_engine_id"]), str(name), cached)


class NixlSource(NamedTuple):
    """The prefill engine from which a decode engine fetches by the Nixl connector."""

    engine_id: str
    host: str
    port: int

    def make_params(self, name: str, tokens: int, blocks: int, cached_tokens: int) -> dict[str, Any]:
        """Return P's params for D (protocol 7.2, all keys of 0.32). The block ids are made up: nothing reads them."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, 1 + blocks))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": name,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": cached_tokens,
        }


class _FetchRequest(msgspec.Struct, forbid_unknown_fields=True):
    engine_id: str
    name: str
    wait_s: float


class BootstrapServer(EmulatorListener):
    """Server that holds computed blocks until decode engines fetch them. It listens while entered."""

    def __init__(self, host: str, port: int, ranks: int) -> None:
        super().__init__(self._handle, host, port)
        self.engine_ids: list[str] = []
        self._ranks = ranks
        self._held: dict[str, asyncio.Future[Callable[[], None]]] = {}
        self.restart()

    def restart(self) -> None:
        """Restart as a new engine: take new ids and drop the held blocks."""
        self.engine_ids = [f"{uuid.uuid4()}_dp{rank}" for rank in range(self._ranks)]
        self._held.clear()

    def hold(self, name: str, free: Callable[[], None], lease_s: float) -> None:
        """Offer blocks for fetching. `free` is called once: when they are fetched or after `lease_s`."""
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
        """Hand over the requested blocks; return the HTTP status of the answer."""
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
