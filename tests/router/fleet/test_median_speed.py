"""The typical instance: medians, part by part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.median_speed import median_speed
from scorers.contract import Decode, Speed, Transfer
from tests.suites.views import speeds


def a_speed(base_ms: float, us_per_token: float = 100.0, samples: int = 5, **parts: Transfer | Decode | None) -> Speed:
    return Speed(base_ms, us_per_token, 2.0, samples, 1.0, None, None, None, None)._replace(**parts)


def test_nobody_is_nobody_and_one_is_itself() -> None:
    only = a_speed(1 / 3)
    assert median_speed([]) is None
    assert median_speed([only]) is only


def test_each_coefficient_is_the_median_by_itself() -> None:
    """The base of the second and the rate of the third: what is stuck in one way or another moves nothing."""
    nominal = median_speed([a_speed(10.0, 50.0), a_speed(20.0, 9000.0), a_speed(3000.0, 60.0)])
    assert nominal is not None
    assert nominal[:4] == (20.0, 60.0, 2.0, 15)


def test_of_an_even_number_it_is_the_middle_of_the_two_in_the_middle() -> None:
    nominal = median_speed([a_speed(base_ms) for base_ms in (1.0, 10.0, 10.3333333, 500.0)])
    assert nominal is not None
    assert nominal.base_ms == 10.1667  # 10.16666665 to six digits


def test_samples_add_up_and_the_youngest_tells_the_age() -> None:
    ages = (None, 7.5, 0.25)
    nominal = median_speed([a_speed(1.0, samples=i)._replace(age_s=age_s) for i, age_s in enumerate(ages)])
    assert nominal is not None
    assert (nominal.samples, nominal.age_s) == (3, 0.25)


def test_priors_count_only_where_nobody_has_learned() -> None:
    learned, prior = Transfer(4.0, 8.0, 9, 2.0), Transfer(5.0, 10.0, 0, None)
    step = Decode(7.0, 8.0, 9.0, 3, 1.0)
    nominal = median_speed(
        [
            a_speed(10.0, samples=0, pool=prior, cpu=prior, decode=Decode(10.0, 50.0, 60.0, 0, None)),
            a_speed(10.0, samples=0, pool=prior, cpu=prior, decode=Decode(10.0, 50.0, 60.0, 0, None)),
            a_speed(90.0, samples=3, pool=learned, cpu=prior, decode=step),
        ]
    )
    assert nominal is not None
    assert (nominal.base_ms, nominal.samples) == (90.0, 3)
    assert (nominal.pool, nominal.cpu, nominal.decode) == (learned, prior, step)


def test_a_link_that_an_instance_does_not_have_is_left_to_the_others() -> None:
    link = Transfer(4.0, 8.0, 9, 2.0)
    nominal = median_speed([a_speed(1.0), a_speed(2.0, peer=link), a_speed(3.0)])
    assert nominal is not None
    assert (nominal.peer, nominal.disk, nominal.decode) == (link, None, None)


@given(st.lists(speeds, min_size=1, max_size=9), st.integers(1, 9))
def test_every_coefficient_lies_between_those_of_the_instances_and_order_does_not_matter(
    all_speeds: list[Speed], turn: int
) -> None:
    nominal = median_speed(all_speeds)
    assert nominal is not None
    for i in range(3):
        coefficients = [speed[i] for speed in all_speeds]
        assert min(coefficients) * (1 - 1e-5) <= nominal[i] <= max(coefficients) * (1 + 1e-5)
    assert median_speed(all_speeds[turn:] + all_speeds[:turn]) == nominal
