import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.best import Best
from scorers.round_robin import RoundRobin
from tests.suites.views import a_row, a_view


@pytest.mark.parametrize(
    ("turn", "costs"),
    [
        (0, [0, 1, 2]),
        (1, [2, 0, 1]),  # (0-1) mod 3, (1-1) mod 3, (2-1) mod 3
        (3, [0, 1, 2]),
    ],
)
def test_cost_is_the_distance_from_whose_turn_it_is(turn: int, costs: list[int]) -> None:
    assert RoundRobin().score(a_view(a_row("a"), a_row("b"), a_row("c"), turn=turn)) == costs


def test_everybody_gets_the_same_share() -> None:
    views = [a_view(a_row("a"), a_row("b"), a_row("c"), turn=turn) for turn in range(9)]
    chosen = [Best().pick(view, RoundRobin().score(view)) for view in views]
    assert chosen == [0, 1, 2] * 3


def test_the_request_number_does_not_matter() -> None:
    """Else two models asked for alternately would each see every other number only."""
    view = a_view(a_row("a"), a_row("b"), turn=1)
    assert RoundRobin().score(view) == RoundRobin().score(view._replace(number=7))


@given(st.integers(0, 200), st.integers(1, 70))
def test_costs_are_the_formula_s(turn: int, count: int) -> None:
    view = a_view(*[a_row("a")] * count, turn=turn)
    assert RoundRobin().score(view) == [(i - turn) % count for i in range(count)]
