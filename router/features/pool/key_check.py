"""Checks, on a block that an engine has just saved, that the router queries the keys that the engines write.

Hash detection proves the hash in a key, not the rest of the key: prefix, model name, ranks. With a wrong part, no
query ever finds anything; with too few ranks, queries find blocks that no engine can load. Nothing else shows the
error, because a missing key looks like a block that was never stored. So the first block of a saved prompt is
queried, and a listing of the pool (never of a big one: the master builds it in one piece) shows the block's real
keys, which `diagnose` compares with ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from router.clock import Clock
from router.config.sections.pool import PoolModelConfig
from router.features.pool.answer_cache import BlockPresence
from router.features.pool.keys import KeyForm, PoolKey, parse_key
from router.features.pool.query import StoreClient
from router.kvcache.engine_hashes import Digest
from router.tasks import Tasks

log = logging.getLogger("warmroute.pool")

SAVE_DELAY_S = 2.0  # an engine saves a block within this time after the block entered its cache
RETRY_AFTER_S = 1.0
VALID_FOR_S = 60.0
LIST_EVERY_S = 60.0
LIST_RETRY_S = 10.0  # after a listing without the block, which may not be saved yet

State = Literal["unchecked", "right", "wrong"]


class KeyCheck:
    """The check of one model's key form. `trouble`: one line for the operator."""

    def __init__(self, name: str, form: KeyForm, client: StoreClient, tasks: Tasks, clock: Clock) -> None:
        self._name = name
        self._form = form
        self._client = client
        self._tasks = tasks
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._waiting = False  # waiting for a block to be saved
        self._due_at = self._listing_due_at = clock.now()
        self.state: State = "unchecked"
        self.trouble: str | None = None

    def is_due(self, *, certain: bool) -> bool:
        """Return whether to check a block now. A certain block also replaces one that is not saved yet."""
        return (self._task is None or (certain and self._waiting)) and self._clock.now() >= self._due_at

    def on_saved(self, digest: Digest, *, certain: bool) -> None:
        """Check the keys of a block that an engine saved (`certain`) or will save soon, if it saves at all."""
        if not self.is_due(certain=certain):
            return
        if self._task is not None:
            self._task.cancel()
        self._waiting = not certain
        self._task = self._tasks.spawn("check", self._run(digest))
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._task = None
            self._due_at = self._clock.now() + (VALID_FOR_S if self.state == "right" else RETRY_AFTER_S)

    async def _run(self, digest: Digest) -> None:
        if self._waiting:
            await asyncio.sleep(SAVE_DELAY_S)
            self._waiting = False
        presence = await self._client.query_blocks(self._form, [digest])
        if isinstance(presence, list):
            await self._evaluate(digest, presence[0] != BlockPresence.ABSENT)

    async def _evaluate(self, digest: Digest, there: bool) -> None:
        """Evaluate a query. `there`: the block is present under all our keys, which suffices once a listing has
        agreed.
        """
        trouble = None
        if not (there and self.state == "right"):
            if self._clock.now() < self._listing_due_at:
                return
            self._listing_due_at = self._clock.now() + LIST_EVERY_S
            listing = await self._client.list_keys()
            trouble = None if listing is None else diagnose(self._name, self._form, listing, digest)
            if trouble is None and not there:  # evicted, or not saved (yet): no result
                self._listing_due_at = self._clock.now() + LIST_RETRY_S
                return
        if trouble is not None:
            if trouble != self.trouble:
                log.warning(trouble)
            self.state = "wrong"
        else:
            self.state = "right"
        self.trouble = trouble


def diagnose(name: str, form: KeyForm, keys_in_pool: Iterable[str], digest: Digest) -> str | None:
    """Return one line with every part of `pool.models.<name>` to change, and its new value; None if the listing
    does not contain the block of `digest`, or contains exactly our keys.

    An engine has put this block into the pool, and all of its parts have arrived.
    """
    ending = f"@{digest.hex()}"
    found = [parsed for key in keys_in_pool if key.endswith(ending) and (parsed := parse_key(key)) is not None]
    if not found:
        return None
    nearest = _name(max(found, key=lambda key: _likeness(key, form.parts[0])))
    theirs = [key for key in found if _name(key) == nearest]  # other keys may belong to other fleets
    changes = "; ".join((*_names(theirs[0], form.parts[0]), *_ranks(theirs, form)))
    return f"pool.models.{name}: the engines' blocks have other keys, as {theirs[0]}: {changes}" if changes else None


def _name(key: PoolKey) -> tuple[str, str, str]:
    return key.cache_prefix, key.model, key.namespace


def _likeness(key: PoolKey, ours: PoolKey) -> tuple[bool, int]:
    """Return a key's similarity to ours, to be compared: other fleets' blocks have other names, too, and the model
    is rarely misspelt.
    """
    return key.model == ours.model, sum(a == b for a, b in zip(_name(key), _name(ours), strict=True))


def _names(there: PoolKey, here: PoolKey) -> Iterator[str]:
    for setting, its, ours in zip(("cache_prefix", "name", "namespace"), _name(there), _name(here), strict=True):
        if its != ours:
            yield f"set {setting} to '{its}' (not '{ours}')"


def _ranks(theirs: Sequence[PoolKey], form: KeyForm) -> Iterator[str]:
    for setting, part in (
        ("tensor_parallel", "tp_rank"),
        ("prefill_context_parallel", "pcp"),
        ("decode_context_parallel", "dcp"),
        ("pipeline_parallel", "pp_rank"),
        ("groups", "group"),
    ):
        there, here = (1 + max(getattr(key, part) for key in keys) for keys in (theirs, form.parts))
        if there == here:
            continue
        if part == "tp_rank":
            yield _shards(there, form.config)
        else:
            yield f"set {setting} to {there} (not {here})"


def _shards(there: int, config: PoolModelConfig) -> str:
    """Suggest a setting for blocks that have `there` parts along the tensor parallel ranks."""
    if there <= config.tensor_parallel and config.kv_heads is not None:
        return f"set kv_heads to {there} (not {config.kv_heads})"
    line = f"set tensor_parallel to {there} (not {config.tensor_parallel})"
    if there < config.tensor_parallel:
        line += f", or kv_heads to {there} if the ranks beyond hold copies"
    return line
