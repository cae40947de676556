"""The plan of a hand-off: what would be lost, most sessions first, and nothing twice."""

from __future__ import annotations

from collections.abc import Collection

from router.features.preload.handoff import plan_handoff
from router.features.preload.plan import HotPrefix
from router.features.preload.recent_prompts import RecentPrompts
from router.kvcache.events import Key
from tests.fakes.caches import prompt_of

SYSTEM = list(range(16))  # 4 blocks of 4, which two agents share
LONG = prompt_of([*SYSTEM, *range(100, 116)])
OTHER = prompt_of([*SYSTEM, *range(200, 216)])
SHARED, ONE, TWO = LONG.keys[4][3], LONG.keys[4][7], OTHER.keys[4][7]


def hot(key: Key, blocks: int, sessions: int) -> HotPrefix:
    return HotPrefix(key, blocks, sessions, sessions, 100)


def plan(*wanted: HotPrefix, held: Collection[Key] = ()) -> list[list[int]]:
    kept = RecentPrompts(1_000_000)
    kept.add(LONG, "m", None)
    kept.add(OTHER, "m", None)
    return [one.ids.tolist() for one in plan_handoff(wanted, kept.by_prefix(), lambda key: key not in held)]


def test_most_sessions_first_and_the_longest_brings_the_shorter_ones() -> None:
    assert plan(hot(ONE, 8, 3), hot(SHARED, 4, 3), hot(TWO, 8, 9)) == [OTHER.ids.tolist(), LONG.ids.tolist()]


def test_a_shorter_one_of_more_sessions_comes_before_the_longer_one() -> None:
    assert plan(hot(ONE, 8, 3), hot(SHARED, 4, 9)) == [SYSTEM, LONG.ids.tolist()]


def test_what_is_held_elsewhere_or_not_kept_is_left_out() -> None:
    assert plan(hot(ONE, 8, 3), hot(SHARED, 4, 9), held=[SHARED]) == [LONG.ids.tolist()]
    assert plan(hot(Key(4711), 4, 9)) == []
