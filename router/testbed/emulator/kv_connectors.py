"""An emulated engine's connectors: KV from the shared pool, KV for a peer, KV from a peer.

    find     before a request is queued: what the pool holds of it, or which half of a pair it is
    begin    it is queued: the decode half goes and fetches, however long its peer may take
    end      it has all its tokens: the prefill half keeps its blocks, and tells (nixl) where they are

As under vLLM's MultiConnector the peer comes first: what is fetched from there is not looked for in the pool.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec

from router.proxy.upstreams import Upstreams
from router.tasks import Tasks
from router.testbed.emulator.bootstrap_server import BootstrapServer
from router.testbed.emulator.disaggregation import DecodeParams, PrefillParams, nixl_params, read_transfer
from router.testbed.emulator.engine_cores import EngineCore, TokenStream
from router.testbed.emulator.options import EngineOptions
from router.testbed.emulator.request_params import RequestParams
from router.testbed.emulator.store_client import POOL, EmulatedStoreClient
from router.testbed.simulator.engine_types import SequenceRequest

CONNECT_TIMEOUT_S = 1.0
KEEPALIVE_S = 4.0
REPLY_S = 1.0  # on top of the time that a peer was asked to wait


class KvConnectors:
    """Its side door is open between enter and exit, if it has one. Entering raises OSError when a port is taken."""

    def __init__(self, options: EngineOptions, tasks: Tasks) -> None:
        self._options = options
        self._tasks = tasks
        self._upstreams = Upstreams(connect_timeout_s=CONNECT_TIMEOUT_S, keepalive_s=KEEPALIVE_S)
        self._peers: set[str] = set()
        self.store: EmulatedStoreClient | None = None
        if options.pool_url is not None:
            self._upstreams.add(POOL, options.pool_url)
            self.store = EmulatedStoreClient(options.store_model, self._upstreams.fetch, options.pool_timeout_s)
        prefills = options.transfer is not None and options.role != "decode"
        self.bootstrap = BootstrapServer(options.host, options.bootstrap_port, options.ranks) if prefills else None

    async def __aenter__(self) -> Self:
        if self.bootstrap is not None:
            await self.bootstrap.listener.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bootstrap is not None:
            await self.bootstrap.listener.__aexit__(kind, error, trace)
        self._upstreams.close()

    @property
    def bootstrap_url(self) -> str | None:
        """Mooncake calls it the bootstrap address."""
        return None if self.bootstrap is None else self.bootstrap.listener.url

    def restart(self) -> None:
        if self.bootstrap is not None:
            self.bootstrap.restart()

    async def find(self, order: RequestParams, id: str, core: EngineCore) -> RequestParams:
        """The order, with what is to be had outside. Raises Broken."""
        half = read_transfer(self._options, order.body.get("kv_transfer_params"), id)
        match half:
            case DecodeParams():
                self._know(half.address)
                requests = [r._replace(external_tokens=len(r.token_ids), source="peer") for r in order.requests]
            case _:
                requests = [await self._pooled(request, core) for request in order.requests]
        if isinstance(half, PrefillParams):
            requests[0] = requests[0]._replace(keeps_after=half.keeps_after)
        return order._replace(requests=requests, half=half)

    def begin(self, order: RequestParams, answer: TokenStream) -> None:
        if isinstance(order.half, DecodeParams):
            answer.bring(self._tasks.spawn("fetch", self._fetch(order.half, answer)))

    def end(self, order: RequestParams, answer: TokenStream, cached_tokens: int) -> dict[str, Any] | None:
        """`kv_transfer_params` of its answer."""
        half, bootstrap, options = order.half, self.bootstrap, self._options
        if not isinstance(half, PrefillParams) or bootstrap is None or answer.finishes[0] not in half.keeps_after:
            return None
        bootstrap.keep(half.name, partial(answer.core.free, answer.ids[0], answer.core.engine), options.lease_s)
        if options.transfer == "mooncake":
            return None
        tokens = len(order.requests[0].token_ids)
        engine_id, listener = bootstrap.engine_ids[answer.core.rank], bootstrap.listener
        return nixl_params(
            half.name, engine_id, listener.host, listener.port, tokens, options.block_tokens, cached_tokens
        )

    async def _pooled(self, request: SequenceRequest, core: EngineCore) -> SequenceRequest:
        """Of a prompt that the pool holds to the end, the last block is computed all the same."""
        if self.store is None:
            return request
        usable = (len(request.token_ids) - 1) // self._options.block_tokens
        held = await self.store.leading(core.engine.digests(request))
        return request._replace(external_tokens=min(held, usable) * self._options.block_tokens)

    def _know(self, address: str) -> None:
        """Raises ValueError for what is no address."""
        if address not in self._peers:
            self._upstreams.add(address, address)
            self._peers.add(address)

    async def _fetch(self, half: DecodeParams, answer: TokenStream) -> None:
        wait_s = self._options.transfer_timeout_s if self._options.transfer == "mooncake" else 0.0
        asked = msgspec.json.encode({"engine_id": half.engine_id, "name": half.name, "wait_s": wait_s})
        told = await self._upstreams.fetch(half.address, "POST", "/emulate/fetch", asked, timeout_s=wait_s + REPLY_S)
        if told is not None and told.status == 200:
            answer.core.arrived(answer)
        elif self._options.kv_load_failure_policy == "recompute":
            answer.core.lost(answer)
        else:
            answer.fail()
