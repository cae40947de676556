"""Client of the shared pool, a Mooncake Store: looks up how much of a prompt the pool holds.

    token ids, keys  ->  engine digests   ->  cached answers   ->  queries to the leading master   ->  PoolHit
                         digest_cache.py      answer_cache.py      prefix_lookup.py query.py leader.py

Store events of engines (`StoredBlockObserver`) prove which hash the engines use (hash_detection.py) and whether the
rest of the keys is right (key_check.py); blocks that engines put into the pool are cached as present. If any of
this is unknown, the result is *unknown* (`None`), counted by reason: nothing raises, and no request waits for an
answer longer than `deadline_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, final

from router.backends.fetch import Fetch
from router.clock import Clock
from router.config.sections.pool import PoolConfig, PoolModelConfig
from router.features.pool.answer_cache import AnswerCache, BlockPresence
from router.features.pool.hash_detection import HashDetection
from router.features.pool.key_check import KeyCheck
from router.features.pool.keys import KeyForm
from router.features.pool.leader import MasterLeader
from router.features.pool.prefix_lookup import PoolPrefix, PrefixLookup
from router.features.pool.query import StoreClient, can_query
from router.features.pool.report import ModelReport, PoolReport, Unknown
from router.kvcache.digest_cache import DigestCache, budget_for
from router.kvcache.engine_hashes import Digest, EngineChain
from router.kvcache.events import BlocksPooled, BlocksStored, EngineHash, Key
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.request.request import Request
from router.request.services import Services
from router.tasks import Tasks
from scorers.contract import Needs, PoolHit

log = logging.getLogger("warmroute.pool")


class _Model:
    """State of one base model."""

    def __init__(self, name: str, settings: PoolModelConfig, answers: AnswerCache) -> None:
        self.name = name
        self.settings = settings
        self.hash_detection = HashDetection(name, settings)
        self.answers = answers
        self.names: _KeyAccess | None = None  # None: no prompt yet, or the model's name is unknown
        self.root: _Root | None = None  # the latest prompt's first block stored by an engine, for checking keys
        self.logged: str | None = None

    @property
    def trouble(self) -> str | None:
        return self.hash_detection.trouble or (self.names.check.trouble if self.names is not None else None)


class _Root(NamedTuple):
    """The first block of a prompt, as an engine's event reported it."""

    label: EngineHash
    token_ids: Sequence[int]
    salt: str | None
    certain: bool  # the block is in the pool; False: it may be, if the engine saves at all


class _KeyAccess(NamedTuple):
    """Objects that depend on how the model's keys are formed."""

    path: str | None  # the model's path
    form: KeyForm
    search: PrefixLookup
    check: KeyCheck


