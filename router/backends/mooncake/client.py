"""The shared pool as a Mooncake Store: what it holds of a prompt, in the engines' own words for it.

    token ids, keys  ->  engine digests  ->  what was said lately  ->  questions to the leading master  ->  PoolHit
                         digests.py          answers.py                search.py probe.py asking.py leader.py

What engines store (the `Witness` side) proves by which hash they go (calibration.py) and whether the rest of our keys
is right (checking.py); what they put into the pool is remembered as there. Where any of this is not known, the answer
is *unknown* (None), counted by reason: nothing raises, and no request waits for an answer beyond `deadline_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from router.backends.fetch import Fetch
from router.backends.mooncake.answer_cache import AnswerCache, BlockPresence
from router.backends.mooncake.digest_cache import DigestCache, budget_for
from router.backends.mooncake.hash_detection import HashDetection
from router.backends.mooncake.key_check import KeyCheck
from router.backends.mooncake.keys import KeyForm
from router.backends.mooncake.leader import MasterLeader
from router.backends.mooncake.prefix_lookup import PoolPrefix, PrefixLookup
from router.backends.mooncake.query import StoreClient, can_query
from router.backends.mooncake.report import ModelReport, PoolReport, Unknown
from router.clock import Clock
from router.config.sections import kv_store
from router.kvcache.engine_hashes import Digest, EngineChain
from router.kvcache.events import BlocksPooled, BlocksStored, EngineHash, Key
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.tasks import Tasks
from scorers.contract import PoolHit

log = logging.getLogger("warmroute.pool")

SLICE_TOKENS = 4_000  # hashed in one go, 0.5 to 2.5 ms: then the loop may do something else


class _Model:
    """What belongs to one base model."""

    def __init__(self, name: str, settings: kv_store.PoolModelConfig, answers: AnswerCache) -> None:
        self.name = name
        self.settings = settings
        self.calibration = HashDetection(name, settings)
        self.answers = answers
        self.names: _Names | None = None  # None: no prompt came yet, or its model's name was not known
        self.root: _Root | None = None  # the last first block that an engine stored: what names can be held against
        self.logged: str | None = None

    @property
    def trouble(self) -> str | None:
        return self.calibration.trouble or (self.names.check.trouble if self.names is not None else None)


class _Root(NamedTuple):
    """A prompt's first block, as an engine announced it."""

    label: EngineHash
    token_ids: Sequence[int]
    salt: str | None
    certain: bool  # it is in the pool; else it may be, if that engine saves at all


class _Names(NamedTuple):
    """What follows from how the model's blocks are called."""

    path: str | None  # of the model
    form: KeyForm
    search: PrefixLookup
    check: KeyCheck


