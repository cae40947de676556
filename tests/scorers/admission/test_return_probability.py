"""The chance that a silent session comes back, against arithmetic by hand and against a process that is known."""

from __future__ import annotations

from math import exp
from random import Random

import pytest

from scorers.admission.return_probability import SAMPLE_LIMIT, STAGES, ReturnProbability


def leaves(silence: ReturnProbability, silent_s: float, back: bool) -> None:
    """A silence of that length passes through the stages, to its end or to being given up."""
    for stage, length_s in enumerate(silence.lengths_s):
        if back and silent_s < length_s:
            silence.add_return(stage)
            return
        silence.add_survival(stage)
        silent_s -= length_s


def test_stages_double_up_to_the_time_at_which_a_silence_is_given_up() -> None:
    lengths = ReturnProbability(512.0).lengths_s
    assert lengths == [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
    assert sum(lengths) == 512.0


def test_before_anybody_left_everybody_is_expected_back() -> None:
    assert ReturnProbability(300.0).chances == [1.0] * STAGES


def test_three_of_four_in_the_first_stage_and_one_of_the_rest_never() -> None:
    """The first stage: 3 of 4 came, beside 10 of 10 as the prior: 13/14 come back within it. In each of the other nine
    0 of 1 came, beside 10 that do as in the one before: 10/11 of its share. So the last one has 13/14 x (10/11)^9, and
    from the first one on nobody comes back with a chance of 1/14 times the product of what the others leave.
    """
    silence = ReturnProbability(300.0)
    for _ in range(3):
        silence.add_return(0)
    leaves(silence, 0.0, back=False)
    assert silence.chances[-1] == pytest.approx(13 / 14 * (10 / 11) ** 9)
    gone = 1 / 14
    for stage in range(1, STAGES):
        gone *= 1 - 13 / 14 * (10 / 11) ** stage
    assert silence.chances[0] == pytest.approx(1 - gone)


def test_one_silence_teaches_little() -> None:
    silence = ReturnProbability(300.0)
    leaves(silence, 0.0, back=False)
    assert silence.chances[0] > 0.99


def test_sessions_that_never_return_are_soon_not_expected() -> None:
    """A hundred prompts asked once, seen for 10 s: nobody has reached the later stages, and yet the next one counts
    little: stage 0 has 10 / 110, stage 1 a tenth of that, and so on.
    """
    silence = ReturnProbability(300.0)
    for stage in range(4):
        for _ in range(100):
            silence.add_survival(stage)
    assert silence.chances[0] < 0.12


def test_it_finds_the_truth_of_agents_that_think_and_end() -> None:
    """One turn in 33 is the last; else the pause is exponential with a mean of 20 s. At the beginning of a stage, after
    t seconds of silence, the chance is 32 exp(-t/20) / (32 exp(-t/20) + 1).
    """
    dice, silence = Random(7), ReturnProbability(300.0)
    for _ in range(20_000):
        leaves(silence, dice.expovariate(1 / 20), back=dice.random() > 1 / 33)
    after_s = 0.0
    for stage, length_s in enumerate(silence.lengths_s):
        alive = 32 * exp(-after_s / 20)
        assert silence.chances[stage] == pytest.approx(alive / (alive + 1), abs=0.05), stage
        after_s += length_s


def test_it_follows_when_people_change() -> None:
    silence = ReturnProbability(300.0)
    for _ in range(20 * SAMPLE_LIMIT):
        silence.add_return(0)
    for _ in range(3 * SAMPLE_LIMIT):
        leaves(silence, 0.0, back=False)
    assert silence.chances[0] < 0.35
