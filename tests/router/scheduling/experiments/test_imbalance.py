import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduling.experiments.imbalance import Imbalance


def of(targets: list[str]) -> Imbalance:
    spread = Imbalance()
    for target in targets:
        spread.add(target)
    return spread


def test_the_busiest_is_held_against_the_mean() -> None:
    # 5 requests over 4 targets: mean 1.25, the busiest has 3: 3 / 1.25 = 2.4
    assert of(["a", "a", "a", "b", "c"]).ratio(4) == pytest.approx(2.4)


def test_a_target_that_nobody_chose_counts() -> None:
    assert of(["a"] * 10).ratio(8) == 8


def test_no_request_no_spread() -> None:
    assert Imbalance().ratio(3) is None


@given(st.lists(st.sampled_from("abcd"), min_size=1))
def test_it_lies_between_even_and_all_on_one(targets: list[str]) -> None:
    uneven = of(targets).ratio(4)
    assert uneven is not None
    assert 1 <= uneven <= 4
