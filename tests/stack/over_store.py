"""Real engines over a real Mooncake Store, and a router in front of them that asks what the store holds.

`OverStore.fetch` sends a request and holds two numbers against each other: how many tokens the router said would come
out of the pool (`pool_tokens` of its record), and how many vLLM counted as external hits while it was alone. `Store`
asks the master itself, by keys that are computed here from the token ids: what is really there, at this moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import httpx

from router.config.sections.pool import PoolModelConfig
from router.features.pool.keys import KeyForm
from router.kvcache.engine_hashes import Adapter, EngineChain
from router.lab.local_stack.commands import HASH_ALGO
from router.lab.local_stack.install import Models
from router.lab.local_stack.supervisor import RunningStack
from tests.bench.real_stack.engine_counters import CounterPage, EngineCounts
from tests.stack.behind import Asked, Behind
from tests.stack.bodies import Json
from tests.stack.children import until
from tests.stack.engines import BLOCK_TOKENS, Engine, small_stack

TTL_MS = 500
DEADLINE_MS = 500  # long beside the default 5: the tests share two cores with the engines that they ask
OLDEST_S = (TTL_MS + DEADLINE_MS) / 1e3  # an answer may expire while the request waits for those to its other blocks
CHAIN = EngineChain(HASH_ALGO)
SAVED_S = 20.0
PORTS = ("master_port", "master_http_port", "client_port")
STORE: Json = {"store": True, "buffer_bytes": 64 << 20} | dict.fromkeys(PORTS, 0)


class Store:
    """The store under a running stack, asked in the way that changes nothing there."""

    def __init__(self, stack: RunningStack) -> None:
        self._form = KeyForm(PoolModelConfig(), stack.model.name)
        self._http = httpx.Client(base_url=str(stack.master_url), timeout=10.0)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def blocks(self, ids: Sequence[int], adapter: Adapter | None = None, salt: str | None = None) -> int:
        """Return the number of leading blocks of a prompt that it holds."""
        keys = [self._form.keys(digest)[0] for digest in CHAIN.chain(None, ids, BLOCK_TOKENS, adapter, salt)]
        if not keys:
            return 0
        data = self._http.get(f"/batch_query_keys?keys={','.join(keys)}").raise_for_status().json()["data"]
        there = [data[key]["ok"] for key in keys]
        return there.index(False) if False in there else len(there)

    def has(self, ids: Sequence[int], adapter: Adapter | None = None, salt: str | None = None) -> None:
        """Waits until it holds all whole blocks of a prompt: engines save in their own time."""
        whole = len(ids) // BLOCK_TOKENS
        until(f"{whole} blocks are saved", lambda: self.blocks(ids, adapter, salt) == whole, SAVED_S)

    def capacity_bytes(self) -> float:
        """Memory that its clients have brought."""
        page = CounterPage(self._http.get("/metrics").raise_for_status().text)
        return page.total("master_total_capacity_bytes") or 0.0


class Fetched(NamedTuple):
    """One request, as the router foretold it and as the engine counted it."""

    kind: str
    asked: Asked
    delivered: int  # tokens from the pool, by vLLM's counter

    @property
    def predicted(self) -> int | None:
        """Tokens from the pool, by the router's record; None: it did not know."""
        tokens: int | None = self.asked.record["attempts"][-1]["pool_tokens"]
        return tokens

    @property
    def right(self) -> bool:
        return self.predicted == self.delivered

    @property
    def pool(self) -> Json | None:
        """The pool's part of the decision's view."""
        seen: Json | None = self.asked.record["attempts"][-1]["view"]["pool"]
        return seen

    def line(self) -> str:
        held = "unknown" if self.pool is None else f"{self.pool['tokens']} {1000 * self.pool['age_s']:.0f} ms ago"
        tokens = f"{self.asked.record['prompt_tokens']} tokens, local {self.asked.predicted}"
        return f"{self.kind:24} {self.asked.instance}: {tokens}, pool {held}: {self.predicted} for {self.delivered}"


