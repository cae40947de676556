"""How far the pool holds one model's prompts: what was said lately, and questions for the rest.

A question belongs to a task of its own. A request waits for it as long as its deadline allows, and the answer that
comes too late is there for the next one. While a block is being asked for, nobody else asks for it: a second request
waits for the same answer, and asks only for what that does not cover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from router.backends.mooncake.answer_cache import AnswerCache, BlockPresence, event_hashes
from router.backends.mooncake.keys import KeyForm
from router.backends.mooncake.probe_plan import ProbePlan
from router.backends.mooncake.query import MOST_KEYS, StoreClient, Trouble
from router.clock import Clock
from router.kvcache.engine_hashes import Digest
from router.tasks import Tasks

_Learned = dict[int, BlockPresence] | Trouble  # words by label


class PoolPrefix(NamedTuple):
    """Leading blocks of a prompt in the pool."""

    blocks: int
    in_memory: int  # those before the first on disk
    known_at: float  # the oldest word this rests on


class PrefixLookup:
    """`keys_at_once`: in one question; where a block has many keys, at least three blocks are asked for."""

    def __init__(
        self, form: KeyForm, answers: AnswerCache, asking: StoreClient, tasks: Tasks, clock: Clock, keys_at_once: int
    ) -> None:
        self._form = form
        self._answers = answers
        self._asking = asking
        self._tasks = tasks
        self._clock = clock
        self._at_once = min(keys_at_once, MOST_KEYS) // form.keys_per_block
        self._running: dict[int, asyncio.Task[_Learned]] = {}  # the question each block is in

    async def find(self, digests: Sequence[Digest]) -> PoolPrefix | Trouble:
        """`digests`: of a prompt's leading blocks. May be cancelled; what was asked is asked all the same."""
        now = self._clock.now()
        labels = event_hashes(digests)
        words, oldest = self._answers.lookup(labels, now)
        probe = ProbePlan(words, self._at_once)
        while blocks := probe.next_blocks():
            for question in self._questions(blocks, labels, digests):
                learned = await asyncio.shield(question)
                if not isinstance(learned, dict):
                    return learned
                for block in blocks:
                    if (word := learned.get(labels[block])) is not None:
                        probe.record(block, word)
        return PoolPrefix(probe.held, probe.in_memory, now if oldest is None else oldest)

    def _questions(
        self, blocks: Sequence[int], labels: Sequence[int], digests: Sequence[Digest]
    ) -> list[asyncio.Task[_Learned]]:
        """Those that cover `blocks`: the ones under way, and one for the rest."""
        rest = [block for block in blocks if labels[block] not in self._running]
        if rest:
            its_labels = [labels[block] for block in rest]
            task = self._tasks.spawn("question", self._question(its_labels, [digests[block] for block in rest]))
            self._running.update(dict.fromkeys(its_labels, task))
        return list(dict.fromkeys(self._running[labels[block]] for block in blocks))

    async def _question(self, labels: Sequence[int], digests: Sequence[Digest]) -> _Learned:
        asked_at = self._clock.now()
        try:
            words = await self._asking.query_blocks(self._form, digests)
        finally:
            for label in labels:
                del self._running[label]
        if not isinstance(words, list):
            return words
        learned = dict(zip(labels, words, strict=True))
        self._answers.record(learned.items(), asked_at)
        return learned
