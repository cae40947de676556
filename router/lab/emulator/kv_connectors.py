"""The KV connectors of an emulated engine: KV from the shared pool, KV for a peer, KV from a peer.

    find     before a request is queued: query the pool for its prefix, or read which half of a pair it is
    begin    after it is queued: a decode half starts to fetch from its peer, however long the fetch takes
    end      after its last token: a prefill half's blocks are held and, with nixl, its answer names them

As under vLLM's MultiConnector the peer has precedence: KV fetched from a peer is not looked up in the pool.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import msgspec

from router.lab.emulator.disaggregation import (
    BootstrapServer,
    DecodeParams,
    NixlSource,
    PrefillParams,
    read_transfer,
)
from router.lab.emulator.engine_cores import EngineCore, TokenStream
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.request_params import RequestParams
from router.lab.emulator.store_client import POOL, EmulatedStoreClient
from router.lab.simulator.engine_types import SequenceRequest
from router.proxy.upstreams import Upstreams
from router.tasks import Tasks

CONNECT_TIMEOUT_S = 1.0
KEEPALIVE_S = 4.0
REPLY_S = 10.0  # beyond the time for which the request lets the peer wait; a busy machine pauses for seconds


class KvConnectors:
    """KV connectors of one engine. A bootstrap server, if any, listens while entered.

    Entering raises OSError when its port is in use.
    """

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
            await self.bootstrap.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.bootstrap is not None:
            await self.bootstrap.__aexit__(*error)
        self._upstreams.close()

    @property
    def bootstrap_url(self) -> str | None:
        """Base URL of the bootstrap server. None if this engine does not prefill for others."""
        return None if self.bootstrap is None else self.bootstrap.url

    def restart(self) -> None:
        """Drop the blocks held for peers, as a restarting engine does."""
        if self.bootstrap is not None:
            self.bootstrap.restart()

    async def find(self, params: RequestParams, id: str, core: EngineCore) -> RequestParams:
        """Return the request with the KV found in pool or peer. Raises EngineFailed if it contradicts the role."""
        transfer = read_transfer(self._options, params.body.get("kv_transfer_params"), id)
        match transfer:
            case DecodeParams():
                self._add_peer(transfer.address)
                sequences = [r._replace(external_tokens=len(r.token_ids), source="peer") for r in params.sequences]
            case _:
                sequences = [await self._find_in_pool(request, core) for request in params.sequences]
        if isinstance(transfer, PrefillParams):
            sequences[0] = sequences[0]._replace(keeps_after=transfer.keeps_after)
        return params._replace(sequences=sequences, transfer=transfer)

    def begin(self, params: RequestParams, stream: TokenStream) -> None:
        """Start the fetch of a decode half."""
        if isinstance(params.transfer, DecodeParams):
            stream.attach_fetch(self._tasks.spawn("fetch", self._fetch(params.transfer, stream)))

    def end(self, params: RequestParams, stream: TokenStream, cached_tokens: int) -> dict[str, Any] | None:
        """Hold the blocks of a prefill half. Return its answer's `kv_transfer_params`, None if it has none."""
        transfer, bootstrap, options = params.transfer, self.bootstrap, self._options
        if not isinstance(transfer, PrefillParams) or bootstrap is None:
            return None
        if stream.finishes[0] not in transfer.keeps_after:
            return None
        bootstrap.hold(transfer.name, partial(stream.core.free, stream.ids[0], stream.core.engine), options.lease_s)
        if options.transfer == "mooncake":
            return None
        host, tokens = options.side_channel_host or bootstrap.host, len(params.sequences[0].token_ids)
        source = NixlSource(bootstrap.engine_ids[stream.core.rank], host, bootstrap.port)
        return source.make_params(transfer.name, tokens, -(-tokens // options.block_tokens), cached_tokens)

    async def _find_in_pool(self, request: SequenceRequest, core: EngineCore) -> SequenceRequest:
        """Fill in how much of the prompt the pool holds; the prompt's last block is always computed."""
        if self.store is None:
            return request
        usable = (len(request.token_ids) - 1) // self._options.block_tokens
        held = await self.store.count_leading(core.engine.digests(request))
        return request._replace(external_tokens=min(held, usable) * self._options.block_tokens)

    def _add_peer(self, address: str) -> None:
        """Make the peer reachable. Raises ValueError when `address` is not a URL."""
        if address not in self._peers:
            self._upstreams.add(address, address)
            self._peers.add(address)

    async def _fetch(self, transfer: DecodeParams, stream: TokenStream) -> None:
        wait_s = self._options.transfer_timeout_s if self._options.transfer == "mooncake" else 0.0
        body = msgspec.json.encode({"engine_id": transfer.engine_id, "name": transfer.name, "wait_s": wait_s})
        timeout_s = wait_s + REPLY_S
        answer = await self._upstreams.fetch(transfer.address, "/emulate/fetch", body, timeout_s=timeout_s)
        if answer is not None and answer.status == 200:
            stream.core.finish_load(stream)
        elif self._options.kv_load_failure_policy == "recompute":
            stream.core.fail_load(stream)
        else:
            stream.fail()
