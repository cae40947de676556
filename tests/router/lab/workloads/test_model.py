"""Workloads: token ids of spans, and requests laid out in time."""

from __future__ import annotations

import pytest

from router.lab.workloads.arrivals import OpenArrivals
from router.lab.workloads.model import (
    ClosedLoopPace,
    Session,
    Span,
    Turn,
    Workload,
    lay_out,
    make_token_ids,
    session_contexts,
)
from router.lab.workloads.presets import CODEX


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


def a_session(number: int, *thinks: float) -> Session:
    first = Turn(0, (Span(number, 100),), 10, thinks[0])
    return Session(number, 0.0, (first, *(Turn(110, (Span(50 + number, 5),), 10, think) for think in thinks[1:])))


def test_an_open_loop_has_its_own_times() -> None:
    turn = Turn(0, (Span(3, 40), Span(4, 2)), 7, 0.0)
    workload = Workload(
        "open", 0, OpenArrivals.of([Session(0, 1.5, (turn,)), Session(1, 2.0, (turn,))]), is_closed=False
    )
    first, second = lay_out(workload)
    assert (first.at_s, second.at_s) == (1.5, 2.0)
    assert first.prompt == [Span(3, 40), Span(4, 2)]
    assert first.context[:2] == first.prompt
    assert first.context[2].tokens == 6  # of 7: the last one's KV is never computed
    assert first.output_tokens == 7


def test_a_turn_waits_for_the_answer_and_the_pause() -> None:
    sent = list(lay_out(Workload("closed", 0, (a_session(0, 1.0, 2.0),)), ClosedLoopPace(token_s=0.1)))
    assert [one.at_s for one in sent] == [1.0, 4.0]  # 1 + 10 x 0.1 + 2
    assert [one.prompt for one in sent] == [prompt for prompt, _ in session_contexts(a_session(0, 1.0, 2.0))]


def test_the_next_session_begins_when_one_ends() -> None:
    sessions = (a_session(0, 1.0, 2.0), a_session(1, 0.5), a_session(2, 0.25), a_session(3, 9.0))
    sent = list(lay_out(Workload("closed", 0, sessions), ClosedLoopPace(at_once=2, token_s=0.1)))
    # 1 is asked at 0.5 and answered at 1.5, so 2 is asked at 1.75 and answered at 2.75, so 3 at 11.75; 0 at 1 and 4
    assert [(one.at_s, one.prompt[0].source) for one in sent] == [(0.5, 1), (1.0, 0), (1.75, 2), (4.0, 0), (11.75, 3)]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_every_turn_comes_once_and_in_order(at_once: int) -> None:
    workload = CODEX.scale(sessions=10 / 610, turns=0.2, tokens=0.1).workload(1)
    sent = list(lay_out(workload, ClosedLoopPace(at_once)))
    assert len(sent) == workload.turns
    assert sorted(sent, key=lambda one: one.at_s) == sent
    wanted = [prompt for session in workload.sessions for prompt, _ in session_contexts(session)]
    assert sorted(one.prompt for one in sent) == sorted(wanted)


def a_family() -> Session:
    """0 starts 1 and 2 with its first answer; 2 starts 3 with its own."""
    below = a_session(3, 0.5)
    subs = (a_session(1, 0.25), a_session(2, 0.5)._replace(sub_agents=(below,)))
    return a_session(0, 1.0, 2.0)._replace(sub_agents=subs)


def test_a_family_is_its_session_and_all_that_it_starts() -> None:
    family = a_family()
    assert [one.number for one in family.family()] == [0, 1, 2, 3]
    assert [one.number for one in family.started_by(0)] == [1, 2]
    assert family.started_by(1) == ()
    workload = Workload("closed", 0, (family, a_session(4, 1.0)))
    assert [one.number for one in workload.all_sessions()] == [0, 1, 2, 3, 4]
    assert workload.turns == 6


def test_laid_out_sub_agents_begin_with_the_answer_and_are_waited_for() -> None:
    workload = Workload("closed", 0, (a_family(), a_session(4, 1.0)))
    sent = list(lay_out(workload, ClosedLoopPace(at_once=1, token_s=0.1)))
    # 0 is answered at 2; 1 from 2.25 to 3.25, 2 from 2.5 to 3.5, 3 from 4 to 5; 0 again from 7 to 8; then 4
    assert [(one.at_s, one.prompt[0].source) for one in sent] == [
        (1.0, 0), (2.25, 1), (2.5, 2), (4.0, 3), (7.0, 0), (9.0, 4),
    ]  # fmt: skip
