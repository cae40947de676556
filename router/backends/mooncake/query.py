"""One question to the leading master: which of these blocks are in the pool, in memory or on disk.

`GET /batch_query_keys?keys=k1,k2,...` is the only way to ask that changes nothing over there: RPC lookups and
`/query_key` renew leases, and so would keep alive whatever a router is curious about (`protocol.md` 6.7, 9.4). The
separator is a comma, escaped or not, so a key with a comma in it cannot be asked for. A question costs the master
0.15 ms and 2 us per key, and us as much. Knows nothing of prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec

from router.backends.fetch import Fetch, HttpAnswer
from router.backends.mooncake.answer_cache import BlockPresence
from router.backends.mooncake.keys import KeyForm
from router.backends.mooncake.leader import MasterLeader
from router.clock import Clock
from router.kvcache.engine_hashes import Digest

MOST_KEYS = 16_000  # in one question, whatever is configured: the answer to more could exceed what `fetch` takes
ANSWER_WITHIN_S = 1.0  # a request waits `deadline_ms`; the answer is waited for longer, for the next one's sake
LISTED_KEYS = 50_000  # a bigger pool is not listed: the master would build some 100 bytes per key in one piece
LISTING_WITHIN_S = 10.0
KEY_COUNT = re.compile(rb"^master_key_count (\d+)", re.MULTILINE)
NOT_THERE = ("OBJECT_NOT_FOUND", "REPLICA_IS_NOT_READY")  # not ready: being written, or half evicted

Trouble = Literal["no_leader", "silent", "standby", "error"]


class StoreQuery(NamedTuple):
    """What asking has come to so far."""

    questions: int
    keys: int
    answers: int
    answer_s: float  # sum over `answers`


class _Replica(msgspec.Struct):
    """Where it lies is not our concern."""


class _KeyAnswer(msgspec.Struct):
    ok: bool
    error: str | None = None
    values: list[_Replica] | None = None  # in memory; those on disk stand under names that differ by version


class _Answers(msgspec.Struct):
    data: dict[str, _KeyAnswer]


_decode = msgspec.json.Decoder(_Answers).decode


class StoreClient:
    """Trouble is a value; `leader` is told when the one that was asked does not lead any more."""

    def __init__(self, leader: MasterLeader, fetch: Fetch, clock: Clock) -> None:
        self._leader = leader
        self._fetch = fetch
        self._clock = clock
        self.totals = StoreQuery(0, 0, 0, 0.0)

    async def query_blocks(self, form: KeyForm, digests: Sequence[Digest]) -> list[BlockPresence] | Trouble:
        """A word for each. A block is there only with all of its keys."""
        keys = [form.keys(digest) for digest in digests]
        self.totals = self.totals._replace(
            questions=self.totals.questions + 1, keys=self.totals.keys + len(keys) * form.keys_per_block
        )
        path = "/batch_query_keys?keys=" + quote(",".join(chain.from_iterable(keys)), safe=",@:")
        started_at = self._clock.now()
        answer = await self._get(path, ANSWER_WITHIN_S)
        if not isinstance(answer, HttpAnswer):
            return answer
        self.totals = self.totals._replace(
            answers=self.totals.answers + 1, answer_s=self.totals.answer_s + self._clock.now() - started_at
        )
        try:
            data = _decode(answer.body).data
            return [min(map(_word, map(data.__getitem__, its_keys))) for its_keys in keys]
        except (msgspec.DecodeError, KeyError, _NoWord):
            return "error"

    async def list_keys(self) -> list[str] | None:
        """Everything in the pool. None: too much, or no answer. For rare use: it is a lot of work over there."""
        metrics = await self._get("/metrics", ANSWER_WITHIN_S)
        count = KEY_COUNT.search(metrics.body) if isinstance(metrics, HttpAnswer) else None
        if count is None or int(count[1]) > LISTED_KEYS:
            return None
        listing = await self._get("/get_all_keys", LISTING_WITHIN_S)
        return listing.body.decode(errors="replace").split("\n") if isinstance(listing, HttpAnswer) else None

    async def _get(self, path: str, timeout_s: float) -> HttpAnswer | Trouble:
        leader = self._leader.current
        if leader is None:
            return "no_leader"
        answer = await self._fetch(leader, "GET", path, timeout_s=timeout_s)
        if answer is not None and answer.status == 200:
            return answer
        if answer is not None and answer.status != 503:
            return "error"
        self._leader.on_lost(leader)
        return "silent" if answer is None else "standby"


def can_query(form: KeyForm) -> bool:
    return not any("," in key for key in form.keys(b""))


class _NoWord(Exception):
    """The master could not say."""


def _word(answer: _KeyAnswer) -> BlockPresence:
    if answer.ok:
        return BlockPresence.MEMORY if answer.values else BlockPresence.DISK
    if answer.error in NOT_THERE:
        return BlockPresence.ABSENT
    raise _NoWord
