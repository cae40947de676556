"""Token ids of spans, and what a workload counts."""

from __future__ import annotations

from router.testbed.workloads import OpenArrivals, Session, Span, Turn, Workload, make_token_ids


def test_ids_of_a_span_begin_any_longer_one() -> None:
    words = range(100, 4000)
    long = make_token_ids(Span(9, 500), 1, words)
    assert make_token_ids(Span(9, 200), 1, words) == long[:200]
    assert all(token in words for token in long)
    assert make_token_ids(Span(10, 500), 1, words) != long
    assert make_token_ids(Span(9, 500), 2, words) != long
    assert len(set(long)) > 400  # of 3,900 words: about 470 different ones in 500 draws


def test_turns_are_counted_in_closed_and_open_loops() -> None:
    turn = Turn(0, (Span(1, 10),), 5, 0.0)
    sessions = (Session(0, 0.0, (turn, turn)), Session(1, 0.0, (turn,)))
    assert Workload("closed", 0, sessions).turns == 3
    assert Workload("open", 0, OpenArrivals.of(sessions[1:]), is_closed=False).turns == 1


def test_answers_are_texts_of_their_own() -> None:
    turns = (Turn(0, (Span(1, 10),), 5, 0.0), Turn(15, (Span(2, 10),), 6, 0.0))
    answers = [Session(number, 0.0, turns).answer(turn) for number in range(3) for turn in range(2)]
    assert [answer.tokens for answer in answers] == [5, 6] * 3
    assert len({answer.source for answer in answers}) == 6
    assert max(answer.source for answer in answers) < 0  # no prompt's source
