"""Worked arithmetic for what a choice means for answers that stream, and all rows at once held to it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scorers.contract import Decode, Overlap, Row, Speed
from scorers.streams import SHORTAGE, STREAMED, answer_tokens, growth_tokens, served_ms, stall_cost, step_ms
from tests.suites.views import a_load, a_row, rows

SPEED = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)


def test_each_that_streams_is_held_up_and_who_waits_for_a_first_token_is_not() -> None:
    assert stall_cost(5, 2) == pytest.approx(0.09)
    assert stall_cost(1, 2) == 0  # as workers tell them one after the other
    assert stall_cost(0, 0) == 0


def test_an_answer_is_as_long_as_the_last_ones_and_no_longer_than_wanted() -> None:
    assert answer_tokens(300.0, None) == 300
    assert answer_tokens(300.0, 50) == 50
    assert answer_tokens(300.0, 4000) == 300
    assert answer_tokens(None, 50) == 0


def test_a_step_makes_one_token_for_everybody() -> None:
    speed = SPEED._replace(decode=Decode(10.0, 100.0, 50.0, 0, None))
    # 10 + 3 * 0.1 + 20,000 * 50e-6
    assert step_ms(speed, 3, 20_000) == pytest.approx(11.3)
    assert step_ms(SPEED, 3, 0) == 0


def per_step(row: Row, prompt_tokens: int, answer: float) -> float:
    """Cost of each step of an answer, in steps of waiting: its streaming, and the wait for memory that it lacks."""
    used_tokens = row.load.context_tokens if row.load.live_tokens is None else row.load.live_tokens
    kept_tokens = 0 if row.overlap is None else min(row.overlap.gpu_tokens, row.overlap.expected_tokens)
    new_tokens = prompt_tokens - kept_tokens
    grows = growth_tokens(row.load.requests, answer)
    if not row.capacity_tokens or (lacks := used_tokens + new_tokens + grows - row.capacity_tokens) <= 0:
        return STREAMED
    return STREAMED + SHORTAGE * lacks / row.capacity_tokens


def by_the_row(row: Row, wait: float, work: float, prompt_tokens: int, answer: float) -> float:
    """The reference: one function after the other."""
    own = answer * step_ms(row.speed, row.load.requests, row.load.context_tokens) * per_step(row, prompt_tokens, answer)
    return wait + work * (1 + stall_cost(row.load.requests, row.load.prefilling)) + own


def test_answers_that_stream_have_half_of_their_tokens_ahead() -> None:
    assert growth_tokens(0, 400.0) == 400
    assert growth_tokens(5, 400.0) == 1400
    assert growth_tokens(5, 0.0) == 0  # as long as nobody has seen an answer


def test_memory_that_a_prompt_and_the_answers_lack_is_waited_for() -> None:
    speed = SPEED._replace(decode=Decode(10.0, 0.0, 0.0, 0, None))
    row = a_row("busy", load=a_load(requests=1, prefilling=1, context_tokens=9_000))._replace(speed=speed)
    for capacity_tokens, prompt_tokens, lacks in ((10_000, 850, 0.0), (10_000, 2_000, 0.115), (None, 2_000, 0.0)):
        (ms,) = served_ms([row._replace(capacity_tokens=capacity_tokens)], [0.0], [0.0], prompt_tokens, 100.0)
        assert ms == pytest.approx(100 * 10.0 * (STREAMED + SHORTAGE * lacks))


@pytest.mark.parametrize(
    ("live_tokens", "gpu_tokens", "lacks"),
    [(9_000, 0, 0.115), (9_000, 600, 0.055), (9_000, 1_500, 0.0), (3_000, 0, 0.0), (None, 0, 4.115)],
)
def test_shared_memory_counts_once_and_what_is_held_needs_none(
    live_tokens: int | None, gpu_tokens: int, lacks: float
) -> None:
    """Five requests with contexts of 49,000 tokens in all, of which 9,000 are distinct; a prompt of 2,000. Answers
    grow by 150.
    """
    speed = SPEED._replace(decode=Decode(10.0, 0.0, 0.0, 0, None))
    load = a_load(requests=1, prefilling=1, context_tokens=49_000)._replace(live_tokens=live_tokens)
    row = a_row("busy", load=load)._replace(
        speed=speed, capacity_tokens=10_000, overlap=Overlap(gpu_tokens, gpu_tokens, gpu_tokens, 2_000, "events", 0.0)
    )
    (ms,) = served_ms([row], [0.0], [0.0], 2_000, 100.0)
    assert ms == pytest.approx(100 * 10.0 * (STREAMED + SHORTAGE * lacks))


times = st.floats(0, 1e6)


@given(st.lists(st.tuples(rows, times, times), max_size=4), st.integers(0, 200_000), st.just(0.0) | times)
@example(
    [(a_row("idle"), 3.0, 20.0), (a_row("busy", load=a_load(requests=5, context_tokens=9_000)), 3.0, 20.0)], 1, 9.0
)
def test_all_rows_at_once_cost_what_each_costs_to_the_last_bit(
    known: list[tuple[Row, float, float]], prompt_tokens: int, answer: float
) -> None:
    all_rows, waits, works = (
        [row for row, _, _ in known],
        [wait for _, wait, _ in known],
        [work for _, _, work in known],
    )
    one_by_one = [by_the_row(row, wait, work, prompt_tokens, answer) for row, wait, work in known]
    assert served_ms(all_rows, waits, works, prompt_tokens, answer) == one_by_one
