import pytest

from scorers.contract import Decode, Speed
from scorers.streams import STREAMED, answer_tokens, held_up, per_step, step_ms
from tests.suites.views import a_load

SPEED = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)


def test_each_that_streams_is_held_up_and_who_waits_for_a_first_token_is_not() -> None:
    assert held_up(a_load(requests=5, prefilling=2)) == pytest.approx(0.225)
    assert held_up(a_load(requests=1, prefilling=2)) == 0  # as workers tell them one after the other
    assert held_up(a_load()) == 0


def test_an_answer_is_as_long_as_the_last_ones_and_no_longer_than_wanted() -> None:
    assert answer_tokens(300.0, None) == 300
    assert answer_tokens(300.0, 50) == 50
    assert answer_tokens(300.0, 4000) == 300
    assert answer_tokens(None, 50) == 0


def test_a_step_makes_one_token_for_everybody() -> None:
    speed = SPEED._replace(decode=Decode(10.0, 100.0, 50.0, 0, None))
    # 10 + 3 * 0.1 + 20,000 * 50e-6
    assert step_ms(a_load(requests=3, context_tokens=20_000), speed) == pytest.approx(11.3)
    assert step_ms(a_load(requests=3), SPEED) == 0


def test_what_lacks_of_memory_is_waited_for() -> None:
    assert per_step(9_000, 10_000, 1_000) == STREAMED
    assert per_step(9_000, 10_000, 2_000) == pytest.approx(STREAMED + 0.1)
    assert per_step(9_000, None, 2_000) == STREAMED
