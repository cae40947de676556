import pytest

from scorers.contract import Row
from scorers.rivals.prefix_trees import match_rate, match_tokens, tree_sizes
from tests.suites.views import a_row, an_overlap


def holding(held_tokens: int | None) -> Row:
    return a_row("a")._replace(held_tokens=held_tokens)


def test_a_match_is_in_any_tier_or_on_its_way() -> None:
    rows = [
        a_row("a", an_overlap(10)),
        a_row("b", an_overlap(10, disk=40)),
        a_row("c", an_overlap(10, cpu=40, expected=60)),
    ]
    assert match_tokens(rows) == [10, 40, 60]


def test_an_unknown_overlap_matches_nothing() -> None:
    assert match_tokens([a_row("a", an_overlap(10)), a_row("b")]) == [10, 0]


@pytest.mark.parametrize(("longest", "prompt", "rate"), [(0, 100, 0.0), (25, 100, 0.25), (100, 100, 1.0), (9, 6, 1.0)])
def test_the_rate_is_a_share_of_the_prompt(longest: int, prompt: int, rate: float) -> None:
    assert match_rate(longest, prompt) == rate


@pytest.mark.parametrize("unknown", [None, 0])
def test_of_an_unknown_prompt_any_match_is_all(unknown: int | None) -> None:
    assert (match_rate(0, unknown), match_rate(16, unknown)) == (0.0, 1.0)


def test_an_unknown_tree_is_an_average_one() -> None:
    assert tree_sizes([holding(100), holding(None), holding(300)]) == [100, 200, 300]
    assert tree_sizes([holding(None), holding(None)]) is None
