import pytest

from scorers.contract import Decode, Speed
from scorers.streams import answer_tokens, held_up, streamed_ms_per_token
from tests.suites.views import a_load

SPEED = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)


def test_each_that_streams_is_held_up_and_who_waits_for_a_first_token_is_not() -> None:
    assert held_up(a_load(requests=5, prefilling=2)) == pytest.approx(0.3)
    assert held_up(a_load()) == 0


def test_an_answer_is_as_long_as_the_last_ones_and_no_longer_than_wanted() -> None:
    assert answer_tokens(300.0, None) == 300
    assert answer_tokens(300.0, 50) == 50
    assert answer_tokens(300.0, 4000) == 300
    assert answer_tokens(None, 50) == 0


def test_a_token_costs_a_twentieth_of_the_step_there() -> None:
    speed = SPEED._replace(decode=Decode(10.0, 100.0, 50.0, 0, None))
    # 10 + 3 * 0.1 + 20,000 * 50e-6 = 11.3 ms
    assert streamed_ms_per_token(a_load(requests=3, context_tokens=20_000), speed) == pytest.approx(0.565)
    assert streamed_ms_per_token(a_load(requests=3), SPEED) == 0
