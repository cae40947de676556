"""Requests in the order of time: an open loop's own, and a closed one's under the pace that is assumed."""

from __future__ import annotations

import pytest

from router.testbed.workloads import CODEX, OpenArrivals, Session, Span, Turn, Workload
from router.testbed.workloads.model import session_contexts
from router.testbed.workloads.timeline import ClosedLoopPace, lay_out


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