class MooncakeStore:
    """`masters`: the names by which `fetch` knows those of `settings.masters`, in the same order."""

    def __init__(
        self,
        settings: kv_store.PoolConfig,
        masters: Sequence[str],
        fetch: Fetch,
        tasks: Tasks,
        clock: Clock,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`memory`: shared with others that remember; default: as much as `settings.remembered_blocks` take."""
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._leader = MasterLeader(masters, settings.health_interval_s, fetch, tasks, clock, self._forget)
        self._asking = StoreClient(self._leader, fetch, clock)
        memory = memory or budget_for(settings.remembered_blocks)
        self._digests = DigestCache(settings.remembered_blocks, memory)
        self._models: dict[str, _Model] = {}
        self._held = self._nothing = 0
        self._unknown: Counter[Unknown] = Counter()

    def start(self) -> None:
        self._leader.start()

    async def close(self) -> None:
        await self._tasks.close()

    # what requests ask

    async def lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | None:
        """`Pool.held`. The deadline is for the pool's answer. Hashing what is new of a prompt comes before it, in
        slices, at 0.1 to 0.6 us per token, which is little beside what making the tokens took.
        """
        answer = await self._answer(known, origin)
        if not isinstance(answer, PoolHit):
            self._unknown[answer] += 1
            return None
        if answer.tokens:
            self._held += 1
        else:
            self._nothing += 1
        return answer

    async def _answer(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | Unknown:
        model = self._model(origin.model)
        chain = model.calibration.chain
        if chain is None:
            return "uncalibrated"
        told = min(known.keys) if len(known.keys) == 1 else None  # keys are made for every size in the fleet
        block_tokens = model.settings.block_tokens or told
        if block_tokens is None or (keys := known.keys.get(block_tokens)) is None:
            return "no_block_size"
        names = self._names(model, origin.path)
        if names is None or (origin.adapter is not None and not origin.adapter[1]):
            return "no_name"
        if not can_query(names.form):
            return "no_comma"
        if names.check.trouble is not None:
            return "misnamed"
        if self._leader.current is None:
            return "no_leader"
        keys = keys[: _usable(known, block_tokens)]
        digests = await self._hashed(chain, keys, known.ids, block_tokens, origin)
        try:
            async with asyncio.timeout(self._settings.deadline_ms / 1e3):
                found = await names.search.find(digests)
        except TimeoutError:
            return "late"
        if not isinstance(found, PoolPrefix):
            return found
        if not found.blocks and model.calibration.state == "waiting":
            return "uncalibrated"
        age_s = max(0.0, self._clock.now() - found.known_at)
        return PoolHit(found.blocks * block_tokens, age_s, found.in_memory * block_tokens)

    async def _hashed(
        self, chain: EngineChain, keys: Sequence[Key], ids: array[int], block_tokens: int, origin: HashInputs
    ) -> list[Digest]:
        """What is new in it slice by slice: each finds the one before remembered."""
        remembered = self._digests.count_cached(chain, keys, origin.adapter)
        blocks = max(1, SLICE_TOKENS // block_tokens)
        for end in range(remembered + blocks, len(keys), blocks):
            self._digests.digests(chain, keys[:end], ids, block_tokens, origin.adapter, origin.salt)
            await asyncio.sleep(0)
        return self._digests.digests(chain, keys, ids, block_tokens, origin.adapter, origin.salt)

    # what engines say

    def on_stored(self, model: str, event: BlocksStored) -> None:
        """`Witness.stored`."""
        its = self._model(model)
        its.calibration.observe(event)
        self._tell(its)
        if event.adapter is None and not any(event.extras or ()):
            self._saved(its, event, event.salt, certain=False)

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        """`Witness.pooled`. Such a block is whole in the pool, unless KV cache groups are saved one by one."""
        its = self._model(model)
        if its.settings.groups == 1:
            its.answers.record(((int(label), BlockPresence.MEMORY) for label in event.hashes), self._clock.now())
        if event.parent is None:
            self._saved(its, event, None, certain=True)

    def _saved(self, model: _Model, event: BlocksStored | BlocksPooled, salt: str | None, *, certain: bool) -> None:
        if event.hashes and len(event.token_ids) >= event.block_tokens:
            model.root = _Root(event.hashes[0], event.token_ids[: event.block_tokens], salt, certain)
            self._check(model)

    def _check(self, model: _Model) -> None:
        """See whether the keys of the last first block are in the pool, when it is time for that."""
        chain, names, root = model.calibration.chain, model.names, model.root
        if chain is None or names is None or root is None or not names.check.is_due(certain=root.certain):
            return
        (first,) = chain.chain(None, root.token_ids, len(root.token_ids), salt=root.salt)
        if chain.event_hash(first) == root.label:
            names.check.on_saved(first, certain=root.certain)

    # for people

    def report(self) -> PoolReport:
        return PoolReport(
            self._leader.current,
            self._leader.masters,
            self._held,
            self._nothing,
            dict(self._unknown),
            self._asking.totals,
            len(self._digests),
            [self._report(model) for model in self._models.values()],
        )

    def _report(self, model: _Model) -> ModelReport:
        names = model.names
        return ModelReport(
            model.name,
            model.calibration.state,
            model.calibration.chain,
            names.form.keys(b"")[0] if names is not None else None,
            names.form.keys_per_block if names is not None else None,
            names.check.state if names is not None else "unchecked",
            model.trouble,
            len(model.answers),
        )

    # parts of the above

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            settings = self._settings.models.get(name) or kv_store.PoolModelConfig()
            answers = AnswerCache(self._settings.ttl_ms / 1e3, self._settings.remembered_blocks)
            self._models[name] = _Model(name, settings, answers)
        return self._models[name]

    def _names(self, model: _Model, path: str | None) -> _Names | None:
        """Made anew when the engines tell another path."""
        if model.names is None or model.names.path != path:
            form = KeyForm.from_config(model.settings, path)
            if form is None:
                return None
            search = PrefixLookup(
                form, model.answers, self._asking, self._tasks, self._clock, self._settings.keys_at_once
            )
            check = KeyCheck(model.name, form, self._asking, self._tasks, self._clock)
            model.names = _Names(path, form, search, check)
            self._check(model)
        return model.names

    def _tell(self, model: _Model) -> None:
        """Each trouble once."""
        if (trouble := model.calibration.trouble) != model.logged:
            model.logged = trouble
            if trouble is not None:
                log.warning(trouble)

    def _forget(self) -> None:
        for model in self._models.values():
            model.answers.clear()


def _usable(known: TokenizedPrompt, block_tokens: int) -> int:
    """Blocks an engine could load: the last token is always computed (`protocol.md` 6.5)."""
    return (len(known.ids) - known.complete) // block_tokens
