"""Checks that the keys the router queries are those that the engines write, on a block that an engine has just saved.

Hash detection proves the hash in a key, not the rest of it: prefix, model name, ranks. A wrong part finds nothing,
ever, and too few ranks find blocks that no engine can load. So the first block of a saved prompt is queried, and a
listing of the pool (never of a big one: the master builds it in one piece) shows the names that it really has there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from router.backends.mooncake.answer_cache import BlockPresence
from router.backends.mooncake.key_diagnosis import diagnose
from router.backends.mooncake.keys import KeyForm
from router.backends.mooncake.query import StoreClient
from router.clock import Clock
from router.kvcache.engine_hashes import Digest
from router.tasks import Tasks

log = logging.getLogger("warmroute.pool")

SAVE_DELAY_S = 2.0  # a block is saved within this time after it entered an engine's cache
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
        """Return whether a block to check is wanted now; a certain one also replaces one that is still waited for."""
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
        """Evaluate a query; `there`: present under all our keys. After one agreement with a listing, presence is
        enough.
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
