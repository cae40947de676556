"""Finds how much of a prompt the pool holds: from cached answers, and by queries for the rest.

Each query runs in a task of its own. A request waits for its queries until its deadline; a later answer is cached
for the next request. A block is in one query at a time: a second request waits for the query in flight, and queries
only the blocks that are in none.

`ProbePlan` chooses the blocks of a query, to find the end of a prompt's leading run with few small queries. Up to
`at_once` unknown blocks are queried together: then the answer is exact. A longer prompt is searched in strides: the
first query is spread over all of it, from the first block to the last; the next ones over the remaining gap

    known    + . . . + . . . + . . . - . . . -          + present   - absent   . unknown
                             low^     ^bound
    query                      o o o

between the last block known to be present and the first known to be absent. Remaining space in a query is spread
over the blocks before the gap, to find holes. Two queries of 256 find the end of a run within 65,000 blocks.

Strides may miss holes: blocks are evicted one by one, so a run may have holes, and an engine loads only the blocks
before the first hole. A hole is found for certain if it is as long as a stride: `length / (at_once - 1)` blocks.
Shorter holes are found by chance; after a wave of evictions has left many, the first query meets some, and the
search closes in on the first of these. The answer is never shorter than the true run, and is exact if there is no
hole or the length is at most `2 * at_once - 1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from router.clock import Clock
from router.features.pool.answer_cache import AnswerCache, BlockPresence, event_hashes
from router.features.pool.keys import KeyForm
from router.features.pool.query import MAX_KEYS, StoreClient, Trouble
from router.kvcache.engine_hashes import Digest
from router.tasks import Tasks

LEAST_AT_ONCE = 3  # with fewer, a query would not shrink the gap by a factor

_QueryResult = dict[int, BlockPresence] | Trouble  # presence by event hash


class PoolPrefix(NamedTuple):
    """Leading blocks of a prompt in the pool."""

    blocks: int
    in_memory: int  # blocks before the first on disk
    known_at: float  # time of the oldest answer used


class PrefixLookup:
    """Looks up one model's prompts. A query has at most `keys_at_once` keys, but covers at least three blocks."""

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
        """Look up a prompt's leading blocks. The lookup may be cancelled; its running queries continue."""
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
        """Return the queries that cover `blocks`: those in flight, and a new one for the rest."""
        rest = [block for block in blocks if hashes[block] not in self._running]
        if rest:
            rest_hashes = [hashes[block] for block in rest]
            task = self._tasks.spawn("question", self._query(rest_hashes, [digests[block] for block in rest]))
            self._running.update(dict.fromkeys(rest_hashes, task))
        return list(dict.fromkeys(self._running[hashes[block]] for block in blocks))

    async def _query(self, hashes: Sequence[int], digests: Sequence[Digest]) -> _QueryResult:
        sent_at = self._clock.now()
        try:
            presence = await self._client.query_blocks(self._form, digests)
        finally:
            for hash_ in hashes:
                del self._running[hash_]
        if not isinstance(presence, list):
            return presence
        result = dict(zip(hashes, presence, strict=True))
        self._answers.record(result.items(), sent_at)
        return result


class ProbePlan:
    """The search for the end of one prompt's run, independent of keys and sockets."""

    def __init__(self, presence: bytearray, at_once: int) -> None:
        """Start from `presence`, a `BlockPresence` per block of the prompt, which `record` fills in."""
        self.presence = presence
        self._at_once = max(LEAST_AT_ONCE, at_once)

    @property
    def held(self) -> int:
        """Number of leading blocks present, as far as known: all blocks before the first absent one."""
        absent = self.presence.find(BlockPresence.ABSENT)
        return len(self.presence) if absent < 0 else absent

    @property
    def in_memory(self) -> int:
        """Number of blocks of `held` before the first one known to be on disk only."""
        on_disk = self.presence.find(BlockPresence.DISK, 0, self.held)
        return self.held if on_disk < 0 else on_disk

    def next_blocks(self) -> Sequence[int]:
        """Return the unknown blocks to query next; if empty, `held` is the answer."""
        bound = self.held
        unknown = self.presence.count(BlockPresence.UNKNOWN, 0, bound)
        if unknown <= self._at_once:
            return self._unknown(bound)
        low = len(self.presence[:bound].rstrip(bytes((BlockPresence.UNKNOWN,))))
        gap = range(low, bound)
        if not gap:
            return []
        if len(gap) >= self._at_once:
            return _spread(gap, self._at_once)
        return [*_spread(self._unknown(low), self._at_once - len(gap)), *gap]

    def record(self, block: int, presence: BlockPresence) -> None:
        """Record the presence of one block."""
        self.presence[block] = presence

    def _unknown(self, until: int) -> list[int]:
        return [block for block, word in enumerate(self.presence[:until]) if not word]  # UNKNOWN is 0


def _spread(blocks: Sequence[int], count: int) -> list[int]:
    """Return `count` of `blocks`, evenly spread from the first to the last. Needs at least `count` blocks."""
    if count == 1:
        return [blocks[-1]]
    return [blocks[step * (len(blocks) - 1) // (count - 1)] for step in range(count)]
