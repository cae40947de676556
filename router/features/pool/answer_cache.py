"""Cache of the pool's answers about single blocks, each kept for `ttl_s`.

Blocks are identified by the hash in events, so that an engine's event about a block that it saved is an answer,
too: the block was present a moment ago. After `ttl_s` an answer is dropped, because the pool evicts blocks without
an event. The cache does not depend on keys, sockets or prompts. There is one per model, because models share
digests.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from router.kvcache.engine_hashes import Digest


class BlockPresence(IntEnum):
    """Presence of one block in the pool, over all of its keys."""

    UNKNOWN = 0
    ABSENT = 1
    DISK = 2  # at least one key has no replica in memory
    MEMORY = 3


class CachedAnswers(NamedTuple):
    """Cached answers about the blocks of a prompt."""

    presence: bytearray  # a `BlockPresence` per block
    oldest: float | None  # time of the oldest answer used; None: nothing cached


class _Answer(NamedTuple):
    at: float
    presence: BlockPresence


class AnswerCache:
    """The newest answers, at most `limit_blocks`."""

    def __init__(self, ttl_s: float, limit_blocks: int) -> None:
        self._ttl_s = ttl_s
        self._limit = limit_blocks
        self._answers: OrderedDict[int, _Answer] = OrderedDict()  # oldest answer first

    def __len__(self) -> int:
        return len(self._answers)

    def record(self, answers: Iterable[tuple[int, BlockPresence]], at: float) -> None:
        """Store answers by event hash, valid at `at`: the time when the query was sent, not answered."""
        for hash_, presence in answers:
            before = self._answers.get(hash_)
            if before is None or before.at <= at:
                self._answers[hash_] = _Answer(at, presence)
                self._answers.move_to_end(hash_)
        while len(self._answers) > self._limit:
            self._answers.popitem(last=False)

    def lookup(self, hashes: Sequence[int], now: float) -> CachedAnswers:
        """Return the cached presence of each block."""
        self._expire(now - self._ttl_s)
        if not self._answers:
            return CachedAnswers(bytearray(len(hashes)), None)
        presence = bytearray(len(hashes))
        oldest = None
        for block, answer in enumerate(map(self._answers.get, hashes)):
            if answer is not None and now - answer.at < self._ttl_s:
                presence[block] = answer.presence
                oldest = answer.at if oldest is None or answer.at < oldest else oldest
        return CachedAnswers(presence, oldest)

    def clear(self) -> None:
        """Drop all answers, because another master leads, or the same one again, which may have restarted empty."""
        self._answers.clear()

    def _expire(self, until: float) -> None:
        """Drop answers up to `until`. A late answer may follow newer ones, so `lookup` checks times as well."""
        while self._answers:
            hash_, answer = next(iter(self._answers.items()))
            if answer.at > until:
                return
            del self._answers[hash_]


def event_hashes(digests: Sequence[Digest]) -> array[int]:
    """Return `EngineChain.event_hash` of each digest, computed together: 5,000 in 0.1 ms."""
    words = array("Q", b"".join(digests))
    if not digests:
        return words
    per_digest = len(digests[0]) // words.itemsize
    hashes = words[per_digest - 1 :: per_digest]
    if sys.byteorder == "little":
        hashes.byteswap()
    return hashes
