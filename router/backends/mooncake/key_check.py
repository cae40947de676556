"""Are the keys that we ask for those that the engines write? Seen on a block that an engine has just saved.

Calibration proves the hash in a key, not the rest of it: prefix, model name, ranks. A wrong one finds nothing, ever,
and too few ranks find blocks that no engine can load. So the first block of a saved prompt is asked for, and one
listing of the pool (never a big one: the master builds it in one piece) tells the names it really has there.
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

SAVED_WITHIN_S = 2.0  # after a block entered an engine's cache
AGAIN_AFTER_S = 1.0
RIGHT_FOR_S = 60.0
LIST_EVERY_S = 60.0
LIST_AGAIN_AFTER_S = 10.0  # when a listing had nothing of the block: perhaps it was not saved yet

State = Literal["unchecked", "right", "wrong"]


class KeyCheck:
    """Of one model's key form. `trouble`: one line for the operator."""

    def __init__(self, name: str, form: KeyForm, asking: StoreClient, tasks: Tasks, clock: Clock) -> None:
        self._name = name
        self._form = form
        self._asking = asking
        self._tasks = tasks
        self._clock = clock
        self._look: asyncio.Task[None] | None = None
        self._waiting = False  # for a block to be saved
        self._due_at = self._listing_due_at = clock.now()
        self.state: State = "unchecked"
        self.trouble: str | None = None

    def is_due(self, *, certain: bool) -> bool:
        """A block to look for would be welcome; one that is surely there also in the place of one that may be."""
        return (self._look is None or (certain and self._waiting)) and self._clock.now() >= self._due_at

    def on_saved(self, digest: Digest, *, certain: bool) -> None:
        """An engine has this block, and saved it (`certain`) or will have soon, if it saves at all."""
        if not self.is_due(certain=certain):
            return
        if self._look is not None:
            self._look.cancel()
        self._waiting = not certain
        self._look = self._tasks.spawn("check", self._looking(digest))
        self._look.add_done_callback(self._looked)

    def _looked(self, look: asyncio.Task[None]) -> None:
        if look is self._look:
            self._look = None
            self._due_at = self._clock.now() + (RIGHT_FOR_S if self.state == "right" else AGAIN_AFTER_S)

    async def _looking(self, digest: Digest) -> None:
        if self._waiting:
            await asyncio.sleep(SAVED_WITHIN_S)
            self._waiting = False
        words = await self._asking.query_blocks(self._form, [digest])
        if isinstance(words, list):
            await self._judge(digest, words[0] != BlockPresence.ABSENT)

    async def _judge(self, digest: Digest, there: bool) -> None:
        """`there`: under all of our keys. Once that and the listing agreed, being there is enough."""
        trouble = None
        if not (there and self.state == "right"):
            if self._clock.now() < self._listing_due_at:
                return
            self._listing_due_at = self._clock.now() + LIST_EVERY_S
            listing = await self._asking.list_keys()
            trouble = None if listing is None else diagnose(self._name, self._form, listing, digest)
            if trouble is None and not there:  # gone already, not saved yet, or never: nothing learned
                self._listing_due_at = self._clock.now() + LIST_AGAIN_AFTER_S
                return
        if trouble is not None:
            if trouble != self.trouble:
                log.warning(trouble)
            self.state = "wrong"
        else:
            self.state = "right"
        self.trouble = trouble
