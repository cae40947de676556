"""A pool room in front of simulated masters on real sockets, asked over the connections that the router really uses."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from router.clock import SystemClock
from router.config.sections.pool import PoolConfig, PoolModelConfig
from router.features.pool.client import MooncakeStore
from router.features.pool.keys import KeyForm
from router.kvcache.block_keys import Keyring
from router.kvcache.engine_hashes import Digest, EngineChain
from router.kvcache.events import BlocksPooled, BlocksStored, Tier
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.lab.emulator.mooncake_master import MasterFaults, MasterOptions, MooncakeMaster
from router.proxy.upstreams import Upstreams
from router.tasks import Tasks
from scorers.contract import PoolHit
from tests.patience import PATIENCE_S

MODEL = "small"
PATH = "/models/Small-1B"
BLOCK = 4
CHAIN = EngineChain("sha256_cbor")
ORIGIN = HashInputs(MODEL, PATH, None, None)
KEYRING = Keyring(7)


async def until(what: str, condition: Callable[[], bool], deadline_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(0.002)


def prompt(
    blocks: int,
    *,
    begins: int = 0,
    extra: int = 1,
    complete: bool = True,
    adapter: str | None = None,
    salt: str | None = None,
) -> TokenizedPrompt:
    """`blocks` full blocks and `extra` tokens. Prompts that begin with different numbers share nothing."""
    ids = array("I", (begins, *range(1, blocks * BLOCK + extra)))
    root = KEYRING.root(MODEL, adapter, salt)
    return TokenizedPrompt(ids, complete, "given", {BLOCK: KEYRING.chain(root, ids, BLOCK)}, 0.0, 0.0)


def digests(known: TokenizedPrompt) -> list[Digest]:
    return CHAIN.chain(None, known.ids, BLOCK)


def stored(known: TokenizedPrompt, blocks: int = 1, chain: EngineChain = CHAIN) -> BlocksStored:
    """The prompt's first blocks entered an engine's cache."""
    ids = known.ids[: blocks * BLOCK]
    hashes = [chain.event_hash(digest) for digest in chain.chain(None, ids, BLOCK)]
    return BlocksStored(hashes, None, ids, BLOCK, Tier.GPU, 0, None, None, None)


def pooled(known: TokenizedPrompt, blocks: int = 1) -> BlocksPooled:
    """An engine put the prompt's first blocks into the pool."""
    event = stored(known, blocks)
    return BlocksPooled(event.hashes, None, event.token_ids, BLOCK)


class Scene:
    def __init__(self, masters: list[MooncakeMaster], settings: PoolConfig, upstreams: Upstreams) -> None:
        self.masters = masters
        self.upstreams = upstreams
        self.tasks = Tasks("pool")
        names = [f"master {number}" for number in range(len(masters))]
        for name, master in zip(names, masters, strict=True):
            upstreams.add(name, master.url)
        self.pool = MooncakeStore(settings, names, upstreams.fetch, self.tasks, SystemClock())
        self.form = KeyForm(settings.models.get(MODEL) or PoolModelConfig(), "Small-1B")

    @property
    def master(self) -> MooncakeMaster:
        return self.masters[0]

    def faults(self, **changes: Any) -> None:
        self.master.faults = MasterFaults(**changes)

    def keys(self, known: TokenizedPrompt, blocks: Iterable[int]) -> list[str]:
        all_of_them = digests(known)
        return [key for block in blocks for key in self.form.keys(all_of_them[block])]

    def put(self, known: TokenizedPrompt, blocks: Iterable[int], tier: Any = "memory") -> None:
        for key in self.keys(known, blocks):
            self.master.keys.setdefault(key, set()).add(tier)

    def remove(self, known: TokenizedPrompt, blocks: Iterable[int]) -> None:
        for key in self.keys(known, blocks):
            del self.master.keys[key]

    async def held(self, known: TokenizedPrompt, origin: HashInputs = ORIGIN) -> PoolHit | None:
        return await self.pool.lookup(known, origin)

    async def tokens(self, known: TokenizedPrompt) -> int | None:
        hit = await self.held(known)
        return None if hit is None else hit.tokens

    async def forget(self) -> None:
        """Another master begins to lead for a moment: what the first one said counts no more."""
        self.faults(standby=True)
        await until("nobody leads", lambda: self.leader is None)
        self.faults()
        await until("it leads again", lambda: self.leader is not None)

    @property
    def unknown(self) -> dict[str, int]:
        return dict(self.pool.report().unknown)

    @property
    def leader(self) -> str | None:
        return self.pool.report().leader


@asynccontextmanager
async def scene(
    *, masters: int = 1, model: dict[str, Any] | None = None, calibrated: bool = True, **settings: Any
) -> AsyncIterator[Scene]:
    """The room runs, knows its leader, and has seen by which hash the engines go. `settings`: of the `pool` section,
    with a patience that a loaded machine cannot exhaust."""
    async with AsyncExitStack() as stack:
        its = [await stack.enter_async_context(MooncakeMaster(MasterOptions())) for _ in range(masters)]
        upstreams = Upstreams(connect_timeout_s=1.0, keepalive_s=4.0)
        stack.callback(upstreams.close)
        given = {"deadline_ms": 2000, "ttl_ms": 60_000, "health_interval_s": 0.5} | settings
        models = {MODEL: {"hash_algo": "sha256_cbor", **(model or {})}}
        urls = [master.url for master in its]
        made = Scene(its, PoolConfig.model_validate({"masters": urls, "models": models} | given), upstreams)
        made.pool.start()
        stack.push_async_callback(made.pool.close)
        await until("a master leads", lambda: made.leader is not None)
        if calibrated:
            made.pool.on_stored(MODEL, stored(prompt(1, begins=99)))
        yield made
