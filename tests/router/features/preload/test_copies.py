"""Which prefix gets one more holder: by the guard, and of several the most urgent one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.features.preload.copies import MIN_REQUESTS, find_missing_copy
from router.features.preload.plan import HotPrefix
from router.features.preload.recent_prompts import RecentPrompts
from router.kvcache.events import Key, TargetId
from tests.fakes.caches import prompt_of

FLEET = [TargetId(f"{name}/0") for name in "abcdefgh"]
BUSY = (9, 9, 9, 9, 0, 0, 0, 0)
LONG, OTHER = prompt_of(range(100, 132)), prompt_of(range(200, 216))  # 8 and 4 blocks of 4
LONG_KEY, HALF_KEY, OTHER_KEY = LONG.keys[4][7], LONG.keys[4][3], OTHER.keys[4][3]


def hot(key: Key, blocks: int, percent: int) -> HotPrefix:
    return HotPrefix(key, blocks, 2, percent, 100)


def missing(
    held: Mapping[Key, int], *wanted: HotPrefix, fleet: int = 8, busy: Sequence[int] = BUSY
) -> tuple[list[int], float] | None:
    """The ids of the prefix that needs a copy, and its urgency; `held`: by how many of the fleet, from its first target
    on; `busy`: the requests in flight at each.
    """
    kept = RecentPrompts(1_000_000)
    kept.add(LONG, "m", None)
    kept.add(OTHER, "m", None)

    def holders(key: Key) -> Sequence[TargetId]:
        return FLEET[: held.get(key, 0)]

    found = find_missing_copy(wanted, kept.by_prefix(), dict(zip(FLEET[:fleet], busy, strict=False)), holders)
    return None if found is None else (found.prompt.ids.tolist(), found.urgency)


def test_a_share_of_the_requests_above_that_of_the_holders_needs_one_more() -> None:
    # x / (1 - x) > m / (n - m): at 1 of 8 from 1/7 on, x = 12.5 %; at 4 of 8 from 50 % on
    assert missing({LONG_KEY: 1}, hot(LONG_KEY, 8, 12)) is None
    assert missing({LONG_KEY: 1}, hot(LONG_KEY, 8, 13)) is not None
    assert missing({LONG_KEY: 4}, hot(LONG_KEY, 8, 50)) is None
    assert missing({LONG_KEY: 4}, hot(LONG_KEY, 8, 51)) is not None


def test_holders_that_are_not_twice_as_busy_as_the_others_bear_it() -> None:
    wanted = hot(LONG_KEY, 8, 50)
    assert missing({LONG_KEY: 1}, wanted, busy=[4] * 8) is None
    assert missing({LONG_KEY: 1}, wanted, busy=[8, *[4] * 7]) is None
    assert missing({LONG_KEY: 1}, wanted, busy=[9, *[4] * 7]) is not None
    assert missing({LONG_KEY: 2}, wanted, busy=[17, 1, *[4] * 6]) is not None  # their mean
    assert missing({LONG_KEY: 2}, wanted, busy=[0] * 8) is None


def test_a_prefix_that_cools_needs_none() -> None:
    assert missing({LONG_KEY: 3}, hot(LONG_KEY, 8, 40)) is not None
    assert missing({LONG_KEY: 3}, hot(LONG_KEY, 8, 30)) is None


def test_where_all_or_none_hold_it_there_is_nothing_to_do() -> None:
    assert missing({LONG_KEY: 8}, hot(LONG_KEY, 8, 100)) is None
    assert missing({}, hot(LONG_KEY, 8, 100)) is None
    assert missing({LONG_KEY: 1}, hot(LONG_KEY, 8, 100), fleet=1) is None


def test_the_longest_of_a_run_and_then_the_most_tokens_that_lack() -> None:
    ids, urgency = missing({LONG_KEY: 2, HALF_KEY: 2}, hot(HALF_KEY, 4, 50), hot(LONG_KEY, 8, 50)) or ([], 0)
    assert (ids, urgency) == (LONG.ids.tolist(), (8 * 0.5 - 2) / 2 * 32)
    ids, urgency = missing({LONG_KEY: 2, OTHER_KEY: 1}, hot(LONG_KEY, 8, 50), hot(OTHER_KEY, 4, 50)) or ([], 0)
    assert (ids, urgency) == (OTHER.ids.tolist(), (8 * 0.5 - 1) / 1 * 16)


def test_few_requests_say_nothing_and_ids_that_are_not_kept_cannot_be_sent() -> None:
    few = HotPrefix(LONG_KEY, 8, 2, MIN_REQUESTS - 1, MIN_REQUESTS - 1)
    assert missing({LONG_KEY: 1}, few) is None
    assert missing({LONG_KEY: 1}, few._replace(requests=MIN_REQUESTS)) is not None
    assert missing({Key(4711): 1}, hot(Key(4711), 8, 100)) is None
