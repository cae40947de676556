"""Finds how far the pool holds a prompt: from cached answers, and queries for the rest.

Each query runs in a task of its own. A request waits for it until its deadline; an answer that comes later is cached
for the next request. A block is in one query at a time: a second request waits for the same answer, and queries only
the blocks that it does not cover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from router.backends.mooncake.answer_cache import AnswerCache, BlockPresence, event_hashes
from router.backends.mooncake.keys import KeyForm
from router.backends.mooncake.probe_plan import ProbePlan
from router.backends.mooncake.query import MAX_KEYS, StoreClient, Trouble
from router.clock import Clock
from router.kvcache.engine_hashes import Digest
from router.tasks import Tasks

_QueryResult = dict[int, BlockPresence] | Trouble  # presence by event hash


class PoolPrefix(NamedTuple):
    """Leading blocks of a prompt in the pool."""

    blocks: int
    in_memory: int  # blocks before the first on disk
    known_at: float  # time of the oldest answer used


class PrefixLookup:
    """Looks up one model's prompts. `keys_at_once` limits a query; where a block has many keys, it covers at least
    three blocks.
    """

    def __init__(
        self, form: KeyForm, answers: AnswerCache, client: StoreClient, tasks: Tasks, clock: Clock, keys_at_once: int
    ) -> None:
        self._form = form
        self._answers = answers
        self._client = client
        self._tasks = tasks
        self._clock = clock
        self._at_once = min(keys_at_once, MAX_KEYS) // form.keys_per_block
        self._running: dict[int, asyncio.Task[_QueryResult]] = {}  # the running query by block

    async def find(self, digests: Sequence[Digest]) -> PoolPrefix | Trouble:
        """Look up a prompt's leading blocks. May be cancelled; running queries continue."""
        now = self._clock.now()
        hashes = event_hashes(digests)
        presence, oldest = self._answers.lookup(hashes, now)
        plan = ProbePlan(presence, self._at_once)
        while blocks := plan.next_blocks():
            for query in self._queries(blocks, hashes, digests):
                result = await asyncio.shield(query)
                if not isinstance(result, dict):
                    return result
                for block in blocks:
                    if (answer := result.get(hashes[block])) is not None:
                        plan.record(block, answer)
        return PoolPrefix(plan.held, plan.in_memory, now if oldest is None else oldest)

    def _queries(
        self, blocks: Sequence[int], hashes: Sequence[int], digests: Sequence[Digest]
    ) -> list[asyncio.Task[_QueryResult]]:
        """Return the queries that cover `blocks`: the running ones, and a new one for the rest."""
        rest = [block for block in blocks if hashes[block] not in self._running]
        if rest:
            rest_hashes = [hashes[block] for block in rest]
            task = self._tasks.spawn("question", self._query(rest_hashes, [digests[block] for block in rest]))
            self._running.update(dict.fromkeys(rest_hashes, task))
        return list(dict.fromkeys(self._running[hashes[block]] for block in blocks))

    async def _query(self, hashes: Sequence[int], digests: Sequence[Digest]) -> _QueryResult:
        asked_at = self._clock.now()
        try:
            presence = await self._client.query_blocks(self._form, digests)
        finally:
            for hash_ in hashes:
                del self._running[hash_]
        if not isinstance(presence, list):
            return presence
        result = dict(zip(hashes, presence, strict=True))
        self._answers.record(result.items(), asked_at)
        return result
