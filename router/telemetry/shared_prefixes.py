"""The prefixes that recent prompts share: a tree of the lengths 1, 2, 4, 8, ... blocks, for the live page.

Each record's view names the prefixes of its prompt by their block keys, from which the text cannot be derived. So
the tree is built from the recent records on request, and nothing is stored for it. Two prompts that share 300
blocks meet at 256: a shared length is known to a factor of two, and is never overstated.

The tree of each worker is cut to the `MAX_PREFIXES` prefixes with the most requests before it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from router.telemetry.recent_records import RecentRecords

MAX_PREFIXES = 1_000
WINDOW_S = 900.0
RECORDS_PER_TURN = 50  # of the event loop: about 0.3 ms


class SharedPrefix(msgspec.Struct, array_like=True):
    """One prefix and the requests of the window that begin with it."""

    key: int
    parent: int | None  # key of the prefix half as long
    model: str
    blocks: int
    requests: int = 0
    hits: int = 0  # answers with at least this prefix's tokens cached
    known: int = 0  # answers whose cached tokens the engine reported
    last_s: float = 0.0  # wall clock, of the last request


async def count_prefixes(records: RecentRecords, now: float, block_tokens: dict[str, int]) -> list[SharedPrefix]:
    """Return the prefixes of the records of the last `WINDOW_S` before `now` (wall clock), most requests first.
    `block_tokens`: the smallest block size of each model, in which prefixes are named.
    """
    found: dict[int, SharedPrefix] = {}
    for n, record in enumerate(records.latest(len(records))):
        if record.at_wall_s < now - WINDOW_S:
            break
        if record.attempts:
            view = record.attempts[0].decision.view
            parent = None
            for i, key in enumerate(view.prefixes):
                if (prefix := found.get(key)) is None:
                    prefix = found[key] = SharedPrefix(key, parent, view.model, 1 << i, last_s=record.at_wall_s)
                prefix.requests += 1
                if record.cached_tokens is not None and (size := block_tokens.get(view.model)) is not None:
                    prefix.known += 1
                    prefix.hits += record.cached_tokens >= size << i
                parent = key
        if n % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
            await asyncio.sleep(0)
    return most_shared(found.values())


def merge_prefixes(parts: Iterable[Iterable[SharedPrefix]]) -> list[SharedPrefix]:
    """Return the prefixes of all workers, most requests first."""
    found: dict[int, SharedPrefix] = {}
    for part in parts:
        for prefix in part:
            if (total := found.get(prefix.key)) is None:
                found[prefix.key] = prefix
                continue
            total.requests += prefix.requests
            total.hits += prefix.hits
            total.known += prefix.known
            total.last_s = max(total.last_s, prefix.last_s)
    return most_shared(found.values())


def most_shared(prefixes: Iterable[SharedPrefix], most: int = MAX_PREFIXES) -> list[SharedPrefix]:
    """Return the prefixes of more than one request, most requests first. A prefix follows the shorter one with
    which it begins, which has at least as many requests, so none is returned without that shorter prefix.
    """
    shared = [prefix for prefix in prefixes if prefix.requests > 1]
    shared.sort(key=lambda prefix: (-prefix.requests, prefix.blocks))
    return shared[:most]
