"""Worked arithmetic: blocks of 16 tokens, a prompt of 160, classes of 2 blocks, a window of 4 requests."""

from typing import Any

import pytest

from scorers.contract import Row, View
from scorers.rivals.lmetric_guarded import LmetricGuarded
from tests.suites.views import a_load, a_row, a_view, an_overlap

HOT, COLD = (1, 71), (1, 72)  # digests of the first block and of the first two


def guarded(**known: int) -> LmetricGuarded:
    return LmetricGuarded(**({"class_prefix_blocks": 2, "window_requests": 4} | known))


def row(name: str, held: int = 0, requests: int = 0) -> Row:
    return a_row(name, an_overlap(held), a_load(requests=requests))


def view(*rows: Row, prefixes: tuple[int, ...] = HOT, **known: Any) -> View:
    return a_view(*rows, prefixes=prefixes, **({"prompt_tokens": 160} | known))


def place(scorer: LmetricGuarded, seen: View) -> str:
    """Return where the request goes, and let the scorer learn it."""
    costs = list(scorer.score(seen))
    chosen = seen.rows[costs.index(min(costs))]
    scorer.picked(seen, chosen)
    return chosen.instance


ONE_OF_FOUR = row("a", 144, requests=2), row("b", 0, 1), row("c", 0, 1), row("d", 0, 1)


def test_prefill_times_the_batch_with_this_request() -> None:
    # 160 * 1; (160 - 128) * 4
    assert guarded().score(view(row("cold"), row("warm", 128, 3))) == [160, 128]


def test_at_least_one_token_is_computed() -> None:
    # full hits still differ by their batch
    assert guarded().score(view(row("a", 160, 3), row("b", 160, 1))) == [4, 2]


def test_a_hot_class_leaves_its_holders_after_two_rounds() -> None:
    # |M| = 1 of 4: alarm above a share of a quarter. a costs 16 * 3 = 48, the others 160 * 2; the 2nd in a row moves
    scorer = guarded()
    assert place(scorer, view(*ONE_OF_FOUR)) == "a"
    assert scorer.score(view(*ONE_OF_FOUR)) == [48 + 320, 320, 320, 320]
    assert place(scorer, view(*ONE_OF_FOUR)) == "b"


def test_a_class_within_the_share_of_its_holders_stays() -> None:
    # two of four hold it; alternating with another class its share is a half: x / (1 - x) = 1 = |M| / |M'|
    rows = row("a", 160, 2), row("b", 160, 2), row("c", 0, 1), row("d", 0, 1)
    scorer = guarded()
    for _ in range(8):
        assert place(scorer, view(*rows)) in ("a", "b")
        place(scorer, view(*rows, prefixes=COLD))


def test_the_row_is_broken_by_a_request_that_is_best_placed_elsewhere() -> None:
    busy = row("a", 144, requests=30), *ONE_OF_FOUR[1:]  # 16 * 31 = 496 > 320
    scorer = guarded()
    assert place(scorer, view(*ONE_OF_FOUR)) == "a"
    assert place(scorer, view(*busy)) == "b"
    assert place(scorer, view(*ONE_OF_FOUR)) == "a"  # the first in a row again


def test_the_window_forgets() -> None:
    # after four requests of another class the hot one is a quarter of the window: no alarm
    scorer = guarded()
    place(scorer, view(*ONE_OF_FOUR))
    for _ in range(4):
        place(scorer, view(*ONE_OF_FOUR, prefixes=COLD))
    assert 71 not in scorer._arrivals
    assert 71 not in scorer._streaks
    assert scorer.score(view(*ONE_OF_FOUR)) == [48, 320, 320, 320]


@pytest.mark.parametrize("prefixes", [(), (1,)])
def test_a_prompt_shorter_than_a_class_belongs_to_none(prefixes: tuple[int, ...]) -> None:
    scorer = guarded()
    for _ in range(4):
        assert place(scorer, view(*ONE_OF_FOUR, prefixes=prefixes)) == "a"
    assert not scorer._window


def test_where_all_hold_it_nobody_is_left_out() -> None:
    rows = row("a", 160), row("b", 160, 1)
    scorer = guarded()
    for _ in range(6):
        assert place(scorer, view(*rows)) == "a"


def test_an_unknown_overlap_holds_the_mean_and_is_no_holder() -> None:
    # 144 and 0 are known: 72; costs 16, 88, 160
    rows = row("a", 144), a_row("b"), row("c")
    scorer = guarded()
    assert scorer.score(view(*rows)) == [16, 88, 160]
    place(scorer, view(*rows))
    assert scorer.score(view(*rows)) == [16 + 160, 88, 160]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"class_prefix_blocks: found 3, wanted a power of two"):
        LmetricGuarded(class_prefix_blocks=3)
    with pytest.raises(ValueError, match=r"window_requests: found 0, wanted at least 1"):
        LmetricGuarded(window_requests=0)