class OverStore(Behind):
    """A router with a pool. `fetched` is everything that went through `fetch`, in order."""

    def __init__(
        self, name: str, engines: Sequence[Engine], model: Path, folder: Path, pool: Json | None = None, **other: Any
    ) -> None:
        """`pool`: settings of that section beyond the usual ones; `other` ones replace whole sections."""
        masters = [engines[0].stack.master_url]
        settings: Json = {
            "pool": {"masters": masters, "ttl_ms": TTL_MS, "deadline_ms": DEADLINE_MS} | (pool or {}),
            "policies": {"warm": {"scorers": [{"name": "expected_ttft"}]}},
        }
        super().__init__(name, engines, model, settings | other, folder)
        self.fetched: list[Fetched] = []

    def fetch(self, kind: str, path: str, body: Json) -> Fetched:
        """One request that must be answered, while nobody else asks anything."""
        before = {engine.name: external_hits(engine) for engine in self.engines}
        asked = self.send(path, body)
        assert asked.record["status"] == 200
        engine = self.engine(asked.instance)
        self.hear(engine)
        self.fetched.append(Fetched(kind, asked, external_hits(engine) - before[engine.name]))
        return self.fetched[-1]

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """The instance gets nothing new meanwhile."""
        self.admin.post(f"/admin/instances/{name}/drain").raise_for_status()
        try:
            yield
        finally:
            self.admin.post(f"/admin/instances/{name}/undrain").raise_for_status()

    def saved(self, store: Store, ids: Sequence[int], **kind: Any) -> None:
        """Waits until the pool has a prompt and the router has heard all that the engines had to say of that."""
        store.has(ids, **kind)
        for engine in self.engines:
            self.hear(engine)

    def forget(self, engine: Engine) -> None:
        """Empties the engine's own cache, and waits until the router knows. The pool keeps what it has."""
        until(f"{engine.name} has reset its cache", lambda: reset(engine))
        self.hear(engine)

    def told(self) -> Json:
        """The pool in the admin API."""
        answer: Json = self.admin.get("/admin/pool").raise_for_status().json()
        return answer

    def answers(self, answer: str) -> int:
        """Number of requests with this answer of the pool, by the router's metrics."""
        page = CounterPage(self.http.get("/metrics").raise_for_status().text)
        return int(page.total("warmroute_pool_answers_total", answer=answer) or 0)


def reset(engine: Engine, **what: str) -> bool:
    answer = engine.http.post("/reset_prefix_cache", params=what).raise_for_status().json()
    return bool(answer["success"])


def external_hits(engine: Engine) -> int:
    """Tokens that its connector has brought since it started; 0 of one that is dead, and will start from there."""
    try:
        page = engine.http.get("/metrics").raise_for_status().text
    except httpx.TransportError:
        return 0
    return int(EngineCounts.read(CounterPage(page)).pool_tokens or 0)


@contextmanager
def engines_over_store(models: Models, logs: Path, **settings: Any) -> Iterator[list[Engine]]:
    """A small stack with a store, running, and an ear at each engine."""
    with ExitStack() as opened:
        stack = opened.enter_context(RunningStack(small_stack(models, logs, **(STORE | settings))))
        engines = [opened.enter_context(Engine(stack, server.name)) for server in stack.engines]
        for engine in engines:
            engine.wait()
        yield engines


def table(fetched: Sequence[Fetched]) -> str:
    """Return the number of right predictions by kind, and a line for each wrong one."""
    kinds = dict.fromkeys(one.kind for one in fetched)
    rows = [(kind, [one for one in fetched if one.kind == kind]) for kind in kinds]
    right = [f"{kind:24} {sum(one.right for one in its)} of {len(its)}" for kind, its in rows]
    return "\n".join(["", *right, *(f"WRONG {one.line()}" for one in fetched if not one.right)])