@final
class MooncakeStore:
    """The pool's client. `masters` are the names of `settings.masters` for `fetch`, in the same order."""

    def __init__(
        self,
        settings: PoolConfig,
        masters: Sequence[str],
        fetch: Fetch,
        tasks: Tasks,
        clock: Clock,
        memory: MemoryBudget | None = None,
    ) -> None:
        """Share `memory` with other caches; None: a budget of its own, enough for `settings.remembered_blocks`."""
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._leader = MasterLeader(masters, settings.health_interval_s, fetch, tasks, clock, self._clear_answers)
        self._client = StoreClient(self._leader, fetch, clock)
        memory = memory or budget_for(settings.remembered_blocks)
        self._digests = DigestCache(settings.remembered_blocks, memory)
        self._models: dict[str, _Model] = {}
        self._hits = self._misses = 0
        self._unknown: Counter[Unknown] = Counter()

    def start(self) -> None:
        """Start following the leading master."""
        self._leader.start()

    async def close(self) -> None:
        """Stop all tasks."""
        await self._tasks.close()

    # requests

    async def enter(self, request: Request, services: Services) -> None:
        """Find the prompt's prefix in the pool, as the stage of a request, if an active policy uses the pool."""
        served, known, override, scheduler = request.served, request.known, request.override, services.scheduler
        request.pool_hit = None
        needs = scheduler.selector.needs if override is None else scheduler.selector.needs | override.policy.needs
        if served is None or known is None or Needs.POOL not in needs:
            return
        started_s = self._clock.now()
        request.pool_hit = await self.lookup(known, scheduler.hash_inputs(request.prompt.salt, served))
        request.durations.pool_ms = (self._clock.now() - started_s) * 1e3

    async def lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | None:
        """Return the leading tokens of the prompt that the pool holds; None: unknown.

        The deadline limits the wait for the pool's answer. New parts of the prompt are hashed before that, in
        slices, at 0.1 to 0.6 us per token: little compared with tokenization.
        """
        answer = await self._lookup(known, origin)
        if not isinstance(answer, PoolHit):
            self._unknown[answer] += 1
            return None
        if answer.tokens:
            self._hits += 1
        else:
            self._misses += 1
        return answer

    async def _lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | Unknown:
        model = self._model(origin.model)
        chain = model.hash_detection.chain
        if chain is None:
            return "uncalibrated"
        only_size = min(known.keys) if len(known.keys) == 1 else None  # keys exist for every block size in the fleet
        block_tokens = model.settings.block_tokens or only_size
        if block_tokens is None or (keys := known.keys.get(block_tokens)) is None:
            return "no_block_size"
        names = self._key_access(model, origin.path)
        if names is None or (origin.adapter is not None and not origin.adapter[1]):
            return "no_name"
        if not can_query(names.form):
            return "no_comma"
        if names.check.trouble is not None:
            return "misnamed"
        if self._leader.current is None:
            return "no_leader"
        keys = keys[: _usable(known, block_tokens)]
        digests = await self._hash(chain, keys, known.ids, block_tokens, origin)
        try:
            async with asyncio.timeout(self._settings.deadline_ms / 1e3):
                found = await names.search.find(digests)
        except TimeoutError:
            return "late"
        if not isinstance(found, PoolPrefix):
            return found
        if not found.blocks and model.hash_detection.state == "waiting":
            return "uncalibrated"
        age_s = max(0.0, self._clock.now() - found.known_at)
        return PoolHit(found.blocks * block_tokens, age_s, found.in_memory * block_tokens)

    async def _hash(
        self, chain: EngineChain, keys: Sequence[Key], ids: array[int], block_tokens: int, origin: HashInputs
    ) -> list[Digest]:
        """Return the digests of `keys`. New digests are computed in slices, each of which finds the previous slice
        cached.
        """
        hashed = chain, keys, ids, block_tokens, origin.adapter, origin.salt
        for _ in self._digests.hash_in_slices(*hashed):
            await asyncio.sleep(0)
        return self._digests.digests(*hashed)

    # events

    def on_stored(self, model: str, event: BlocksStored) -> None:
        """Handle blocks that an engine stored from token 0 on."""
        state = self._model(model)
        state.hash_detection.observe(event)
        self._log_trouble(state)
        if event.adapter is None and not any(event.extras or ()):
            self._note_root(state, event, event.salt, certain=False)

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        """Handle blocks put into the pool: present as a whole, unless KV cache groups are saved one by one."""
        state = self._model(model)
        if state.settings.groups == 1:
            state.answers.record(((int(label), BlockPresence.MEMORY) for label in event.hashes), self._clock.now())
        if event.parent is None:
            self._note_root(state, event, None, certain=True)

    def _note_root(self, model: _Model, event: BlocksStored | BlocksPooled, salt: str | None, *, certain: bool) -> None:
        if event.hashes and len(event.token_ids) >= event.block_tokens:
            model.root = _Root(event.hashes[0], event.token_ids[: event.block_tokens], salt, certain)
            self._check(model)

    def _check(self, model: _Model) -> None:
        """Check the keys of the latest prompt's first block in the pool, if a check is due."""
        chain, names, root = model.hash_detection.chain, model.names, model.root
        if chain is None or names is None or root is None or not names.check.is_due(certain=root.certain):
            return
        (first,) = chain.chain(None, root.token_ids, len(root.token_ids), salt=root.salt)
        if chain.event_hash(first) == root.label:
            names.check.on_saved(first, certain=root.certain)

    # status

    def report(self) -> PoolReport:
        """Return the status for the admin API and metrics."""
        return PoolReport(
            self._leader.current,
            self._leader.masters,
            self._hits,
            self._misses,
            dict(self._unknown),
            self._client.totals,
            len(self._digests),
            [self._report(model) for model in self._models.values()],
        )

    def _report(self, model: _Model) -> ModelReport:
        names = model.names
        return ModelReport(
            model.name,
            model.hash_detection.state,
            model.hash_detection.chain,
            names.form.keys(b"")[0] if names is not None else None,
            names.form.keys_per_block if names is not None else None,
            names.check.state if names is not None else "unchecked",
            model.trouble,
            len(model.answers),
        )

    # internals

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            settings = self._settings.models.get(name) or PoolModelConfig()
            answers = AnswerCache(self._settings.ttl_ms / 1e3, self._settings.remembered_blocks)
            self._models[name] = _Model(name, settings, answers)
        return self._models[name]

    def _key_access(self, model: _Model, path: str | None) -> _KeyAccess | None:
        """Return the objects for the model's keys, created anew when the engines report another path; None if the
        model's name is unknown.
        """
        if model.names is None or model.names.path != path:
            form = KeyForm.from_config(model.settings, path)
            if form is None:
                return None
            search = PrefixLookup(
                form, model.answers, self._client, self._tasks, self._clock, self._settings.keys_at_once
            )
            check = KeyCheck(model.name, form, self._client, self._tasks, self._clock)
            model.names = _KeyAccess(path, form, search, check)
            self._check(model)
        return model.names

    def _log_trouble(self, model: _Model) -> None:
        """Log a new problem once."""
        if (trouble := model.hash_detection.trouble) != model.logged:
            model.logged = trouble
            if trouble is not None:
                log.warning(trouble)

    def _clear_answers(self) -> None:
        for model in self._models.values():
            model.answers.clear()


def _usable(known: TokenizedPrompt, block_tokens: int) -> int:
    """Return how many blocks an engine could load: the last token is always computed (`protocol.md` 6.5)."""
    return (len(known.ids) - known.complete) // block_tokens
