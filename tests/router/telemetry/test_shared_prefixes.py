"""Which prefixes recent prompts share: a tree that is never cut off from its root, of all workers together."""

from __future__ import annotations

import msgspec

from router.telemetry.recent_records import RecentRecords
from router.telemetry.shared_prefixes import WINDOW_S, SharedPrefix, count_prefixes, merge_prefixes, most_shared
from tests.router.telemetry.records import VIEW, a_record

NOW = 1_700_000_000.0


def records(*prompts: tuple[tuple[int, ...], int | None], at: float = NOW) -> RecentRecords:
    """Records by the keys of their prefixes and their cached tokens."""
    kept = RecentRecords(100)
    for number, (prefixes, cached) in enumerate(prompts):
        view = VIEW._replace(prefixes=prefixes)
        kept.add(a_record(number, view, at_wall_s=at, cached_tokens=cached))
    return kept


async def count(kept: RecentRecords) -> dict[int, SharedPrefix]:
    return {prefix.key: prefix for prefix in await count_prefixes(kept, NOW, {VIEW.model: 16})}


async def test_requests_and_hits_of_each_length() -> None:
    found = await count(records(((1, 2, 3), 64), ((1, 2, 4), 32), ((1, 5), 16), ((9,), 0)))
    assert {key: (p.parent, p.blocks, p.requests, p.hits) for key, p in found.items()} == {
        1: (None, 1, 3, 3),
        2: (1, 2, 2, 2),
    }, "what one request has is not shared"


async def test_answers_without_a_report_are_no_misses() -> None:
    found = await count(records(((1,), None), ((1,), 0)))
    assert (found[1].requests, found[1].known, found[1].hits) == (2, 1, 0)


async def test_old_requests_do_not_count() -> None:
    assert await count(records(((1,), 16), ((1,), 16), at=NOW - WINDOW_S - 1)) == {}


async def test_workers_add_up() -> None:
    parts = [await count_prefixes(records(((1, 2), 32), ((1, 2), 32)), NOW, {VIEW.model: 16}) for _ in range(2)]
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=list[SharedPrefix]) for part in parts]
    assert [(p.key, p.requests, p.hits) for p in merge_prefixes(sent)] == [(1, 4, 4), (2, 4, 4)]


def test_the_longest_are_cut_first_never_their_beginnings() -> None:
    chain = [SharedPrefix(n, n - 1 if n else None, "m", 1 << n, requests=10 - n) for n in range(8)]
    assert [p.key for p in most_shared(reversed(chain), 4)] == [0, 1, 2, 3]
