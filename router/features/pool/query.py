"""Queries the leading master for which blocks are in the pool, in memory or on disk.

`GET /batch_query_keys?keys=k1,k2,...` is the only query without side effects: RPC lookups and `/query_key` renew
leases, and so would protect every block that a router queries from eviction (`protocol.md` 6.7, 9.4). The separator
is a comma, escaped or not, so a key that contains a comma cannot be queried. A query costs the master 0.15 ms and
2 us per key, and the router as much. This module does not depend on prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec

from router.backends.fetch import ANSWER_BYTES, Fetch, HttpAnswer
from router.clock import Clock
from router.features.pool.answer_cache import BlockPresence
from router.features.pool.keys import KeyForm
from router.features.pool.leader import MasterLeader
from router.kvcache.engine_hashes import Digest

MAX_KEYS = 16_000  # in one query, at most
QUERY_TIMEOUT_S = 1.0  # a request waits `deadline_ms`; a later answer serves the next request
MAX_LISTED_KEYS = 50_000  # a bigger pool is not listed: the master builds some 100 bytes per key in one piece
LISTING_TIMEOUT_S = 10.0
ANSWER_BYTES_PER_KEY = 1024  # three replicas take 600; a longer answer is not a valid one
LISTING_BYTES = 8 * 1024 * 1024
KEY_COUNT = re.compile(rb"^master_key_count (\d{1,12})\s", re.MULTILINE)
ABSENT_ERRORS = ("OBJECT_NOT_FOUND", "REPLICA_IS_NOT_READY")  # not ready: being written, or half evicted

Trouble = Literal["no_leader", "silent", "standby", "error"]


class StoreQuery(NamedTuple):
    """Totals of all queries so far."""

    questions: int
    keys: int
    answers: int
    answer_s: float  # sum over `answers`


class _Replica(msgspec.Struct):
    """A replica; its location is not used."""


class _KeyAnswer(msgspec.Struct):
    ok: bool
    error: str | None = None
    values: list[_Replica] | None = None  # in memory; replicas on disk are in fields that differ by version


class _Answers(msgspec.Struct):
    data: dict[str, _KeyAnswer]


_decode = msgspec.json.Decoder(_Answers).decode

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors raised by decoding an invalid answer."""


class StoreClient:
    """Sends queries to the leading master. Failures are returned as values; `leader` is notified when its master is
    silent or no longer leads.
    """

    def __init__(self, leader: MasterLeader, fetch: Fetch, clock: Clock) -> None:
        self._leader = leader
        self._fetch = fetch
        self._clock = clock
        self.totals = StoreQuery(0, 0, 0, 0.0)

    async def query_blocks(self, form: KeyForm, digests: Sequence[Digest]) -> list[BlockPresence] | Trouble:
        """Return the presence of each block. A block is present only with all of its keys."""
        keys = [form.keys(digest) for digest in digests]
        self.totals = self.totals._replace(
            questions=self.totals.questions + 1, keys=self.totals.keys + len(keys) * form.keys_per_block
        )
        path = "/batch_query_keys?keys=" + quote(",".join(chain.from_iterable(keys)), safe=",@:")
        started_at = self._clock.now()
        limit_bytes = ANSWER_BYTES_PER_KEY * (len(keys) * form.keys_per_block + 1)
        answer = await self._get(path, QUERY_TIMEOUT_S, limit_bytes)
        if not isinstance(answer, HttpAnswer):
            return answer
        self.totals = self.totals._replace(
            answers=self.totals.answers + 1, answer_s=self.totals.answer_s + self._clock.now() - started_at
        )
        try:
            data = _decode(answer.body).data
            return [min(map(_presence, map(data.__getitem__, its_keys))) for its_keys in keys]
        except (*UNREADABLE, KeyError, _NoResult):
            return "error"

    async def list_keys(self) -> list[str] | None:
        """Return all keys of the pool; None if there are too many, or no answer. Use it rarely: it is expensive for
        the master.
        """
        metrics = await self._get("/metrics", QUERY_TIMEOUT_S)
        count = KEY_COUNT.search(metrics.body) if isinstance(metrics, HttpAnswer) else None
        if count is None or int(count[1]) > MAX_LISTED_KEYS:
            return None
        listing = await self._get("/get_all_keys", LISTING_TIMEOUT_S, LISTING_BYTES)
        if not isinstance(listing, HttpAnswer) or listing.body.count(b"\n") > MAX_LISTED_KEYS:
            return None
        return listing.body.decode(errors="replace").split("\n")

    async def _get(self, path: str, timeout_s: float, limit_bytes: int = ANSWER_BYTES) -> HttpAnswer | Trouble:
        leader = self._leader.current
        if leader is None:
            return "no_leader"
        answer = await self._fetch(leader, path, timeout_s=timeout_s, limit_bytes=limit_bytes)
        if answer is not None and answer.status == 200 and not answer.oversized:
            return answer
        if answer is not None and answer.status != 503:
            return "error"
        self._leader.on_lost(leader)
        return "silent" if answer is None else "standby"


def can_query(form: KeyForm) -> bool:
    """Return whether keys of this form contain no comma."""
    return not any("," in key for key in form.keys(b""))


class _NoResult(Exception):
    """The master could not answer for a key."""


def _presence(answer: _KeyAnswer) -> BlockPresence:
    if answer.ok:
        return BlockPresence.MEMORY if answer.values else BlockPresence.DISK
    if answer.error in ABSENT_ERRORS:
        return BlockPresence.ABSENT
    raise _NoResult
